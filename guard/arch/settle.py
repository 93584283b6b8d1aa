# SPDX-License-Identifier: GPL-2.0-or-later
"""The miss path: one decision from an environment, through every stage. Order room: it only orders."""

import os
import time

from guard.arch import claim, clean, decide, detect, emit, request
from guard.arch.options import Options
from guard.base import message
from guard.base.deadline import Deadline
from guard.base.faults import Fault, JobFault, NodeFault
from guard.base.watch import Watch

RELOADED = b"EESSI_ARCH_GUARD_RELOADED"
FAILED = b"EESSI_ARCH_GUARD_FAILED"
# Another task, or the same a minute later, may do better. Seed guard-emits, "One decision per step".
_PASSING = ("timeout", "terminated")


def outcome(
    environ: "dict[bytes, bytes]", options: Options, file: str, path: "bytes | None", deadline: Deadline
) -> emit.Outcome:
    """The finished outcome for this environment on this node: another task's, or this one's own decision.

    Takes: environ - one for which request.skip_reason gave None; path - where the step's outcome is shared, None for
    nowhere. Raises: no Fault, each becomes the outcome.
    """
    with Watch() as watch:

        def decide_now() -> "tuple[emit.Outcome, bool]":
            result = _decision(environ, options, file, deadline, watch)
            if options.syslog and result[0].message:
                _log(result[0], environ)
            return result

        if not path:
            return decide_now()[0]
        try:
            found, is_ours = claim.decided(path, decide_now, deadline, watch)
        except NodeFault as fault:
            return _failed(environ, options, None, fault)
    if is_ours:
        clean.sweep(os.path.dirname(path))
    return found


def _decision(
    environ: "dict[bytes, bytes]", options: Options, file: str, deadline: Deadline, watch: Watch
) -> "tuple[emit.Outcome, bool]":
    """A decision made here, through every stage, and whether it holds for the whole step."""
    was = request.loaded_target(environ)
    now = None
    try:
        survey = detect.survey(environ, deadline, watch)
        now = decide.choose(was, survey)
        if now is None:
            return _nothing(decide.MATCH, survey.remark), True
        names, why = request.module_names(environ)
        if why:
            raise JobFault("unsafe-module-name", why)
        # Only now: most first tasks of a step find that their target matches, and need no JSON.
        from guard.arch import delta, restore

        after = restore.environment(environ, names, was, now, file, deadline, watch)
        marker = decide.label(was, now)
        changes = [*delta.between(environ, after), (RELOADED, marker)]
        if FAILED in environ:
            changes.append((FAILED, None))
        directives = emit.render(changes, options.mode, emit.line_max_bytes(environ, options))
        text = message.reloaded(len(names), node_name(environ), marker.decode("ascii"))
        return _said(directives, text), True
    except Fault as fault:
        return _failed(environ, options, now, fault), fault.code not in _PASSING


def _failed(
    environ: "dict[bytes, bytes]", options: Options, now: "request.Target | None", fault: Fault
) -> emit.Outcome:
    """The outcome of a fault: the marker, and the line that says it. now: the target that was selected, if any."""
    token = now if now is not None and fault.code == "modules-missing" else fault.code.encode("ascii")
    marker = decide.label(request.loaded_target(environ), token)
    text = message.failed(node_name(environ), marker.decode("ascii"), fault.sentence())
    return _said(emit.render([(FAILED, marker)], options.mode), text)


def _log(made: emit.Outcome, environ: "dict[bytes, bytes]") -> None:
    from guard.arch import syslog

    is_failure = FAILED + b"=" in made.directives
    syslog.send(syslog.line(made.message, environ, is_failure, node_name(environ), time.time()))


def node_name(environ: "dict[bytes, bytes]") -> str:
    """The name that Slurm has for this node, else the host's own."""
    name = environ.get(b"SLURMD_NODENAME") or os.uname().nodename.encode("utf-8", "surrogateescape")
    return name[:64].decode("utf-8", "backslashreplace")


def _nothing(*reasons: str) -> emit.Outcome:
    text = message.nothing("; ".join(filter(None, reasons)))
    return emit.Outcome(b"", b"", text.encode("utf-8", "backslashreplace"))


def _said(directives: bytes, text: str) -> emit.Outcome:
    line = text.encode("utf-8", "backslashreplace")
    return emit.Outcome(directives, line, line)
