# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's queue -> datagrams, all that is there before anything else is done with them. World room.

The kernel queues ten datagrams by default, so a reader that decodes between two receives makes the senders wait. By
recvmmsg(2), which Python does not have: recvmsg for each datagram took as long as everything that follows it.
"""

import ctypes
import errno
import mmap
import os
import socket
import struct

from guard.scraper.bind import SO_TIMESTAMPNS
from guard.scraper.limits import RECEIVE_MAX_BYTES, RECEIVE_MIN_BYTES, RECEIVE_SLOTS_COUNT

_NS = 1_000_000_000
_REFUSED_HEAD_BYTES = 4096
_SENDER_LIMITS = ("/proc/sys/net/core/wmem_default", "/proc/sys/net/core/wmem_max")


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iov_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Mmsghdr(ctypes.Structure):
    _fields_ = (("header", _Msghdr), ("length", ctypes.c_uint32))


_HEADER_BYTES = ctypes.sizeof(_Mmsghdr)
_LENGTH = struct.Struct(f"{_Mmsghdr.length.offset}x I {_HEADER_BYTES - _Mmsghdr.length.offset - 4}x")
# cmsghdr and struct timespec, cmsghdr and struct ucred: the order in which unix(7) sockets give them. There is room for
# these two and no more, so that file descriptors which somebody passes along are closed by the kernel (MSG_CTRUNC).
_CONTROL = struct.Struct("@16s ll 16s iII 0l")
_CMSGHDR = struct.Struct("@Nii")
_TIME_HEADER = _CMSGHDR.pack(_CMSGHDR.size + struct.calcsize("ll"), socket.SOL_SOCKET, SO_TIMESTAMPNS)
_SENDER_HEADER = _CMSGHDR.pack(_CMSGHDR.size + struct.calcsize("iII"), socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
_recvmmsg = ctypes.CDLL(None, use_errno=True).recvmmsg
_QUIET = (errno.EAGAIN, errno.EINTR)


class Batch:
    """What one look took. datagrams: (raw, received ns since the epoch, sender's pid); refused: (code, head of the
    raw bytes, pid)."""

    __slots__ = ("datagrams", "refused")

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, int, int]] = []
        self.refused: list[tuple[str, bytes, int]] = []


class Receiver:
    """Reads one socket, non-blocking. uids: whose datagrams are taken, by the kernel's word for each one
    (SCM_CREDENTIALS); slot_bytes: the longest datagram that is taken whole, until a longer one is seen."""

    def __init__(self, sock: socket.socket, uids: "frozenset[int]", slot_bytes: int) -> None:
        self._fd = sock.fileno()
        self._uids = uids
        self._allocate(slot_bytes)

    def drain(self) -> Batch:
        """What is queued now, at most RECEIVE_SLOTS_COUNT datagrams; nothing when nothing is.

        Raises: OSError - the socket is broken.
        """
        batch = Batch()
        self._headers[:] = self._fresh_headers
        count = _recvmmsg(self._fd, self._address, RECEIVE_SLOTS_COUNT, socket.MSG_DONTWAIT | socket.MSG_TRUNC, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in _QUIET:
                return batch
            raise OSError(number, os.strerror(number))
        datagrams = batch.datagrams
        slots = self._slots
        slot_bytes = self._slot_bytes
        uids = self._uids
        longest = start = 0
        lengths = _LENGTH.iter_unpack(self._headers[: count * _HEADER_BYTES])
        controls = _CONTROL.iter_unpack(self._controls[: count * _CONTROL.size])
        for (length,), (time_header, seconds, nanoseconds, sender_header, pid, uid, _) in zip(lengths, controls):
            if time_header != _TIME_HEADER or sender_header != _SENDER_HEADER:
                batch.refused.append(("foreign-uid", slots[start : start + min(length, _REFUSED_HEAD_BYTES)], 0))
            elif uid not in uids:
                batch.refused.append(("foreign-uid", slots[start : start + min(length, _REFUSED_HEAD_BYTES)], pid))
            elif length > slot_bytes:
                batch.refused.append(("truncated", slots[start : start + _REFUSED_HEAD_BYTES], pid))
                longest = max(longest, length)
            else:
                datagrams.append((slots[start : start + length], seconds * _NS + nanoseconds, pid))
            start += slot_bytes
        # Or a datagram that came before we asked for credentials would be read with those of its slot's last one.
        self._controls[: count * _CONTROL.size] = bytes(count * _CONTROL.size)
        if longest and slot_bytes < RECEIVE_MAX_BYTES:
            self._allocate(longest)
        return batch

    def trim(self) -> None:
        """Gives back the memory that long datagrams have touched; call it now and then."""
        self._slots.madvise(mmap.MADV_DONTNEED)

    def _allocate(self, slot_bytes: int) -> None:
        """One slot for each datagram of a look. mmap: its pages cost memory only once a datagram has reached them."""
        page = mmap.PAGESIZE
        self._slot_bytes = min(RECEIVE_MAX_BYTES, -(-slot_bytes // page) * page)
        self._slots = mmap.mmap(-1, self._slot_bytes * RECEIVE_SLOTS_COUNT)
        self._controls = mmap.mmap(-1, _CONTROL.size * RECEIVE_SLOTS_COUNT)
        self._headers = mmap.mmap(-1, _HEADER_BYTES * RECEIVE_SLOTS_COUNT)
        self._iovecs = (_Iovec * RECEIVE_SLOTS_COUNT)()
        slots = ctypes.addressof(ctypes.c_char.from_buffer(self._slots))
        controls = ctypes.addressof(ctypes.c_char.from_buffer(self._controls))
        self._address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._headers)))
        headers = (_Mmsghdr * RECEIVE_SLOTS_COUNT)()
        for index in range(RECEIVE_SLOTS_COUNT):
            self._iovecs[index].base = slots + index * self._slot_bytes
            self._iovecs[index].length = self._slot_bytes
            headers[index].header.iov = ctypes.addressof(self._iovecs[index])
            headers[index].header.iov_count = 1
            headers[index].header.control = controls + index * _CONTROL.size
            headers[index].header.control_length = _CONTROL.size
        # The kernel writes into the headers, so each look begins with fresh ones.
        self._fresh_headers = bytes(headers)


def slot_bytes() -> int:
    """How long a datagram can be on this machine: no longer than the sender's buffer, whose default and limit are
    sysctls (seed "The uds_json plugin"). Only root can go past them, by SO_SNDBUFFORCE."""
    longest = RECEIVE_MIN_BYTES
    for path in _SENDER_LIMITS:
        try:
            with open(path, "rb") as file:
                longest = max(longest, int(file.read()))
        except (OSError, ValueError):
            pass  # another kernel's /proc: the buffer grows when it must
    return min(longest, RECEIVE_MAX_BYTES)
