# SPDX-License-Identifier: GPL-2.0-or-later
"""Records -> datagrams, many by one system call: sendmmsg(2) through ctypes. World room.

A send() a record costs a quarter more of a core (docs/relay.md, "Speed"). Where this Python has no ctypes, or
the C library no sendmmsg, there is that send().

How many went is told by the kernel itself: right after each datagram it writes msg_len into that one's header. Headers
in memory that outlives this process (tally.py) therefore give the exact count when it is killed, also within the call.
"""

import mmap
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
_MSG_LEN_AT = struct.calcsize("@PIPNPNi0P")
_MSG_LEN = struct.Struct("@I")

# A window's place in memory: which half counts now (one byte), two halves of the count before the window and the number
# of records in it, two halves of headers. A half is written while the other counts: a kill in between changes nothing.
_HALF = struct.Struct("<QQ")
_HALVES_AT = 8
_HEADERS_AT = _HALVES_AT + 2 * _HALF.size
_HEADERS_BYTES = _MMSGHDR.size * WINDOW_MOST_COUNT
PLACE_BYTES = _HEADERS_AT + 2 * _HEADERS_BYTES


def sent_count(memory: "mmap.mmap", at: int) -> int:
    """How many datagrams went, from a window's place: also one that a process left that was killed while it sent."""
    half = memory[at] & 1
    count, window_count = _HALF.unpack_from(memory, at + _HALVES_AT + half * _HALF.size)
    lengths_at = at + _HEADERS_AT + half * _HEADERS_BYTES + _MSG_LEN_AT
    for number in range(min(window_count, WINDOW_MOST_COUNT)):
        count += _MSG_LEN.unpack_from(memory, lengths_at + number * _MMSGHDR.size)[0] > 0
    return int(count)


class Window:
    """The oldest records of a ring, laid out for the kernel once, sent a few at a time.

    Takes: memory, at - its place there, PLACE_BYTES of zeros; sent_count - what it counts on from. No record is empty.
    sent_count: all that went, from here and before. lengths: those of the records in it, in bytes. is_batched: whether
    the kernel takes several at once.
    """

    __slots__ = (
        "_at",
        "_blank",
        "_data",
        "_half",
        "_iovecs",
        "_memory",
        "_memory_at",
        "is_batched",
        "lengths",
        "sent_count",
    )

    def __init__(self, memory: "mmap.mmap", at: int, sent_count: int = 0) -> None:
        self.is_batched = _SENDMMSG is not None
        self.lengths: "list[int]" = []
        self._data: "list[bytes]" = []
        self._memory = memory
        self._at = at
        self._half = 0
        self.sent_count = sent_count
        _HALF.pack_into(memory, at + _HALVES_AT, sent_count, 0)
        self._memory_at = ctypes.addressof(ctypes.c_char.from_buffer(memory, at)) if self.is_batched else 0
        self._iovecs = array(_POINTER, bytes(_IOVEC_BYTES * WINDOW_MOST_COUNT))
        iovecs_at = self._iovecs.buffer_info()[0]
        self._blank = b"".join(
            _MMSGHDR.pack(0, 0, iovecs_at + _IOVEC_BYTES * number, 1, 0, 0, 0, 0) for number in range(WINDOW_MOST_COUNT)
        )

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
        half = 1 - self._half
        at = self._at + _HEADERS_AT + half * _HEADERS_BYTES
        size_bytes = _MMSGHDR.size * len(lengths)
        self._memory[at : at + size_bytes] = self._blank[:size_bytes]
        _HALF.pack_into(self._memory, self._at + _HALVES_AT + half * _HALF.size, self.sent_count, len(lengths))
        self._memory[self._at] = self._half = half

    def send(self, connection: "socket.socket", start: int, most_count: int, flags: int) -> int:
        """How many of the records from number `start` on the kernel took now: one, or more.

        Raises: OSError - it took none. What stopped it after some is told by the next call.
        """
        at = _HEADERS_AT + self._half * _HEADERS_BYTES + _MMSGHDR.size * start
        if not self.is_batched:
            connection.send(self._data[start], flags)
            _MSG_LEN.pack_into(self._memory, self._at + at + _MSG_LEN_AT, self.lengths[start])
            self.sent_count += 1
            return 1
        count = min(most_count, len(self.lengths) - start)
        taken: int = _SENDMMSG(connection.fileno(), self._memory_at + at, count, flags)
        if taken < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.sent_count += taken
        return taken
