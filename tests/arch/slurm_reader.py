# SPDX-License-Identifier: GPL-2.0-or-later
"""A model of how slurmstepd reads a TaskProlog's output, both generations: the judge of what the guard emits.

Written after the C, not after the guard: a buffer that is walked with indices and in which ends of strings are put in
and taken out again. Source: Slurm slurm-22-05-8-1 and 284c3b95 (26.11), src/slurmd/slurmstepd/task.c _proc_stdout;
slurm-22-05-0-1 the same under fgets; src/common/env.c setenvf, unsetenvp. Held against slurmstepd itself by
tests/slurm/test_reader.py, each generation where it is installed.
"""

WHOLE = "whole"  # Slurm from 22.05.1 on
FGETS = "fgets"  # Slurm up to 22.05.0
_FGETS_BUFFER = 4096 - 1
_SETENVF_BUFFER = 256 * 1024
_MAX_ENV_STRLEN = 32 * 4096
_ISSPACE = b" \t\n\v\f\r"


def applied(environ: "dict[bytes, bytes]", output: bytes, generation: str) -> "tuple[dict[bytes, bytes], bytes]":
    """The task's environment after the prolog wrote output, and what was printed to the task's stdout."""
    after = dict(environ)
    printed = bytearray()
    if generation == WHOLE:
        _proc_stdout(output, after, printed)
    else:
        start = 0
        while start < len(output):
            newline = output.find(b"\n", start, start + _FGETS_BUFFER - 1)
            end = newline + 1 if newline >= 0 else min(len(output), start + _FGETS_BUFFER - 1)
            _proc_stdout(output[start:end], after, printed)
            start = end
    return after, bytes(printed)


def _proc_stdout(text: bytes, environ: "dict[bytes, bytes]", printed: bytearray) -> None:
    buf = bytearray(text.partition(b"\0")[0] + b"\0")
    at = 0
    while buf[at]:
        end_buf = False
        end = buf.find(b"\n", at)
        if end < 0:
            end = buf.index(0, at)
            end_buf = True
        if buf.startswith(b"print ", at):
            at += 6
            while buf[at] and buf[at] in _ISSPACE:
                at += 1
            if end - at + 1 > 0:
                printed += buf[at : end + 1]
        elif buf.startswith(b"export ", at):
            name = at + 7
            while buf[name] and buf[name] in _ISSPACE:
                name += 1
            equal = buf.find(b"=", name)
            if 0 <= equal <= end:
                value = equal + 1
                while buf[equal - 1] in _ISSPACE:
                    equal -= 1
                # The C puts a NUL in at `equal` and one at `end`. Where nothing is before the `=`, the first of them
                # lands in front of the name, which then begins with `=` and is the rest of the line.
                _setenvf(environ, bytes(buf[name : equal if equal >= name else end]), bytes(buf[value:end]))
        elif buf.startswith(b"unset ", at):
            name = at + 6
            while buf[name] and buf[name] in _ISSPACE:
                name += 1
            if buf[name] not in (0, 0x0A):
                stop = end
                while buf[stop - 1] in _ISSPACE:
                    stop -= 1
                # Where the line has no name, what was skipped is its end too: the name is then all that follows, and
                # the NUL is in front of it.
                buf[stop] = 0
                _unsetenvp(environ, bytes(buf[name : buf.index(0, name)]))
                if not end_buf:
                    # The C leaves its line end where the trimmed name ended: what was blank is read as a line.
                    buf[stop] = 0x0A
                    end = stop
        if end_buf:
            break
        at = end + 1


def _unsetenvp(environ: "dict[bytes, bytes]", name: bytes) -> None:
    """A name with a `=` in it takes out what has such a value: the C compares it with whole entries."""
    for key, value in list(environ.items()):
        if (key + b"=" + value).startswith(name + b"="):
            del environ[key]


def _setenvf(environ: "dict[bytes, bytes]", name: bytes, value: bytes) -> None:
    if not name:
        return
    value = value[: _SETENVF_BUFFER - 1]
    if len(name) + len(value) + 2 < _MAX_ENV_STRLEN:
        name, _, value = (name + b"=" + value).partition(b"=")
        environ[name] = value
