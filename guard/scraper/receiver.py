# SPDX-License-Identifier: GPL-2.0-or-later
"""The receiving process's order: socket -> records -> lines -> spool, and nothing else, so that it is always there.

Sinks and all that may wait for a peer live in other processes. The socket belongs to the parent: if this process dies,
what is queued stays queued for the next one.
"""

import json
import os
import signal
import socket
import time

from guard.base.deadline import Deadline
from guard.base.faults import PeerFault
from guard.scraper import decode, line, losses, quarantine, receive, rejoin, spool
from guard.scraper.counters import Counters
from guard.scraper.limits import STOP_TRY_S, TICK_S
from guard.scraper.wake import Wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.scraper.config import Config

STATE = "chains.json"
_STALL_LOOK_S = 0.1


def run(
    config: "Config", sock: socket.socket, is_ours: bool, counters: Counters, lifeline_fd: int, number_min: int
) -> None:
    """Reads until SIGTERM or until the parent is gone, then until the kernel's queue is empty; keeps open chains.

    Takes: is_ours - we bound the socket, so that nobody can read it after us; lifeline_fd - readable once the parent is
    gone; number_min - a number that a sink has come to already.
    Raises: OSError - socket or spool cannot be used.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wake = Wake((signal.SIGTERM,), lifeline_fd)
    wake.register(sock.fileno())
    writer = spool.Writer(config.spool, number_min)
    chains = rejoin.Rejoin(config.join_unbuffered)
    _take_up(os.path.join(config.spool, STATE), chains)
    room = Room(config, chains, counters, writer, lambda: wake.has(signal.SIGTERM))
    receiver = receive.Receiver(sock, config.uids, receive.slot_bytes())
    log = losses.Losses(config.slurmd_log, config.spool) if config.slurmd_log else None
    for job_id, step_id in log.steps if log else ():
        chains.note_loss(job_id, step_id)
    looked_s = time.monotonic()
    # Before the first datagram: what was dropped while nobody read makes what it goes on with doubtful.
    room.look(log, looked_s)
    while not wake.has(signal.SIGTERM):
        batch = receiver.drain()
        room.take(batch)
        now_s = time.monotonic()
        if now_s - looked_s >= TICK_S:
            looked_s = now_s
            room.look(log, now_s)
            receiver.trim()
            wake.wait(0.0)
        if not batch.datagrams and not batch.refused:
            wake.wait(TICK_S)
    if is_ours:
        # From here on senders get EPIPE, and keep their record; what they had sent is still to be read.
        sock.shutdown(socket.SHUT_RD)
    deadline = Deadline(STOP_TRY_S)
    while deadline.left_s():
        batch = receiver.drain()
        room.take(batch)
        if not (batch.datagrams or batch.refused):
            break
    room.look(log, time.monotonic(), is_last=True)
    spool.replace(os.path.join(config.spool, STATE), json.dumps(list(chains.state())).encode("ascii"))
    spool.sync(config.spool)


class Room:
    """What happens to a batch. Public for its tests."""

    def __init__(
        self,
        config: "Config",
        chains: rejoin.Rejoin,
        counters: Counters,
        writer: spool.Writer,
        is_stopping: "Callable[[], bool]",
    ) -> None:
        self._config = config
        self._chains = chains
        self._counters = counters
        self._writer = writer
        self._is_stopping = is_stopping
        self._quarantine = quarantine.Quarantine(os.path.join(config.spool, "quarantine.ndjson"))
        # Where we are, for losses that slurmd's log tells of: it names neither cluster nor node.
        self._place = ("", socket.gethostname())
        # Go on where the process before this one stopped.
        for reason in rejoin.ENDS:
            chains.counts[reason] = counters.get("joined_lines_total", reason)
        chains.counts["pieces"] = counters.get("joined_records_total")
        chains.counts["doubtful"] = counters.get("doubtful_lines_total")

    def take(self, batch: receive.Batch) -> None:
        """Decodes, rejoins and spools one batch; returns when its lines are in the spool."""
        counters = self._counters
        push = self._chains.push
        now_s = time.monotonic()
        lines: list[bytes] = []
        size_bytes = 0
        record = decode.record
        fields = None
        for raw, received_ns, pid in batch.datagrams:
            size_bytes += len(raw)
            try:
                fields = record(raw)
            except PeerFault as fault:
                self._refuse(fault.code, raw, received_ns, pid, fault.detail)
                continue
            push(fields, raw, received_ns, pid, now_s, lines)
        if fields:
            self._place = (fields["slurm"]["cluster"], fields["slurm"]["node"])
        for code, head, pid in batch.refused:
            self._refuse(code, head, time.time_ns(), pid, "")
            if code == "truncated":
                self._chains.note_broken(pid)
        if batch.datagrams or batch.refused:
            counters.add("received_records_total", len(batch.datagrams) + len(batch.refused))
            counters.add("received_bytes_total", size_bytes + sum(len(head) for _, head, _ in batch.refused))
            self._spool(lines)

    def look(self, log: "losses.Losses | None", now_s: float, is_last: bool = False) -> None:
        """What is to be done now and then: drop reports, chains that are too old."""
        lines: list[bytes] = []
        reports = log.new() if log else []
        for report in reports:
            self._counters.add("drop_reports_total")
            if report.job_id is not None and report.step_id is not None:
                self._chains.note_loss(report.job_id, report.step_id)
            note = {"reported": report.text, **({} if report.count is None else {"dropped": report.count})}
            lines.append(line.loss(time.time_ns(), *self._place, report.job_id, report.step_id, note))
        self._chains.expire(now_s, lines)
        self._spool(lines)
        if log:
            try:
                log.keep(self._chains.lossy(), now_s, bool(reports) or is_last)
            except OSError:
                self._counters.add("spool_failures_total")
        self._tell()

    def _refuse(self, code: str, raw: bytes, received_ns: int, pid: int, detail: str) -> None:
        self._counters.add("refused_records_total", 1, code)
        if not self._quarantine.keep(received_ns, code, raw, pid=pid, detail=detail):
            self._counters.add("unkept_records_total")

    def _spool(self, lines: "list[bytes]") -> None:
        """Appends, however long that takes: while the disk is full the senders' own rings hold what comes, and they
        count what does not fit."""
        if not lines:
            return
        patience = Deadline(STOP_TRY_S)
        while True:
            try:
                self._writer.append(lines)
                break
            except OSError:
                self._counters.add("spool_failures_total")
            if not self._is_stopping():
                patience = Deadline(STOP_TRY_S)
            elif not patience.left_s():
                self._counters.add("lost_lines_total", len(lines))
                return
            time.sleep(_STALL_LOOK_S)
        self._counters.add("lines_total", len(lines))

    def _tell(self) -> None:
        """Makes the counters say what the chains have counted."""
        counts = self._chains.counts
        for reason in rejoin.ENDS:
            self._counters.set("joined_lines_total", counts[reason], reason)
        self._counters.set("joined_records_total", counts["pieces"])
        self._counters.set("doubtful_lines_total", counts["doubtful"])
        self._counters.set("open_chains", self._chains.count())
        self._counters.set("open_chain_bytes", self._chains.size_bytes)
        self._counters.set("spool_lines", self._writer.number)


def _take_up(path: str, chains: rejoin.Rejoin) -> None:
    """Takes up the chains that the last process kept. They are taken once: if this process is killed, they are gone
    rather than given twice."""
    try:
        with open(path, "rb") as file:
            chains.restore(json.loads(file.read()), time.monotonic())
    except (OSError, PeerFault, KeyError, TypeError, ValueError):
        pass
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
