# SPDX-License-Identifier: GPL-2.0-or-later
"""One decision for a step: read, else lock, read again, decide, publish. Order room of the step cache.

Seed guard-emits, "One decision per step". Who cannot use the files safely decides alone and writes nothing.
"""

import _signal  # type: ignore[import-not-found]
import fcntl
import os

from guard.arch import cache
from guard.arch.emit import Outcome
from guard.base import files
from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.base.limits import LOCK_LOOK_S
from guard.base.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def decided(
    path: bytes, decide: "Callable[[], tuple[Outcome, bool]]", deadline: Deadline, watch: Watch
) -> "tuple[Outcome, bool]":
    """The step's outcome, and whether this task is the one that decided it and published it at path.

    Takes: decide - gives an outcome and whether it holds for the whole step; called at most once.
    Raises: NodeFault(timeout), NodeFault(terminated) - while another task was deciding.
    """
    try:
        lock_fd = files.open_lock(path + cache.LOCK_SUFFIX)
    except files.Unusable:
        return decide()[0], False
    try:
        why = wait_for(lock_fd, deadline, watch)
        try:
            found = cache.stored(path)
        except files.Unusable:
            return decide()[0], False
        if found:
            return found, False
        if why and why != "unlockable":
            raise NodeFault(why, "while another task of the step was deciding")
        outcome, holds = decide()
        return outcome, holds and not why and cache.publish(path, outcome)
    finally:
        os.close(lock_fd)


class _Interrupt(Exception):
    """Out of a blocking flock."""


def wait_for(lock_fd: int, deadline: Deadline, watch: Watch) -> str:
    """Waits for the lock: "" when it is held, "timeout", "terminated", or "unlockable" where locks do not work (Lustre,
    old NFS).
    """
    try:
        if _is_free(lock_fd):
            return ""
        _block(lock_fd, deadline, watch)
        return ""
    except _Interrupt:
        pass
    except OSError:
        return "unlockable"
    # It may have come just after the lock did: asking again tells.
    if _is_free(lock_fd):
        return ""
    return "terminated" if watch.is_stopped() else "timeout"


def _is_free(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _block(lock_fd: int, deadline: Deadline, watch: Watch) -> None:
    """Waits in the kernel's queue, first come first served; an alarm looks now and then whether it is time to leave.

    Raises: _Interrupt. Refused: asking again and again, which 191 tasks would do; and a handler of SIGTERM that raises,
    which a signal just before the system call would miss.
    """

    def look(_number: int, _frame: object) -> None:
        if watch.is_stopped() or not deadline.left_s():
            _signal.setitimer(_signal.ITIMER_REAL, 0)
            raise _Interrupt

    old = _signal.signal(_signal.SIGALRM, look)
    try:
        _signal.setitimer(_signal.ITIMER_REAL, LOCK_LOOK_S, LOCK_LOOK_S)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_signal.SIGALRM, old)
