# SPDX-License-Identifier: GPL-2.0-or-later
"""Signals as something to poll: noted by the interpreter at once, acted on only where a wait looks.

Nothing is raised from a handler, so no signal can tear a fork, a rename or a write in two, and a SIGTERM is held until
the child that it must reach is known (seed guard-emits, "Deadline"). `_signal` instead of `signal`: the latter brings
in enum, a third of the guard's start (design section 10).
"""

import _signal  # type: ignore[import-not-found]
import os

STOPPING = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


class Watch:
    """Notes SIGTERM, SIGINT, SIGHUP and SIGCHLD while it is open; fd becomes readable when one has come.

    One at a time in a process, on the main thread (CPython's own rule for signal handlers). Use as a context: on the
    way out the handlers that were there come back.
    """

    def __init__(self) -> None:
        self.fd, self._wake_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._wake_fd, False)
        self._stopped = False
        self._old_wake_fd = _signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        self._old = {number: _signal.getsignal(number) for number in (*STOPPING, _signal.SIGCHLD)}
        for number, handler in self._old.items():
            # Ignored on entry (nohup, a site's choice) stays ignored; SIGCHLD ignored would lose exit codes.
            if handler != _signal.SIG_IGN or number == _signal.SIGCHLD:
                _signal.signal(number, self._note)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (*STOPPING, _signal.SIGCHLD))

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            _signal.signal(number, handler if handler is not None else _signal.SIG_DFL)
        _signal.set_wakeup_fd(self._old_wake_fd)
        os.close(self.fd)
        os.close(self._wake_fd)

    def _note(self, number: int, _frame: object) -> None:
        if number in STOPPING:
            self._stopped = True

    def is_stopped(self) -> bool:
        """Whether this process has been told to stop."""
        return self._stopped

    def drain(self) -> None:
        """Empties fd, so that it becomes readable again only for what comes next."""
        try:
            while os.read(self.fd, 512):
                pass
        except BlockingIOError:
            pass
