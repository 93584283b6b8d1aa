# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries for systemd-journald by its native protocol: one datagram, or a sealed memfd for a long one. World room.

Source: systemd's docs/JOURNAL_NATIVE_PROTOCOL.md.
"""

import array
import errno
import fcntl
import os
import socket

from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.scraper import decode
from guard.scraper.limits import ATTEMPT_S, SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks import facts
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.scraper.sinks.verdict import Item

SOCKET = "/run/systemd/journal/socket"
_PRIORITY = {"stdout": "6", "stderr": "5"}
# fcntl.F_ADD_SEALS is there from Python 3.9 on only where the C library was new; linux/fcntl.h.
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4 | 0x8


class JournaldSink:
    """path: journald's native socket; identifier: SYSLOG_IDENTIFIER, what `journalctl -t` takes."""

    def __init__(self, path: str, identifier: str) -> None:
        self.lines_max = SINK_BATCH_RECORDS
        self.bytes_max = SINK_BATCH_BYTES
        self._path = path
        self._identifier = identifier
        self._sock: "socket.socket | None" = None

    def send(self, items: "list[Item]") -> Verdict:
        """Sends all, in order; a full socket of journald is waited for."""
        deadline = Deadline(ATTEMPT_S)
        for index, (item_id, line) in enumerate(items):
            try:
                self._send(entry(item_id, line, self._identifier), deadline)
            except OSError as error:
                self.reopen()
                why = f"{self._path}: {error.strerror or error}"
                if not index:
                    raise NodeFault("sink-failed", why)
                return Verdict(retry=list(range(index, len(items))), why=why)
        return Verdict()

    def reopen(self) -> None:
        """Connects anew for the next batch."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def idle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Ends the connection."""
        self.reopen()

    def _send(self, data: bytes, deadline: Deadline) -> None:
        if self._sock is None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.settimeout(deadline.left_s() or 0.001)
            self._sock.connect(self._path)
        self._sock.settimeout(deadline.left_s() or 0.001)
        try:
            self._sock.send(data)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            fd = os.memfd_create("relay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                written = 0
                while written < len(data):
                    written += os.write(fd, data[written:])
                fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
                self._sock.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            finally:
                os.close(fd)


def entry(item_id: str, line: bytes, identifier: str) -> bytes:
    """One journal entry. Pure. Names in the journal: SLURM_ and the fact's name in capitals."""
    fields = decode.quick_loads(line)
    found = {f"SLURM_{name.upper()}": value for name, value in facts.flat(fields).items()}
    found["MESSAGE"] = facts.text(fields)
    found["PRIORITY"] = _PRIORITY.get(fields.get("stream", ""), "6")
    found["SYSLOG_IDENTIFIER"] = identifier
    found["SLURM_TIME"] = str(fields["time"])
    found["RELAY_ID"] = item_id
    return b"".join(_field(name.encode("ascii"), value.encode("utf-8")) for name, value in found.items())


def _field(name: bytes, value: bytes) -> bytes:
    if b"\n" in value:
        return b"%b\n%b%b\n" % (name, len(value).to_bytes(8, "little"), value)
    return b"%b=%b\n" % (name, value)
