# SPDX-License-Identifier: GPL-2.0-or-later
"""Records -> datagrams, many by one system call: sendmmsg(2) through ctypes. World room.

A send() a record costs a quarter more of a core (docs/relay.md, "Speed"). Where this Python has no ctypes, or
the C library no sendmmsg, there is that send().
"""

import os
import socket
import struct
from array import array
from bisect import bisect
from itertools import accumulate, islice

from guard.relay.limits import WINDOW_BYTES, WINDOW_MOST_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_SENDMMSG: "Any" = None
try:
    import ctypes

    _SENDMMSG = ctypes.CDLL(None, use_errno=True).sendmmsg
    _SENDMMSG.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
except (ImportError, OSError, AttributeError):
    pass

_POINTER = "Q" if struct.calcsize("P") == 8 else "I"
_IOVEC_BYTES = struct.calcsize("PN")
# struct mmsghdr of recvmmsg(2): name and its length, iovecs and their count, control and its length, flags; bytes sent.
_MMSGHDR = struct.Struct("@PIPNPNi0PI0P")


class Window:
    """The oldest records of a ring, laid out for the kernel once, sent a few at a time.

    lengths: those of the records in it, in bytes. is_batched: whether the kernel takes several at once.
    """

    __slots__ = ("_data", "_headers", "_headers_at", "_iovecs", "is_batched", "lengths")

    def __init__(self) -> None:
        self.is_batched = _SENDMMSG is not None
        self.lengths: "list[int]" = []
        self._data: "list[bytes]" = []
        self._iovecs = array(_POINTER, bytes(_IOVEC_BYTES * WINDOW_MOST_COUNT))
        iovecs_at = self._iovecs.buffer_info()[0]
        self._headers = array(
            "B",
            b"".join(
                _MMSGHDR.pack(0, 0, iovecs_at + _IOVEC_BYTES * number, 1, 0, 0, 0, 0)
                for number in range(WINDOW_MOST_COUNT)
            ),
        )
        self._headers_at = self._headers.buffer_info()[0]

    def load(self, records: "Iterable[bytes]", most_count: int) -> None:
        """Takes the first records, at least one if there is one: at most most_count, and about WINDOW_BYTES."""
        taken = list(islice(records, most_count))
        lengths = list(map(len, taken))
        if sum(lengths) > WINDOW_BYTES:
            count = bisect(list(accumulate(lengths)), WINDOW_BYTES) or 1
            del taken[count:], lengths[count:]
        self.lengths = lengths
        self._data = taken
        if self.is_batched:
            # One copy of all, since only that gives addresses at C's speed.
            self._data = [b"".join(taken)]
            # Not cast(), which makes a cycle that only a garbage collection ends.
            at = ctypes.c_void_p.from_buffer(ctypes.c_char_p(self._data[0])).value or 0
            end = 2 * len(lengths)
            self._iovecs[0:end:2] = array(_POINTER, accumulate(lengths, initial=at))[:-1]
            self._iovecs[1:end:2] = array(_POINTER, lengths)

    def send(self, connection: "socket.socket", start: int, most_count: int, flags: int) -> int:
        """How many of the records from number `start` on the kernel took now: one, or more.

        Raises: OSError - it took none. What stopped it after some is told by the next call.
        """
        if not self.is_batched:
            connection.send(self._data[start], flags)
            return 1
        count = min(most_count, len(self.lengths) - start)
        taken: int = _SENDMMSG(connection.fileno(), self._headers_at + _MMSGHDR.size * start, count, flags)
        if taken < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return taken
