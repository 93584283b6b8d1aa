# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay node | exec | event | check`: arguments -> one of them, imported only when chosen. Order room."""

import os
import sys

from guard.base.faults import Fault, SiteFault
from guard.relay import reasons

USAGE = """usage: relay node  [--config FILE] [--folder DIR]       the node's daemon, root, foreground
       relay exec  [--unbuffered] [--folder DIR] -- CMD   CMD with its output relayed, any user, in a job
       relay event job_start [--relay-io yes|no|default] [--folder DIR]   in slurmd's Prolog
       relay event job_end [--folder DIR]                 in slurmd's Epilog
       relay check [--config FILE] [--folder DIR] [--send]   what is set up and what is not
"""
_DEFAULTS = {"--config": "/etc/eessi-relay.conf", "--folder": "/run/eessi-relay", "--relay-io": "default"}
_OPTIONS = {
    "node": ("--config", "--folder"),
    "exec": ("--folder", "--unbuffered"),
    "event": ("--folder", "--relay-io"),
    "check": ("--config", "--folder", "--send"),
}
_SWITCHES = ("--unbuffered", "--send")


def main(arguments: "list[str]", environ: "dict[bytes, bytes]") -> int:
    """Runs `relay ...` and gives the exit status: 0, 1 fault, 2 usage; exec: its command's.

    Takes: arguments - from the word after `relay` on; environ - as bytes.
    """
    try:
        return _run(arguments, environ)
    except Fault as fault:
        _tell(f"relay: {reasons.sentence(fault)}\n")
        if fault.code == "bad-usage":
            _tell(USAGE)
        return 2 if fault.code == "bad-usage" else 1


def _run(arguments: "list[str]", environ: "dict[bytes, bytes]") -> int:
    word = arguments[0] if arguments else ""
    if word in ("--help", "-h"):
        sys.stdout.write(USAGE)
        return 0
    if word not in _OPTIONS:
        raise SiteFault("bad-usage", f"relay {word}".rstrip())
    options, rest = _parsed(word, arguments[1:])
    if word == "exec":
        from guard.relay import exec as tapped
        from guard.relay import frames

        if not rest:
            raise SiteFault("bad-usage", "relay exec needs a command")
        folder = options["--folder"]
        return tapped.run(
            [os.fsencode(one) for one in rest], "--unbuffered" in options, f"{folder}/{frames.TAP_NAME}", environ
        )
    if word == "event":
        from guard.relay import event, frames, settle

        wish = options["--relay-io"]
        if rest not in (["job_start"], ["job_end"]) or wish not in (settle.YES, settle.NO, settle.DEFAULT):
            raise SiteFault("bad-usage", "relay event job_start or job_end, --relay-io yes, no or default")
        told = event.payload(rest[0], wish, environ)
        code, text = event.tell(f"{options['--folder']}/{frames.CONTROL_NAME}", told)
        if code in (frames.YES, frames.NO):
            return 0
        raise SiteFault("refused", text)
    if rest:
        raise SiteFault("bad-usage", f"relay {word} takes no {rest[0]}")
    if word == "node":
        from guard.relay import node

        return node.run(options["--config"], options["--folder"], environ)
    from guard.relay import check

    return check.run(options["--config"], options["--folder"], "--send" in options)


def _parsed(word: str, arguments: "list[str]") -> "tuple[dict[str, str], list[str]]":
    """The options, each `--name value` or `--name=value`, and what is no option; all after `--` is none."""
    options = {name: _DEFAULTS[name] for name in _OPTIONS[word] if name in _DEFAULTS}
    rest: "list[str]" = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--" or (word == "exec" and not argument.startswith("--")):
            rest += left if argument == "--" else [argument, *left]
            break
        if not argument.startswith("--"):
            rest.append(argument)
            continue
        name, equals, value = argument.partition("=")
        if (
            name not in _OPTIONS[word]
            or (name in _SWITCHES and equals)
            or (name not in _SWITCHES and not (equals or left))
        ):
            raise SiteFault("bad-usage", f"relay {word} {argument}")
        options[name] = "" if name in _SWITCHES else value if equals else left.pop(0)
    return options, rest


def _tell(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # nobody to tell
