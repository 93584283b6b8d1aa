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

from guard.base.faults import PeerFault
from guard.base.watch import Watch
from guard.relay import frames, limits
from guard.relay.frames import Frame
from guard.relay.ring import Ring
from guard.relay.sender import Sender
from guard.relay.settings import Settings
from guard.relay.step import Key, Step, key_of, loss
from guard.relay.tally import Tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# What is taken from one tap before the next has its turn, and before what it became is sent: packets, and bytes. More
# at once would only fill the ring, and be read from memory again instead of from the processor's cache.
_TURN_COUNT = 8
_TURN_BYTES = limits.FRAME_PAYLOAD_MAX_BYTES
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


class _Tap:
    """slot, taken_bytes: its place in the tally and what stands there."""

    __slots__ = ("is_whole_step", "keys", "slot", "socket", "taken_bytes")

    def __init__(self, connection: "socket.socket", is_whole_step: bool, slot: int) -> None:
        self.socket = connection
        self.is_whole_step = is_whole_step
        self.slot = slot
        self.taken_bytes = 0
        self.keys: "set[Key]" = set()


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
        self._taps: "dict[int, _Tap]" = {}
        self._step = Step(plan.slurm, settings.max_log_bytes)
        self._tally = Tally(plan.tally)
        self._ring = Ring(settings.stepd_ring_bytes, self._tally.pushed_count, self._tally.dropped_count)
        self._sender = Sender(
            settings.socket,
            settings.owners,
            self._ring,
            log,
            settings.is_protocol_debug,
            _now_ms(),
            self._tally.window,
        )
        self._sender_fd: "int | None" = None
        # When the step is over if no tap comes; infinity while there are taps, or where job_end will tell.
        self._end_ms: float = _now_ms() + limits.STEP_LINGER_S * 1000
        self._refused_count = 0
        self._told_count = 0
        self._poll = select.epoll()
        self._poll.register(watch.fd, select.EPOLLIN)
        self._poll.register(listener, select.EPOLLIN)
        if not plan.is_resumed:
            self._push([self._step.start(time.time_ns())])

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
                if fd in self._taps:
                    self._read_tap(self._taps[fd])
                    self._pump(limits.PATIENCE_MS)
                elif fd in self._daemons:
                    self._read_daemon(self._daemons[fd])
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == self._watch.fd:
                    self._watch.drain()

    def _look_ms(self) -> float:
        """When to look again whether a worker without taps can still be found; ends one that cannot."""
        if self._taps or self._end_ms < float("inf"):
            return float("inf")
        if not os.path.exists(self._plan.names[0]):
            self._end_ms = 0  # its job's folder is gone: nobody will ever tell it of the end
        return min(self._end_ms, _now_ms() + limits.LONELY_LOOK_S * 1000)

    def finish(self) -> None:
        """Nobody finds this worker any more; what is held becomes records; step_end; drain."""
        for name in self._plan.names:
            try:
                os.unlink(name)
            except OSError:
                pass
        self._tally.step_aside()
        while self._accept():
            pass
        # At once, before the drain: a tap that is still there finds the next worker instead of waiting for us.
        self._listener.close()
        for tap in list(self._taps.values()):
            self._drop_tap(tap, False)
        for connection in self._daemons.values():
            # A daemon that has told of the end, not heard yet, waits for ours. Another has a tap in it, perhaps.
            if _tells_end(connection):
                self._enders.append(connection)
            else:
                connection.close()
        now_ns = time.time_ns()
        self._push([*self._step.close(self._step.open_keys(), now_ns), self._step.end(now_ns)])
        self._sender.drain(_now_ms, int(limits.DRAIN_S * 1000))
        self._tally.remove()
        if self._refused_count:
            self._log(f"relay refused {self._refused_count} taps that sent what is no frame")
        if self._told_count > limits.TOLD_MOST_COUNT:
            self._log(f"relay was told {self._told_count - limits.TOLD_MOST_COUNT} more by taps, not logged")

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
            self._end_ms = _now_ms() + (_AFTER_JOB_MS if self._taps else 0)
            self._plan.waits_for_job_end = False
        elif fds:
            is_whole_step = frames.fields_of(frame.payload).get("whole_step") == b"1"
            tap = socket.socket(fileno=fds[0])
            if len(self._taps) >= limits.TAPS_MOST_COUNT:
                tap.close()
                return
            tap.setblocking(False)
            if not is_whole_step and any(other.is_whole_step for other in self._taps.values()):
                # `relay exec` below a tap that takes the whole step: its output passes there already.
                self._tell(tap, frames.answer(frames.NO, "another tap relays this step"))
                tap.close()
                return
            slot = self._tally.take_slot(self._ring.pushed_count)
            self._taps[tap.fileno()] = _Tap(tap, is_whole_step, slot)
            self._poll.register(tap, select.EPOLLIN)
            self._welcome(tap, slot)
            self._end_ms = float("inf")

    def _welcome(self, tap: "socket.socket", slot: int) -> None:
        cap_bytes = self._plan.settings.max_log_bytes
        fields = {
            "code": b"%d" % frames.YES,
            "stream_buffer_bytes": b"%d" % max(limits.STREAM_BUFFER_BYTES, 2 * cap_bytes),
            "max_log_bytes": b"%d" % cap_bytes,
        }
        fds = []
        if self._tally.fd is not None:
            fields["tally_slot"] = b"%d" % slot
            fds.append(self._tally.fd)
        try:
            socket.send_fds(tap, [frames.pack(Frame(frames.ANSWER, frames.fields_payload(fields)))], fds)
        except OSError:
            pass  # it does not read, or is gone: its own affair

    def _read_tap(self, tap: _Tap) -> None:
        taken_bytes = 0
        for _ in range(_TURN_COUNT):
            if taken_bytes >= _TURN_BYTES:
                return
            try:
                packet = tap.socket.recv(frames.PACKET_MAX_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            taken_bytes += len(packet)
            try:
                if not packet or self._take(tap, frames.unpack(packet)):
                    self._drop_tap(tap, bool(packet))
                    return
            except PeerFault as fault:
                if not self._refused_count:
                    self._log(f"relay refuses a tap: {fault.detail}")
                self._refused_count += 1
                self._drop_tap(tap, False)
                return

    def _take(self, tap: _Tap, frame: Frame) -> bool:
        """Turns one frame into records; says whether the tap is done."""
        held_bytes = self._step.held_bytes
        if frame.kind == frames.DATA:
            records = self._step.data(frame)
            self._push(records, tap, len(frame.payload) + held_bytes - self._step.held_bytes)
            tap.keys.add(key_of(frame))
        elif frame.kind == frames.END:
            records = self._step.close([key_of(frame)], time.time_ns())
            self._push(records, tap, held_bytes - self._step.held_bytes)
            tap.keys.discard(key_of(frame))
        elif frame.kind == frames.LOST:
            # What was held is cut off here: joined to what comes after the gap it would look whole.
            records = self._step.close([key_of(frame)], time.time_ns())
            self._log_told(loss(frame))
            self._push(records, tap, frames.count_of(frame) + held_bytes - self._step.held_bytes)
        elif frame.kind == frames.NOTE:
            note = frame.payload[: limits.NOTE_MAX_BYTES].decode("utf-8", "replace")
            self._log_told("relay: " + "".join(character if character.isprintable() else "?" for character in note))
        elif frame.kind == frames.DRAIN:
            self._tell(tap.socket, frames.pack(Frame(frames.DRAINED)))
        elif frame.kind == frames.BYE:
            return True
        else:
            raise PeerFault("bad-frame", f"kind {frame.kind} from a tap")
        return False

    def _push(self, records: "list[bytes]", tap: "_Tap | None" = None, taken_bytes: int = 0) -> None:
        """Records to be sent, made of so many bytes more of what this tap sent."""
        self._ring.push(records)
        if tap is None:
            self._tally.commit(self._ring.pushed_count)
        else:
            tap.taken_bytes += taken_bytes
            self._tally.commit(self._ring.pushed_count, tap.slot, tap.taken_bytes)

    def _log_told(self, line: str) -> None:
        """Logs what a tap says, up to a bound: taps are any user's, the log is the node's."""
        self._told_count += 1
        if self._told_count <= limits.TOLD_MOST_COUNT:
            self._log(line)

    def _drop_tap(self, tap: _Tap, has_said_bye: bool) -> None:
        held_bytes = self._step.held_bytes
        records = self._step.close(tap.keys, time.time_ns())
        self._push(records, tap, held_bytes - self._step.held_bytes)
        self._poll.unregister(tap.socket)
        del self._taps[tap.socket.fileno()]
        self._tally.give_slot(tap.slot)
        tap.socket.close()
        if tap.is_whole_step and has_said_bye:
            self._end_ms = 0
        elif not self._taps and self._end_ms == float("inf"):
            waits = self._plan.waits_for_job_end and not tap.is_whole_step
            self._end_ms = float("inf") if waits else _now_ms() + limits.STEP_LINGER_S * 1000
        elif not self._taps and not self._plan.waits_for_job_end:
            self._end_ms = min(self._end_ms, _now_ms())

    def _tell(self, connection: "socket.socket", packet: bytes) -> None:
        try:
            connection.send(packet)
        except OSError:
            pass  # it does not read, or is gone: its own affair
