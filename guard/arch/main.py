# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard's order: environ -> request -> outcome -> fd 1. The outermost door of prolog and shell mode.

What a task without EESSI or with a cached outcome runs is imported here; everything else where it is needed.
"""

import posix as os  # what a cached answer needs of it, without the 0.9 ms that os costs at each start

from guard.arch import cache, emit, request
from guard.arch.options import PROLOG, Options
from guard.base import files
from guard.base.deadline import Deadline
from guard.base.limits import DEADLINE_MAX_S


def run(options: Options, environ: "dict[bytes, bytes]", file: str) -> int:
    """Does one prolog or shell call and gives its exit status: 0, or that of a failing chained program.

    Takes: environ - the task's, as bytes; file - this program, for the helper.
    """
    status = 0
    speaker = environ.get(b"SLURM_LOCALID", b"0") == b"0"
    try:
        if options.chain:
            status, environ = _chain(options, environ, speaker)
        _guard(options, environ, file, speaker)
    except BaseException as error:  # the outermost door: no bug of ours may cost a job
        reason = f"{type(error).__name__}: {error}"
        _skip(reason, options.mode, speaker)
    return status


def _guard(options: Options, environ: "dict[bytes, bytes]", file: str, speaker: bool) -> None:
    verbose = environ.get(b"EESSI_ARCH_GUARD_VERBOSE") == b"1"
    seconds, remark = request.deadline_s(environ, options.timeout_s)
    deadline = Deadline(seconds)
    if options.fault:
        _skip(options.fault, options.mode, speaker)
        return
    reason = request.skip_reason(environ)
    if reason and not verbose:
        return
    result = emit.Outcome(b"", b"", _nothing(reason)) if reason else _decided(options, environ, file, deadline)
    if verbose and remark:
        result.detail += b" (" + remark.encode("ascii") + b")"
    emit.write(result, options.mode, speaker, verbose, Deadline(seconds))


def _decided(options: Options, environ: "dict[bytes, bytes]", file: str, deadline: Deadline) -> emit.Outcome:
    path = cache.path(environ, options.mode)
    if path:
        try:
            found = cache.stored(path)
        except files.Unusable:
            found, path = None, None
        if found:
            return found
    from guard.arch import settle

    return settle.outcome(environ, options, file, path, deadline)


def _chain(options: Options, environ: "dict[bytes, bytes]", speaker: bool) -> "tuple[int, dict[bytes, bytes]]":
    """Runs the site's prolog, passes on what it wrote, and gives its status and the environment after it."""
    from guard.arch import chain
    from guard.base.watch import Watch

    assert options.chain
    with Watch() as watch:
        try:
            status, output = chain.run(options.chain, environ, watch)
        except OSError as error:
            _skip(f"chained prolog {options.chain}: {error.strerror}", options.mode, speaker)
            return 0, environ
    emit.put(1, output, Deadline(DEADLINE_MAX_S))
    if output and not output.endswith(b"\n"):
        # Its last line counts as it is (task.c, _proc_stdout); ours must not be glued to it.
        emit.put(1, b"\n", Deadline(DEADLINE_MAX_S))
    return status, chain.applied(environ, output, emit.line_max_bytes(environ, options))


def _nothing(reason: str) -> bytes:
    from guard.base import message

    return message.nothing(reason).encode("utf-8", "backslashreplace")


def _skip(reason: str, mode: str, speaker: bool) -> None:
    """One line that says why nothing was done: a print directive, or in shell mode a line on stderr."""
    from guard.base import message

    text = message.skipped(reason).encode("utf-8", "backslashreplace")
    outcome = emit.Outcome(b"", text, text)
    emit.write(outcome, mode, speaker or mode != PROLOG, False, Deadline(1.0))


def hold_standard_fds() -> bool:
    """Makes sure that fds 0, 1 and 2 are taken; gives whether stderr was closed. Slurm up to 22.05.0, which cuts lines,
    closes 0 and 2 (task.c), and the next file that is opened would become stderr; later ones do not."""
    was_closed = False
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
            was_closed = fd == 2
    return was_closed
