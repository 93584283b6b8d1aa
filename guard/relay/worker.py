# SPDX-License-Identifier: GPL-2.0-or-later
"""One process for one step, the part that slurmstepd plays in Slurm 26.11: taps in, records out. Order room.

The daemon forks it with a listening socket; over connections to that socket the daemon hands in each tap of the step
(SCM_RIGHTS) and tells of the job's end. Nothing else connects the two, so either may die or be started anew without
the other noticing. The worker reads from its taps in turn and never waits for the scraper: what cannot be sent waits in
the ring. A tap is held by its own full socket when records cannot be made fast enough (seed relay_io, "Delivery").
"""

import os
import select
import socket
import time

from guard.base.watch import Watch
from guard.relay import frames, limits
from guard.relay.intake import BYE, OPEN, Intake, Tap
from guard.relay.sender import Sender
from guard.relay.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# How long taps may go on after their job has ended, in ms.
_AFTER_JOB_MS = 2000


class Plan:
    """What a worker is to do. slurm: identity for its step records; is_resumed: a worker of this step died before,
    step_start is out; names: what the worker must unlink when the step is over, its own socket first; tally: the path
    of its tally."""

    __slots__ = ("is_resumed", "names", "settings", "slurm", "tally", "waits_for_job_end")

    def __init__(
        self,
        slurm: "dict[str, object]",
        settings: Settings,
        is_resumed: bool,
        waits_for_job_end: bool,
        names: "tuple[str, ...]",
        tally: str,
    ) -> None:
        self.slurm = slurm
        self.settings = settings
        self.is_resumed = is_resumed
        self.waits_for_job_end = waits_for_job_end
        self.names = names
        self.tally = tally


def run(listener: "socket.socket", plan: Plan, log: "Callable[[str], None]") -> None:
    """Serves the step until it is over, sends what is left and returns."""
    with Watch() as watch:
        worker = _Worker(listener, plan, log, watch)
        worker.serve()
        worker.finish()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _tells_end(connection: "socket.socket") -> bool:
    """Whether this is a daemon that tells of the job's end; a tap that it hands in is let go."""
    try:
        packet, fds, _, _ = socket.recv_fds(connection, frames.PACKET_MAX_BYTES, 1)
    except OSError:
        return False
    for fd in fds:
        os.close(fd)
    return bool(packet) and frames.unpack(packet).kind == frames.EVENT


