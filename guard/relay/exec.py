# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay exec [--unbuffered] -- CMD`: runs CMD with its stdout and stderr relayed, any user, no plugin. Order room.

Asks the daemon first, for at most half a second. Without a yes - no daemon, a stopped one, a job that is not relayed -
this process becomes CMD and nothing of ours is left. After a yes it copies (copier.py).
"""

import os
import select
import time

from guard.relay import command, limits
from guard.relay.tap import Tap


def run(argv: "list[bytes]", is_unbuffered: bool, path: str, environ: "dict[bytes, bytes]") -> int:
    """Runs argv; gives its exit status, or does not return (death by signal, or this process became the command).

    Takes: path - the daemon's tap socket.
    """
    held = _hold_standard_fds()
    environ = _as_given(environ)
    tap = _asked(is_unbuffered, path, environ)
    if tap is None:
        return command.become(argv, environ)
    from guard.relay.copier import Copier

    return Copier(argv, environ, tap, held).run()


def _as_given(environ: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """environ with the LC_CTYPE that this process was given, or without one.

    In the C locale Python sets its own (PEP 538) before anything can be read, also with -I: CMD must not see that.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [entry[9:] for entry in file.read().split(b"\0") if entry.startswith(b"LC_CTYPE=")]
    except OSError:
        return environ
    others = {name: value for name, value in environ.items() if name != b"LC_CTYPE"}
    return {**others, b"LC_CTYPE": given[0]} if given else others


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _asked(is_unbuffered: bool, path: str, environ: "dict[bytes, bytes]") -> "Tap | None":
    """A tap that the relay wants, or None."""
    ids = [
        _number(environ, name, default)
        for name, default in (
            (b"SLURM_JOB_ID", None),
            (b"SLURM_STEP_ID", limits.STEP_BATCH),
            (b"SLURM_LOCALID", 0),
            (b"SLURM_PROCID", 0),
        )
    ]
    job_id, step_id, task_local, task_global = ids
    if job_id is None or step_id is None or task_local is None or task_global is None:
        return None
    tap = Tap(path, job_id, step_id, task_local, task_global, is_unbuffered)
    end_ms = _now_ms() + limits.TAP_FIRST_ANSWER_MS
    while True:
        tap.pump(_now_ms())
        fd = tap.fd()
        # A connection that is closed without an answer has met a worker at its very end: once more, then.
        is_lost = fd is None and (tap.code is not None or not tap.has_connected)
        left_ms = min(end_ms, tap.next_ms()) - _now_ms()
        if tap.is_open or is_lost or _now_ms() >= end_ms:
            break
        poll = select.poll()
        if fd is not None:
            poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, left_ms) + 1)
    if tap.is_open:
        return tap
    tap.close()
    return None


def _number(environ: "dict[bytes, bytes]", name: bytes, default: "int | None") -> "int | None":
    value = environ.get(name)
    if value is None:
        return default
    # Slurm 26.05 writes the steps that are no numbered ones with a sign (env.c, setup_env): batch -5, interactive -6.
    if name == b"SLURM_STEP_ID" and value[:1] == b"-" and value[1:].isdigit() and len(value) <= 3:
        value = b"%d" % (2**32 - int(value[1:]))
    return int(value) if 0 < len(value) <= 10 and value.isdigit() and int(value) <= limits.ID_MOST else None


def _hold_standard_fds() -> "list[int]":
    """Fills holes at 0, 1 and 2, so that nothing of ours becomes CMD's stdout; gives those that were closed.

    CMD finds them closed again: whatever Python opens is closed by an exec (PEP 446).
    """
    held: "list[int]" = []
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return held
        held.append(fd)
