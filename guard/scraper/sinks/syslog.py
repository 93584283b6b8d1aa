# SPDX-License-Identifier: GPL-2.0-or-later
"""RFC 5424 messages to a syslog daemon: TCP with octet counting (RFC 6587), UDP, or a unix socket. World room.

Syslog has no receipt. Over TCP a batch counts as delivered once the peer's kernel has acknowledged its last byte
(SIOCOUTQ), which is as near as the protocol lets one come; docs/scraper.md says what that leaves open.
"""

import errno
import fcntl
import os
import socket
import struct
import time

from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.scraper.limits import ATTEMPT_S, SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks import rfc5424
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.scraper.sinks.verdict import Item

# Bytes that the peer has not acknowledged: linux/sockios.h, the same number as TIOCOUTQ.
_SIOCOUTQ = 0x5411
_ACK_LOOK_S = 0.002


class SyslogSink:
    """transport: "tcp", "udp" or "unix"; address: (host, port), or the path of the unix socket."""

    def __init__(self, transport: str, address: "tuple[str, int] | str", facility: int, app: str) -> None:
        self.lines_max = SINK_BATCH_RECORDS
        self.bytes_max = SINK_BATCH_BYTES
        self._transport = transport
        self._address = address
        self._facility = facility
        self._app = app
        self._sock: "socket.socket | None" = None
        self._is_stream = transport == "tcp"

    def send(self, items: "list[Item]") -> Verdict:
        """Sends all, in order. A datagram that is too long for the transport is refused alone."""
        messages = [rfc5424.render(item_id, line, self._facility, self._app) for item_id, line in items]
        deadline = Deadline(ATTEMPT_S)
        try:
            sock = self._connected(deadline)
            if self._is_stream:
                self._send_stream(sock, messages, deadline)
                return Verdict()
            return self._send_datagrams(sock, messages, deadline)
        except OSError as error:
            self.reopen()
            raise NodeFault("sink-failed", f"{self._address}: {error.strerror or error}")

    def reopen(self) -> None:
        """Ends the connection; the next batch makes a new one."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def idle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Ends the connection in order, so that what was sent arrives."""
        self.reopen()

    def _connected(self, deadline: Deadline) -> socket.socket:
        if self._sock is not None and self._is_stream and _is_cut(self._sock):
            self.reopen()
        if self._sock is None:
            self._sock = self._connect(deadline)
        return self._sock

    def _connect(self, deadline: Deadline) -> socket.socket:
        if isinstance(self._address, str):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                sock.settimeout(deadline.left_s())
                sock.connect(self._address)
            except OSError as error:
                sock.close()
                # rsyslog and syslog-ng can be told to listen on a stream socket instead.
                if error.errno != errno.EPROTOTYPE:
                    raise
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._is_stream = True
                sock.settimeout(deadline.left_s())
                sock.connect(self._address)
            return sock
        if self._transport == "tcp":
            return socket.create_connection(self._address, timeout=deadline.left_s())
        last: OSError = OSError(f"no address for {self._address[0]}")
        for family, kind, protocol, _, address in socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM):
            try:
                sock = socket.socket(family, kind, protocol)
                sock.connect(address)
                return sock
            except OSError as error:
                last = error
        raise last

    def _send_stream(self, sock: socket.socket, messages: "list[bytes]", deadline: Deadline) -> None:
        sock.settimeout(deadline.left_s() or 0.001)
        sock.sendall(b"".join(b"%d %b" % (len(message), message) for message in messages))
        while True:
            (left_bytes,) = struct.unpack("i", fcntl.ioctl(sock, _SIOCOUTQ, bytes(4)))
            # A reset empties no queue, and a queue emptied by an end tells nothing.
            if _is_cut(sock):
                raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if not left_bytes:
                return
            if not deadline.left_s():
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            time.sleep(_ACK_LOOK_S)

    def _send_datagrams(self, sock: socket.socket, messages: "list[bytes]", deadline: Deadline) -> Verdict:
        refused: dict[int, str] = {}
        for index, message in enumerate(messages):
            try:
                sock.settimeout(deadline.left_s() or 0.001)
                sock.send(message)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    refused[index] = f"{len(message)} bytes are too many for one datagram"
                    continue
                if not index:
                    raise
                self.reopen()
                return Verdict(refused, list(range(index, len(messages))), why=error.strerror or str(error))
        return Verdict(refused)


def _is_cut(sock: socket.socket) -> bool:
    """Whether the peer has ended the connection: a syslog daemon never says anything, so all that comes is the end."""
    # A socket with a timeout would wait for it, MSG_DONTWAIT or not.
    sock.settimeout(0)
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
