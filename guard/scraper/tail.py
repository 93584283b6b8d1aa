# SPDX-License-Identifier: GPL-2.0-or-later
"""What is new in a log that somebody else writes and rotates, whole lines, never waiting. World room."""

import os

from guard.scraper import appended
from guard.scraper.limits import LOG_LINE_MAX_BYTES, LOG_LOOK_BYTES


class Tail:
    """Follows a path; after a rotation it reads the old file to its end, then the new one.

    place: where an earlier Tail was (its place()). Without one it begins at the present end; if the log was rotated
    since, at the begin of the new one, and what the old one got after that place is not read.
    """

    def __init__(self, path: str, place: "tuple[int, int, int] | None" = None) -> None:
        self._path = path
        self._rest = b""
        self._fd = self._opened()
        if self._fd >= 0:
            there = os.fstat(self._fd)
            if place is None:
                os.lseek(self._fd, 0, os.SEEK_END)
            elif place[:2] == (there.st_dev, there.st_ino):
                os.lseek(self._fd, place[2], os.SEEK_SET)

    def lines(self) -> "list[bytes]":
        """The lines that came since the last look, at most LOG_LOOK_BYTES, each cut to LOG_LINE_MAX_BYTES."""
        data = self._read()
        if not data and self._is_replaced():
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._opened()
            data = self._read()
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LOG_LINE_MAX_BYTES]
        return [line[:LOG_LINE_MAX_BYTES] for line in whole]

    def place(self) -> "tuple[int, int, int] | None":
        """Device, inode and the offset of the first line that lines() has not given; None while there is no log."""
        if self._fd < 0:
            return None
        there = os.fstat(self._fd)
        return there.st_dev, there.st_ino, max(0, os.lseek(self._fd, 0, os.SEEK_CUR) - len(self._rest))

    def close(self) -> None:
        """Closes the log."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _read(self) -> bytes:
        if self._fd < 0:
            return b""
        try:
            offset = os.lseek(self._fd, 0, os.SEEK_CUR)
            if os.fstat(self._fd).st_size < offset:
                offset = 0  # copytruncate
            data = appended.pread(self._fd, LOG_LOOK_BYTES, offset)
            os.lseek(self._fd, offset + len(data), os.SEEK_SET)
            return data
        except OSError:
            return b""

    def _is_replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except OSError:
            return False
        if self._fd < 0:
            return True
        ours = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _opened(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return -1
