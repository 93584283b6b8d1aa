# SPDX-License-Identifier: GPL-2.0-or-later
"""What the taps of one step send -> records in the ring, and the tally of both. World room.

A tap is read in turns, so that none keeps another waiting. It may be any user's: what it sends that is no frame ends
its connection, and what it says for the log has a bound.
"""

import socket
import time

from guard.base.faults import PeerFault
from guard.relay import frames, limits
from guard.relay.frames import Frame
from guard.relay.ring import Ring
from guard.relay.settings import Settings
from guard.relay.step import Key, Step, key_of, loss
from guard.relay.tally import Tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# What is taken from one tap before the next has its turn, and before what it became is sent: packets, and bytes. More
# at once would only fill the ring, and be read from memory again instead of from the processor's cache.
_TURN_COUNT = 8
_TURN_BYTES = limits.FRAME_PAYLOAD_MAX_BYTES

# What a turn leaves of a tap: more may come; it closed, or had to be; it said BYE.
OPEN, CLOSED, BYE = range(3)


class Tap:
    """One connection. slot, taken_bytes: its place in the tally and what stands there."""

    __slots__ = ("is_whole_step", "keys", "slot", "socket", "taken_bytes")

    def __init__(self, connection: "socket.socket", is_whole_step: bool, slot: int) -> None:
        self.socket = connection
        self.is_whole_step = is_whole_step
        self.slot = slot
        self.taken_bytes = 0
        self.keys: "set[Key]" = set()


class Intake:
    """All taps of a step on this node, by their fds.

    Takes: slurm - the identity in its records; path - of its tally; log - a line for the relay's log. ring: the records
    that wait; window: for their sender.
    """

    def __init__(
        self, slurm: "Mapping[str, object]", settings: Settings, path: str, log: "Callable[[str], None]"
    ) -> None:
        self._settings = settings
        self._log = log
        self._step = Step(slurm, settings.max_log_bytes)
        self._tally = Tally(path)
        self.ring = Ring(settings.stepd_ring_bytes, self._tally.pushed_count, self._tally.dropped_count)
        self.window = self._tally.window
        self.taps: "dict[int, Tap]" = {}
        self._refused_count = 0
        self._told_count = 0

    def has_whole_step(self) -> bool:
        """Whether a tap is here that takes all tasks of the step."""
        return any(tap.is_whole_step for tap in self.taps.values())

    def begin(self) -> None:
        """The step begins."""
        self._push([self._step.start(time.time_ns())])

    def add(self, connection: "socket.socket", is_whole_step: bool) -> bool:
        """Welcomes a tap; False: it was let go."""
        if len(self.taps) >= limits.TAPS_MOST_COUNT:
            connection.close()
            return False
        connection.setblocking(False)
        if not is_whole_step and self.has_whole_step():
            # `relay exec` below a tap that takes the whole step: its output passes there already.
            _tell(connection, frames.answer(frames.NO, "another tap relays this step"))
            connection.close()
            return False
        tap = Tap(connection, is_whole_step, self._tally.take_slot(self.ring.pushed_count))
        self.taps[connection.fileno()] = tap
        self._welcome(tap)
        return True

    def read(self, tap: Tap) -> int:
        """Takes one turn; gives OPEN, CLOSED or BYE. After the last two the tap is to be dropped."""
        taken_bytes = 0
        for _ in range(_TURN_COUNT):
            if taken_bytes >= _TURN_BYTES:
                break
            try:
                packet = tap.socket.recv(frames.PACKET_MAX_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                return CLOSED
            taken_bytes += len(packet)
            try:
                if self._take(tap, frames.unpack(packet)):
                    return BYE
            except PeerFault as fault:
                if not self._refused_count:
                    self._log(f"relay refuses a tap: {fault.detail}")
                self._refused_count += 1
                return CLOSED
        return OPEN

    def drop(self, tap: Tap) -> None:
        """Closes a tap; its streams are over."""
        held_bytes = self._step.held_bytes
        records = self._step.close(tap.keys, time.time_ns())
        self._push(records, tap, held_bytes - self._step.held_bytes)
        del self.taps[tap.socket.fileno()]
        self._tally.give_slot(tap.slot, self.ring.pushed_count)
        tap.socket.close()

    def step_aside(self) -> None:
        """What is counted from here on is not the next worker's, should the step have one."""
        self._tally.step_aside()

    def end(self) -> None:
        """The step is over for everybody; what is held becomes records."""
        for tap in list(self.taps.values()):
            self.drop(tap)
        self._push([self._step.end(time.time_ns())])

    def report(self) -> None:
        """Everything was sent or counted: nobody needs the tally; what is left for the log."""
        self._tally.remove()
        if self._refused_count:
            self._log(f"relay refused {self._refused_count} taps that sent what is no frame")
        if self._told_count > limits.TOLD_MOST_COUNT:
            self._log(f"relay was told {self._told_count - limits.TOLD_MOST_COUNT} more by taps, not logged")

    def _welcome(self, tap: Tap) -> None:
        cap_bytes = self._settings.max_log_bytes
        fields = {
            "code": b"%d" % frames.YES,
            "stream_buffer_bytes": b"%d" % max(limits.STREAM_BUFFER_BYTES, 2 * cap_bytes),
            "max_log_bytes": b"%d" % cap_bytes,
        }
        fd = self._tally.fd
        if fd is not None:
            fields["tally_slot"] = b"%d" % tap.slot
        packet = frames.pack(Frame(frames.ANSWER, frames.fields_payload(fields)))
        _tell(tap.socket, packet, () if fd is None else (fd,))

    def _take(self, tap: Tap, frame: Frame) -> bool:
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
            _tell(tap.socket, frames.pack(Frame(frames.DRAINED)))
        elif frame.kind == frames.BYE:
            return True
        else:
            raise PeerFault("bad-frame", f"kind {frame.kind} from a tap")
        return False

    def _push(self, records: "list[bytes]", tap: "Tap | None" = None, taken_bytes: int = 0) -> None:
        """Records to be sent, made of so many bytes more of what this tap sent."""
        self.ring.push(records)
        if tap is None:
            self._tally.commit(self.ring.pushed_count)
        else:
            tap.taken_bytes += taken_bytes
            self._tally.commit(self.ring.pushed_count, tap.slot, tap.taken_bytes)

    def _log_told(self, line: str) -> None:
        """Logs what a tap says, up to a bound."""
        self._told_count += 1
        if self._told_count <= limits.TOLD_MOST_COUNT:
            self._log(line)


def _tell(connection: "socket.socket", packet: bytes, fds: "tuple[int, ...]" = ()) -> None:
    try:
        socket.send_fds(connection, [packet], fds)
    except OSError:
        pass  # it does not read, or is gone: its own affair
