# SPDX-License-Identifier: GPL-2.0-or-later
"""A terminal of the command's own, between it and the real one. World room.

Two kinds. Foreground: stdin and stdout are the terminal that we are in the foreground of; the command gets a session of
its own on a new pty, the real terminal goes raw, as with script(1), so that editors, shells and their job control work.
Output only: stdout is a terminal, stdin is not ours to take (a pipe, or we run in the background); the command stays in
our session, and the pty is only there so that isatty(1) stays true; it changes no byte.
"""

import errno
import fcntl
import os
import termios

_STDIN = 0
_OFLAG = 1
_INPUT_MOST_BYTES = 4096


def is_foreground(stdout: int) -> bool:
    """Whether stdin and stdout are the terminal whose foreground we are."""
    try:
        return (
            os.isatty(_STDIN)
            and os.fstat(_STDIN).st_rdev == os.fstat(stdout).st_rdev
            and (os.tcgetpgrp(_STDIN) == os.getpgrp())
        )
    except OSError:
        return False


class Terminal:
    """A pty like the real terminal on fd. master: ours, does not wait; slave: the command's."""

    def __init__(self, fd: int, is_foreground: bool) -> None:
        self.master, self.slave = os.openpty()
        self._fd = fd
        self.is_foreground = is_foreground
        self._old: "list[int | list[bytes | int]] | None" = None
        self._typed = b""
        self.is_reading = is_foreground
        os.set_blocking(self.master, False)
        modes = termios.tcgetattr(fd)
        if not is_foreground:
            modes[_OFLAG] &= ~termios.OPOST  # the real terminal does that
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.resize()

    def resize(self) -> None:
        """Gives the pty the real terminal's size."""
        try:
            size = fcntl.ioctl(self._fd, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            pass  # the terminal has gone: its hangup tells

    def adopt(self) -> None:
        """In the command's process: makes the pty its controlling terminal, if it is a foreground one."""
        if self.is_foreground:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def enter(self) -> None:
        """Makes the real terminal raw: from now on the pty edits, echoes and signals."""
        if self.is_foreground:
            self._old = termios.tcgetattr(_STDIN)
            raw = termios.tcgetattr(_STDIN)
            raw[0] &= ~(
                termios.BRKINT
                | termios.ICRNL
                | termios.INLCR
                | termios.IGNCR
                | termios.INPCK
                | termios.ISTRIP
                | termios.IXON
            )
            raw[1] &= ~termios.OPOST
            raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
            raw[6][termios.VMIN] = 1
            raw[6][termios.VTIME] = 0
            termios.tcsetattr(_STDIN, termios.TCSANOW, raw)

    def leave(self) -> None:
        """Gives the real terminal back as it was."""
        if self._old is not None:
            try:
                termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._old)
            except (OSError, termios.error):
                pass  # it has gone
            self._old = None

    def has_typed(self) -> bool:
        """Whether input waits for the command to read."""
        return bool(self._typed)

    def read_input(self) -> None:
        """Takes what was typed, at most what waits for the command already allows."""
        try:
            typed = os.read(_STDIN, _INPUT_MOST_BYTES)
        except OSError:
            typed = b""
        if not typed:
            self.is_reading = False
        self._typed += typed
        self.write_input()

    def write_input(self) -> None:
        """Passes what was typed on, as far as the pty takes it."""
        try:
            self._typed = self._typed[os.write(self.master, self._typed) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._typed = b""
            self.is_reading = False
