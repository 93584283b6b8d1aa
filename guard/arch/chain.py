# SPDX-License-Identifier: GPL-2.0-or-later
"""The site's own TaskProlog, run first: what it said, and the environment as Slurm will have it after that.

Source: Slurm 20.02 to 26.05 src/slurmd/slurmstepd/task.c, _proc_stdout; env.c, setenvf.
"""

import errno
import os

from guard.base import child
from guard.base.deadline import Deadline
from guard.base.limits import CHAIN_EOF_WAIT_S, CHAIN_OUTPUT_MAX_BYTES, SLURM_ENTRY_MAX_BYTES
from guard.base.watch import Watch

# isspace() in the C locale, which slurmstepd runs in.
_SPACES = b" \t\n\v\f\r"


def run(program: str, environ: "dict[bytes, bytes]", watch: Watch) -> "tuple[int, bytes]":
    """The exit status of the site's prolog, 1 where a signal ended it (as Slurm has it), and all that it wrote.

    It has no deadline, as under Slurm, and stays in our process group, which Slurm kills. Its stderr goes where Slurm
    sends it: into the same pipe from 22.05.1 on, nowhere before that.
    Raises: OSError - it is not what Slurm itself would run: an absolute path, readable, executable; no process;
    child.NodeFault(terminated) - we were told to stop.
    """
    if not os.path.isabs(program):
        raise OSError(errno.EINVAL, "not an absolute path", program)
    if os.path.isdir(program) or not os.access(program, os.R_OK | os.X_OK):
        raise OSError(errno.EACCES, "cannot be read and run", program)
    argv = [os.fsencode(program)]
    prolog = child.program(
        argv,
        environ,
        {1: CHAIN_OUTPUT_MAX_BYTES},
        own_session=False,
        merge_stderr=_has_one_pipe(),
        linger_s=CHAIN_EOF_WAIT_S,
    )
    child.wait([prolog], Deadline(float("inf")), watch)
    status = prolog.status or 0
    return (status if status >= 0 else 1), bytes(prolog.outputs[1])


def _has_one_pipe() -> bool:
    out, err = os.fstat(1), os.fstat(2)
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def applied(environ: "dict[bytes, bytes]", output: bytes, line_max: "int | None") -> "dict[bytes, bytes]":
    """environ as Slurm has it after a prolog that wrote output.

    Takes: line_max - as emit.line_max_bytes gives it: with a limit Slurm reads by fgets, and each piece is a text of
    its own; without one the whole is one text, and the first NUL ends it.
    """
    after = dict(environ)
    for text in [output] if line_max is None else _pieces(output, line_max):
        for line in text.partition(b"\0")[0].split(b"\n"):
            _apply(after, line)
    return after


def _pieces(output: bytes, line_max: int) -> "list[bytes]":
    lines = output.split(b"\n")
    return [line[start : start + line_max] for line in lines for start in range(0, max(1, len(line)), line_max)]


def _apply(environ: "dict[bytes, bytes]", line: bytes) -> None:
    directive, space, rest = line.partition(b" ")
    if not space:
        return
    if directive == b"export":
        name, equals, value = rest.lstrip(_SPACES).partition(b"=")
        name = name.rstrip(_SPACES)
        # A longer one is refused, and the old value stays.
        if equals and name and len(name) + len(value) + 2 < SLURM_ENTRY_MAX_BYTES:
            environ[name] = value
    elif directive == b"unset":
        environ.pop(rest.strip(_SPACES), None)
