# SPDX-License-Identifier: GPL-2.0-or-later
"""Signals and the end of the parent as something to wait for. World room.

Like guard.base.watch, but with signals that do not all mean the end, and with a lifeline: the read end of a pipe whose
only write end the parent holds, so that no child of a killed parent goes on.
"""

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Wake:
    """Notes the signals it is asked for. One at a time in a process, on the main thread, for the process's life."""

    def __init__(self, numbers: "Iterable[int]", lifeline_fd: int = -1) -> None:
        self._seen: set[int] = set()
        self._lifeline_fd = lifeline_fd
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._read_fd, select.POLLIN)
        if lifeline_fd >= 0:
            self._poll.register(lifeline_fd, select.POLLIN)
        for number in numbers:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def _note(self, number: int, _frame: object) -> None:
        self._seen.add(number)

    def register(self, fd: int) -> None:
        """Makes wait return when fd is readable too."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Returns after seconds, or as soon as a signal came, the parent is gone, or a registered fd is readable."""
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if fd == self._lifeline_fd:
                self._seen.add(signal.SIGTERM)
            elif fd == self._read_fd:
                try:
                    os.read(self._read_fd, 512)
                except BlockingIOError:
                    pass

    def has(self, number: int) -> bool:
        """Whether the signal has come."""
        return number in self._seen

    def take(self, number: int) -> bool:
        """Whether the signal has come since the last take."""
        if number not in self._seen:
            return False
        self._seen.discard(number)
        return True
