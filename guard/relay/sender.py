# SPDX-License-Identifier: GPL-2.0-or-later
"""Ring -> the scraper's datagram socket, waiting only where it is allowed to. World room; the clock is an argument.

Seed relay_io, "The uds_json plugin" and "Delivery". Whoever owns a Sender calls pump() when next_ms() is due, when fd()
has become writable while wants_write(), and after it has pushed records.
"""

import errno
import mmap
import os
import select
import socket
import stat
import struct
import time

from guard.relay import limits
from guard.relay.datagrams import PLACE_BYTES, Window
from guard.relay.ring import Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The socket has no room now. ENOMEM, as ENOBUFS: the kernel found no memory for the datagram.
_NO_ROOM = (errno.ENOBUFS, errno.ENOMEM)
# Records a call: with a ring of a GiB and a fast scraper, its taps must be looked at in between.
_PUMP_MOST_COUNT = 4096
_NEVER = float("inf")
_TIMEVAL = struct.Struct("ll")


class Sender:
    """The one connection of a daemon or worker to the scraper.

    Takes: path - the scraper's socket; owners - uids that may own it and its folder; log - a sentence for the relay's
    log, made into a line by whoever owns that; now_ms - the monotonic clock, here and in every call; window - where its
    count of what was sent must outlive this process.
    """

    def __init__(
        self,
        path: str,
        owners: "frozenset[int]",
        ring: Ring,
        log: "Callable[[str], None]",
        is_protocol_debug: bool,
        now_ms: int,
        window: "Window | None" = None,
    ) -> None:
        self._path = path
        self._owners = owners
        self._ring = ring
        self._log = log
        self._is_protocol_debug = is_protocol_debug
        self._socket: "socket.socket | None" = None
        self._backoff_ms = limits.BACKOFF_FIRST_MS
        self._try_ms: float = now_ms
        self._reason = ""
        self._is_blocked = False
        self._is_reading = True
        self._window = window or Window(mmap.mmap(-1, PLACE_BYTES), 0)

    def fd(self) -> "int | None":
        """What to poll; None when there is no connection."""
        return self._socket.fileno() if self._socket else None

    def wants_write(self) -> bool:
        """Whether records wait for room in the socket, so that POLLOUT is worth waiting for."""
        return self._is_blocked and self._socket is not None and self._try_ms == _NEVER

    def next_ms(self) -> float:
        """When pump() is due even if nothing happens."""
        return min(self._try_ms, self._ring.next_report_ms())

    def pump(self, now_ms: int, patience_ms: int = 0) -> None:
        """Connects if that is due, and sends until the ring is empty or the socket full. Reports drops when due.

        Takes: patience_ms - how long, about, it may wait for room in the socket of a scraper that reads. One that did
        not read at all in that time gets no such wait until it does. The kernel queues few datagrams (10 by
        default): without it, every record of a burst costs a round through the caller's poll.
        """
        if self._socket is None and self._try_ms <= now_ms:
            self._connect(now_ms)
        if self._socket is not None:
            self._send(self._socket, now_ms, patience_ms)
        for line in self._ring.reports(now_ms):
            self._say(line)

    def drain(self, clock_ms: "Callable[[], int]", drain_ms: int) -> None:
        """Sends what it can until the ring is empty or drain_ms are over, and tells the totals; the ring ends empty.

        Without a connection there is one more attempt, and no waiting (seed, "Delivery").
        """
        end_ms = clock_ms() + drain_ms
        has_tried = False
        while self._ring.records:
            now_ms = clock_ms()
            if now_ms >= end_ms:
                break
            if self._socket is None:
                if has_tried:
                    break
                has_tried = True
                self._try_ms = now_ms
            self.pump(now_ms, min(limits.PATIENCE_MS, end_ms - now_ms))
            if self._socket is not None and self._ring.records and self._try_ms > now_ms:
                poll = select.poll()
                if self.wants_write():
                    poll.register(self._socket, select.POLLOUT)
                poll.poll(max(0, min(end_ms, self._try_ms) - clock_ms()))
        self._ring.drop_rest()
        for line in self._ring.reports(clock_ms(), is_final=True):
            self._say(line)

    def close(self) -> None:
        """Gives the connection up, without a further attempt."""
        if self._socket:
            self._socket.close()
        self._socket = None

    def _connect(self, now_ms: int) -> None:
        reason = refusal(self._path, self._owners)
        if reason and reason != self._reason:
            self._say(f"not connecting, {reason}")
        self._reason = reason
        if not reason:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            # Blocking, but not for long: a send that may wait does so in the kernel.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 1000 * limits.SEND_WAIT_MS))
            try:
                connection.connect(self._path)
            except OSError as error:
                connection.close()
                if self._is_protocol_debug:
                    self._say(f"connect() failed: {error.strerror}")
            else:
                self._socket = connection
                self._try_ms = _NEVER
                return
        self._retry_later(now_ms)

    def _retry_later(self, now_ms: int) -> None:
        self._try_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, limits.BACKOFF_MOST_MS)

    def _send(self, connection: "socket.socket", now_ms: int, patience_ms: int) -> None:
        """Sends from the left of the ring. A record leaves the ring only once it is sent, so one that was in flight
        when the connection broke is at the front again, or dropped like any other oldest one."""
        records = self._ring.records
        window = self._window
        self._is_blocked = False
        self._try_ms = _NEVER
        count = failure = 0
        window_count = limits.WINDOW_FIRST_COUNT
        send_count = limits.SEND_FIRST_COUNT
        flags = int(socket.MSG_DONTWAIT)
        end_ns = 0
        if patience_ms > 0 and self._is_reading:
            flags = 0
            end_ns = time.monotonic_ns() + patience_ms * 1_000_000
        while records and count < _PUMP_MOST_COUNT and not failure:
            window.load(records, window_count)
            window_count = min(2 * window_count, limits.WINDOW_MOST_COUNT)
            loaded_count = len(window.lengths)
            at = 0
            while at < loaded_count:
                try:
                    at += window.send(connection, at, send_count, flags)
                    # Twice as many take, at the same pace, about as long as all before: patience is kept, nearly.
                    send_count = min(2 * send_count, limits.SEND_MOST_COUNT)
                except InterruptedError:
                    pass
                except OSError as error:
                    failure = error.errno or errno.EIO
                    break
                if not flags and time.monotonic_ns() >= end_ns:
                    flags = int(socket.MSG_DONTWAIT)
            self._ring.take(at)
            count += at
            if failure == errno.EMSGSIZE:
                self._ring.drop_oversize()
                failure = 0
        if count or failure == errno.EAGAIN:
            self._is_reading = bool(count)
        if count:
            self._backoff_ms = limits.BACKOFF_FIRST_MS
        if failure in (errno.EAGAIN, *_NO_ROOM):
            self._is_blocked = True
            if failure != errno.EAGAIN:
                self._try_ms = now_ms + limits.NO_BUFFERS_PAUSE_MS
        elif failure:
            # ECONNREFUSED, ENOTCONN: the scraper went. Whatever else it is, a new connection is the way on.
            self.close()
            self._retry_later(now_ms)
        elif records:
            self._try_ms = now_ms

    def _say(self, sentence: str) -> None:
        self._log(f"[{self._path}] {sentence}")


def refusal(path: str, owners: "frozenset[int]") -> str:
    """Why nothing may be sent to this path now, or nothing.

    lstat: a link in the safe folder to a socket elsewhere would make the look at the folder worthless.
    """
    try:
        folder = os.stat(os.path.dirname(path))
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "the relay_io socket is not present"
    except OSError as error:
        return f"the relay_io socket cannot be looked at: {error.strerror}"
    if not stat.S_ISSOCK(found.st_mode):
        return "the relay_io socket path is not a socket"
    if found.st_uid not in owners:
        return f"the relay_io socket is owned by uid {found.st_uid}, not by root or SlurmdUser"
    if folder.st_uid not in owners:
        return f"the directory of the relay_io socket is owned by uid {folder.st_uid}, not by root or SlurmdUser"
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "the directory of the relay_io socket is writable by group or other"
    return ""
