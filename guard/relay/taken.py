# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker's tally as a tap reads it: how much of what was sent is in records (frames.py, "Tally"). World room.

Apart from tally.py, which writes it and needs ctypes: a tap is any user's small process.
"""

import fcntl
import os
import struct

from guard.relay.limits import TALLY_COMMITS_AT, TALLY_SLOTS_AT

# Records made; a tap's slot; how many bytes of what that tap sent are in them.
COMMIT = struct.Struct("<QQq")
SLOT = struct.Struct("<q")


class Taken:
    """Takes: fd - of the tally, closed by close(); slot - the tap's own."""

    __slots__ = ("_fd", "_slot")

    def __init__(self, fd: int, slot: int) -> None:
        self._fd = fd
        self._slot = slot

    def count_bytes(self) -> int:
        """How much of what the tap sent is in records or was logged; 0 where that cannot be read."""
        try:
            half = os.pread(self._fd, 1, 0)[0] & 1
            _, slot, taken_bytes = COMMIT.unpack(os.pread(self._fd, COMMIT.size, TALLY_COMMITS_AT + half * COMMIT.size))
            if slot != self._slot:
                (taken_bytes,) = SLOT.unpack(os.pread(self._fd, SLOT.size, TALLY_SLOTS_AT + self._slot * SLOT.size))
        except (OSError, IndexError, struct.error):
            return 0
        return int(taken_bytes)

    def is_final(self) -> bool:
        """Whether the worker that wrote it lives no more."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Its fd is free."""
        os.close(self._fd)
