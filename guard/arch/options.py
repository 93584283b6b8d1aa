# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line of the guard's own calls. Pure. By hand: argparse would cost more than the rest of the start."""

from guard.arch.request import seconds_from
from guard.base.limits import DEADLINE_DEFAULT_S, PROLOG_LINE_MAX, SLURM_ENTRY_MAX_BYTES

PROLOG = "prolog"
SHELL = "shell"


class Options:
    """mode: PROLOG or SHELL; chain: the site's own prolog or None; timeout_s: the site's default deadline;
    line_max: --prolog-line-max in bytes, None when not given; is_cut: whatever that says, this Slurm cuts lines
    (main.hold_standard_fds); syslog: a decision also goes to the node's log; fault: why this call cannot be obeyed,
    or ""."""

    __slots__ = ("chain", "fault", "is_cut", "line_max", "mode", "syslog", "timeout_s")

    def __init__(self) -> None:
        self.mode = PROLOG
        self.chain: "str | None" = None
        self.timeout_s = DEADLINE_DEFAULT_S
        self.line_max: "int | None" = None
        self.is_cut = False
        self.syslog = False
        self.fault = ""


def parse(arguments: "list[str]") -> Options:
    """The options of a prolog or shell call. Never raises: what is wrong is in fault, and the call still exits 0."""
    options = Options()
    rest = iter(arguments)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if name == "--shell" and not has_value:
            options.mode = SHELL
        elif name == "--syslog" and not has_value:
            options.syslog = True
        elif name in ("--chain", "--timeout", "--prolog-line-max"):
            _take(options, name, value if has_value else next(rest, ""))
        else:
            options.fault = options.fault or f"unknown option {argument!r}"
    if options.chain and options.mode == SHELL:
        options.fault = "--chain cannot go with --shell: a prolog's directives are not sh code"
        options.chain = None
    return options


def _take(options: Options, name: str, value: str) -> None:
    if name == "--chain":
        options.chain = value
        good = bool(value)
    elif name == "--timeout":
        seconds = seconds_from(value.encode("utf-8", "surrogateescape"))
        options.timeout_s = seconds or DEADLINE_DEFAULT_S
        good = seconds is not None
    else:
        good = value.isascii() and value.isdigit() and PROLOG_LINE_MAX <= int(value[:7]) <= SLURM_ENTRY_MAX_BYTES + 8
        options.line_max = int(value) if good else None
    if not good:
        options.fault = options.fault or f"{name} cannot be {value!r}"
