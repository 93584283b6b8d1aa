# SPDX-License-Identifier: GPL-2.0-or-later
"""A delta as Slurm's prolog directives or as sh code, all of it or a fault; and the one place that writes to fd 1.

Source: seed guard-emits; Slurm 20.02 to 26.05 src/slurmd/slurmstepd/task.c (_proc_stdout), src/common/env.c (setenvf).
"""

import posix as os  # what a cached answer needs of it, without the 0.9 ms that os costs at each start
import select

from guard.arch.options import PROLOG, SHELL
from guard.base.deadline import Deadline
from guard.base.faults import JobFault
from guard.base.limits import PIPE_PIECE_BYTES, PROLOG_LINE_MAX, SLURM_ENTRY_MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from guard.arch.options import Options

# An unsafe new value of these is left out, and the rest still goes. Seed guard-emits, "Prolog mode".
PROMPTS = frozenset((b"PS1", b"PS2", b"PS3", b"PROMPT_COMMAND"))
_NAME_START = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
_NAME_REST = _NAME_START + b"0123456789"
# What shlex.quote leaves bare (CPython 3.9 to 3.14, _find_unsafe).
_BARE = _NAME_REST + b"@%+=:,./-"


class Outcome:
    """A finished decision. directives: whole lines for stdout; message: the line for people, without its newline,
    b"" for none; detail: the verbose line likewise."""

    __slots__ = ("detail", "directives", "message")

    def __init__(self, directives: bytes, message: bytes, detail: bytes) -> None:
        self.directives = directives
        self.message = message
        self.detail = detail


def line_max_bytes(environ: "dict[bytes, bytes]", options: "Options") -> "int | None":
    """How long a prolog line may be with its newline, None for as long as it likes.

    SLURM_JOB_START_TIME is in a task's environment from Slurm 23.02.0 on (env.c), and lines are unlimited from 22.05.1
    on (9aba6992de); in between nothing tells, and the site does by --prolog-line-max. Differs from the seed, which
    knows only 4094: the values of a real EESSI environment reach 16 kB (design section 6).

    What slurmstepd itself shows outweighs both: a job that runs on a node of 23.02 has steps on one of 22.05.0, with
    that variable in their environment, while a cluster is being upgraded.
    """
    if options.is_cut:
        return PROLOG_LINE_MAX
    if b"SLURM_JOB_START_TIME" in environ:
        return None
    return options.line_max or PROLOG_LINE_MAX


def render(
    changes: "Iterable[tuple[bytes, bytes | None]]", mode: str, line_max: "int | None" = PROLOG_LINE_MAX
) -> bytes:
    """The whole text for stdout from changes (name, value or None to unset), in their order.

    Takes: mode - PROLOG or SHELL; line_max - as line_max_bytes gives it, for PROLOG only.
    Gives: whole lines, b"" for no changes. Raises: JobFault(unsafe-environment) - one that cannot be carried.
    """
    lines = []
    too_long: list[tuple[int, bytes]] = []
    for name, value in changes:
        reason = _unsafe(name, value, mode)
        line = _line(name, value, mode)
        needed = 0
        if value is not None and len(name) + len(value) + 2 >= SLURM_ENTRY_MAX_BYTES:
            needed = len(name) + len(value) + 2
        elif mode == PROLOG and line_max is not None and len(line) > line_max:
            needed = len(line)
        if reason and name not in PROMPTS:
            raise JobFault("unsafe-environment", f"{name[:80].decode('utf-8', 'backslashreplace')} {reason}")
        if needed and name not in PROMPTS:
            too_long.append((needed, name))
        if not reason and not needed:
            lines.append(line)
    if too_long:
        raise JobFault("unsafe-environment", _too_long(too_long, line_max if mode == PROLOG else None))
    return b"".join(lines)


def is_name(name: bytes) -> bool:
    """Whether name is one that a directive or a shell can carry: ^[A-Za-z_][A-Za-z0-9_]*$."""
    return bool(name) and name[0] in _NAME_START and not name.strip(_NAME_REST)


def _unsafe(name: bytes, value: "bytes | None", mode: str) -> str:
    if not is_name(name):
        return "is no name that can be set"
    if value is None:
        return ""
    if b"\0" in value:
        return "has a NUL in its new value"
    if mode == PROLOG and (b"\n" in value or b"\r" in value):
        return "has a line break in its new value"
    return ""


def _line(name: bytes, value: "bytes | None", mode: str) -> bytes:
    if value is None:
        return b"unset %s\n" % name
    return b"export %s=%s\n" % (name, value if mode == PROLOG else shell_quote(value))


def _too_long(too_long: "list[tuple[int, bytes]]", line_max: "int | None") -> str:
    needed, name = max(too_long)
    text = f"{name.decode('ascii')} is the longest of {len(too_long)} variables that are too long,"
    if line_max is None or needed >= SLURM_ENTRY_MAX_BYTES:
        return f"{text} {needed} bytes of at most {SLURM_ENTRY_MAX_BYTES - 1}: load fewer modules"
    return (
        f"{text} {needed} bytes, and lines of {line_max} are sure to pass:"
        " from Slurm 22.05.1 on the site can raise --prolog-line-max"
    )


def shell_quote(value: bytes) -> bytes:
    """value as one word of sh, as shlex.quote does for text."""
    if value and not value.strip(_BARE):
        return value
    return b"'" + value.replace(b"'", b"'\"'\"'") + b"'"


def print_line(message: bytes) -> bytes:
    """The print directive of message, cut on a character boundary to PROLOG_LINE_MAX; b"" for an empty message: an
    empty print makes Slurm swallow the next line (task.c, _proc_stdout)."""
    if not message:
        return b""
    return b"print %s\n" % cut(message, PROLOG_LINE_MAX - len(b"print \n"))


def cut(text: bytes, length_max: int) -> bytes:
    """At most length_max bytes of text, never ending inside a UTF-8 character."""
    if len(text) <= length_max:
        return text
    while length_max and text[length_max] & 0xC0 == 0x80:
        length_max -= 1
    return text[:length_max]


def write(outcome: Outcome, mode: str, is_speaker: bool, is_verbose: bool, deadline: Deadline) -> None:
    """Writes a finished outcome, print last; whatever cannot be written is dropped.

    Takes: is_speaker - whether this task prints for its node (SLURM_LOCALID 0 or unset); is_verbose - the detail is
    wanted: on stderr, and in prolog mode also as a print, since no Slurm shows a prolog's stderr.
    """
    said = outcome.message or (outcome.detail if is_verbose else b"")
    if mode == SHELL:
        put(1, outcome.directives, deadline)
        if said:
            put(2, said + b"\n", deadline)
        return
    put(1, outcome.directives + (print_line(said) if is_speaker else b""), deadline)
    if is_verbose and outcome.detail:
        put(2, cut(outcome.detail, PROLOG_LINE_MAX - 1) + b"\n", deadline)


def put(fd: int, data: bytes, deadline: Deadline) -> None:
    """Writes data to fd in order, waiting for a slow reader no longer than the deadline; a failed write is dropped."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    rest = memoryview(data)
    try:
        while rest and poll.poll(deadline.left_s() * 1000):
            rest = rest[os.write(fd, rest[:PIPE_PIECE_BYTES]) :]
    except OSError:
        pass