class _Worker:
    def __init__(self, listener: "socket.socket", plan: Plan, log: "Callable[[str], None]", watch: Watch) -> None:
        settings = plan.settings
        self._plan = plan
        self._log = log
        self._watch = watch
        self._listener = listener
        self._daemons: "dict[int, socket.socket]" = {}
        # Over these the daemon has told of the job's end; it waits for their end, which is ours.
        self._enders: "list[socket.socket]" = []
        self._intake = Intake(plan.slurm, settings, plan.tally, log)
        self._sender = Sender(
            settings.socket,
            settings.owners,
            self._intake.ring,
            log,
            settings.is_protocol_debug,
            _now_ms(),
            self._intake.window,
        )
        self._sender_fd: "int | None" = None
        # When the step is over if no tap comes; infinity while there are taps, or where job_end will tell.
        self._end_ms: float = _now_ms() + limits.STEP_LINGER_S * 1000
        self._poll = select.epoll()
        self._poll.register(watch.fd, select.EPOLLIN)
        self._poll.register(listener, select.EPOLLIN)
        if not plan.is_resumed:
            self._intake.begin()

    def serve(self) -> None:
        while not self._watch.is_stopped():
            now_ms = _now_ms()
            if now_ms >= self._end_ms:
                return
            ready = self._poll.poll(0)
            # With nothing to read there is time to wait for the scraper; with something, _read_tap() is followed by it.
            self._pump(0 if ready else limits.PATIENCE_MS)
            if not ready:
                next_ms = min(self._end_ms, self._sender.next_ms(), self._look_ms())
                ready = self._poll.poll(max(0.0, next_ms - _now_ms()) / 1000 if next_ms < float("inf") else None)
            for fd, _ in ready:
                if fd in self._intake.taps:
                    self._read_tap(self._intake.taps[fd])
                    self._pump(limits.PATIENCE_MS)
                elif fd in self._daemons:
                    self._read_daemon(self._daemons[fd])
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == self._watch.fd:
                    self._watch.drain()

    def _look_ms(self) -> float:
        """When to look again whether a worker without taps can still be found; ends one that cannot."""
        if self._intake.taps or self._end_ms < float("inf"):
            return float("inf")
        if not os.path.exists(self._plan.names[0]):
            self._end_ms = 0  # its job's folder is gone: nobody will ever tell it of the end
        return min(self._end_ms, _now_ms() + limits.LONELY_LOOK_S * 1000)

    def finish(self) -> None:
        """Nobody finds this worker any more; what is held becomes records; step_end; drain."""
        # First of all: without its names the next worker may be there at once, with a tally in this one's place.
        self._intake.step_aside()
        for name in self._plan.names:
            try:
                os.unlink(name)
            except OSError:
                pass
        while self._accept():
            pass
        # At once, before the drain: a tap that is still there finds the next worker instead of waiting for us.
        self._listener.close()
        self._intake.end()
        for connection in self._daemons.values():
            # A daemon that has told of the end, not heard yet, waits for ours. Another has a tap in it, perhaps.
            if _tells_end(connection):
                self._enders.append(connection)
            else:
                connection.close()
        self._sender.drain(_now_ms, int(limits.DRAIN_S * 1000))
        self._intake.report()

    def _pump(self, patience_ms: int) -> None:
        """Sends, and polls the sender's socket exactly while records wait for room in it.

        Both at once: a number that the sender has closed is given to the next socket that is opened.
        """
        self._sender.pump(_now_ms(), patience_ms)
        fd = self._sender.fd() if self._sender.wants_write() else None
        if fd != self._sender_fd:
            if self._sender_fd is not None:
                try:
                    self._poll.unregister(self._sender_fd)
                except OSError:
                    pass  # closed meanwhile: the kernel took it out
            if fd is not None:
                self._poll.register(fd, select.EPOLLOUT)
            self._sender_fd = fd

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False
        connection.setblocking(False)
        self._daemons[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN)
        return True

    def _read_daemon(self, connection: "socket.socket") -> None:
        """A tap that the daemon hands in, or the job's end."""
        fds: "list[int]" = []
        try:
            packet, fds, _, _ = socket.recv_fds(connection, frames.PACKET_MAX_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._poll.unregister(connection)
            del self._daemons[connection.fileno()]
            connection.close()
            return
        frame = frames.unpack(packet)
        if frame.kind == frames.EVENT:
            self._poll.unregister(connection)
            self._enders.append(self._daemons.pop(connection.fileno()))
            self._end_ms = _now_ms() + (_AFTER_JOB_MS if self._intake.taps else 0)
            self._plan.waits_for_job_end = False
        elif fds:
            is_whole_step = frames.fields_of(frame.payload).get("whole_step") == b"1"
            tap = socket.socket(fileno=fds[0])
            if self._intake.add(tap, is_whole_step):
                self._poll.register(tap, select.EPOLLIN)
                self._end_ms = float("inf")

    def _read_tap(self, tap: Tap) -> None:
        state = self._intake.read(tap)
        if state == OPEN:
            return
        self._poll.unregister(tap.socket)
        self._intake.drop(tap)
        is_last = not self._intake.taps
        if tap.is_whole_step and state == BYE and not self._intake.has_whole_step():
            self._end_ms = 0
        elif is_last and self._end_ms == float("inf"):
            waits = self._plan.waits_for_job_end and not tap.is_whole_step
            self._end_ms = float("inf") if waits else _now_ms() + limits.STEP_LINGER_S * 1000
        elif is_last and not self._plan.waits_for_job_end:
            self._end_ms = min(self._end_ms, _now_ms())
