# SPDX-License-Identifier: GPL-2.0-or-later
"""A tap's side of the protocol: copies of a task's bytes -> frames to the step's worker, never waiting. World room.

The clock is an argument. What a tap owes the job is in frames.py; whoever copies asks room() before it reads from the
task, offers what it has read, and calls pump() when fd() is ready or next_ms() is due.
"""

import os
import socket
from collections import deque

from guard.base.faults import PeerFault
from guard.relay import frames, limits
from guard.relay.frames import Frame
from guard.relay.taken import Taken

_NEVER = float("inf")
# Reads that wait are joined up to here, in bytes.
_JOIN_BYTES = 4096
# Answers after which there is no use in coming back.
_FINAL = (frames.NO, frames.UNKNOWN_JOB, frames.NOT_ALLOWED, frames.NOT_UNDERSTOOD)


class Tap:
    """One connection to the relay, made anew when its worker dies.

    Takes: path - the daemon's socket; job_id, step_id, task_local, task_global - as Slurm's environment says;
    is_unbuffered - for all its streams.
    is_open: a worker has welcomed it and is there. has_connected: there was a daemon. lost_bytes: by stream, what was
    offered and cannot be sent, as far as no LOST frame tells of it; stream 0: what a worker held that died.
    left_bytes: after close(), what a worker has that hung: records, if it goes on.
    """

    def __init__(
        self,
        path: str,
        job_id: int,
        step_id: int,
        task_local: int = 0,
        task_global: int = 0,
        is_unbuffered: bool = False,
    ) -> None:
        self._path = path
        hello = {"job_id": b"%d" % job_id, "step_id": b"%d" % step_id}
        self._hello = frames.pack(Frame(frames.HELLO, frames.fields_payload(hello)))
        self._task_local = task_local
        self.task_global = task_global
        self._is_unbuffered = is_unbuffered
        self._socket: "socket.socket | None" = None
        self.is_open = False
        self.has_connected = False
        self.code: "int | None" = None
        # stream -> frames that wait, oldest first, and their bytes; streams are served in turn from the left.
        self._waiting: "dict[int, deque[Frame]]" = {}
        self._waiting_bytes: "dict[int, int]" = {}
        self._turns: "deque[int]" = deque()
        self._buffer_bytes = limits.STREAM_BUFFER_BYTES
        self.lost_bytes: "dict[int, int]" = {}
        self.left_bytes = 0
        self._is_given_up = False
        # At its end: whether DRAIN was sent, and DRAINED came.
        self._is_ending = False
        self._has_asked = False
        self._is_drained = False
        # Of this connection: bytes sent that count in the worker's tally, and where that is.
        self._sent_bytes = 0
        self._taken: "Taken | None" = None
        self._try_ms: float = 0
        self._backoff_ms = limits.BACKOFF_FIRST_MS
        self._stuck_ms: "int | None" = None
        self._look_ms = 0
        self._hung_left_ms = limits.TAP_HUNG_TOTAL_MS
        self._is_blocked = False

    def fd(self) -> "int | None":
        """What to poll for reading, and for writing while wants_write()."""
        return self._socket.fileno() if self._socket else None

    def wants_write(self) -> bool:
        """Whether frames wait for room in the socket."""
        return self._is_blocked

    def room(self, stream: int) -> int:
        """How many bytes of this stream may be read from the task now; 0: the task waits.

        Without a worker the task never waits: what finds no place is counted as lost.
        """
        if not self.is_open:
            return limits.COPY_BYTES
        return min(limits.COPY_BYTES, max(0, self._buffer_bytes - self._waiting_bytes.get(stream, 0)))

    def offer(self, stream: int, data: bytes, time_ns: int) -> None:
        """Takes a copy of what was read, at most COPY_BYTES."""
        held_bytes = self._waiting_bytes.get(stream, 0)
        if self._is_given_up or held_bytes + len(data) > self._buffer_bytes:
            self.lost_bytes[stream] = self.lost_bytes.get(stream, 0) + len(data)
            return
        self._queue_loss(stream)
        self._waiting_bytes[stream] = held_bytes + len(data)
        held = self._waiting.get(stream)
        if held and held[-1].kind == frames.DATA and len(held[-1].payload) + len(data) <= _JOIN_BYTES:
            # A task that writes byte by byte must not cost an object for each.
            held[-1].payload += data
        else:
            self._queue(self._frame(frames.DATA, data, stream, time_ns))

    def end(self, stream: int) -> None:
        """This stream is over."""
        self._queue_loss(stream)
        self._queue(self._frame(frames.END, b"", stream))

    def note(self, text: str) -> None:
        """A sentence for the relay's log."""
        self._queue(Frame(frames.NOTE, text.encode("utf-8", "backslashreplace")[: limits.NOTE_MAX_BYTES]))

    def is_idle(self) -> bool:
        """At its end: whether all that could be sent was sent and taken."""
        if self._is_given_up or (self._socket is None and self._try_ms > 0):
            return True
        return not self._turns and (self._is_drained or not self._sent_bytes)

    def next_ms(self) -> float:
        """When pump() is due even if nothing happens."""
        # The kernel calls a socket writable when three quarters of it are free (net/unix/af_unix.c unix_writable()): to
        # one with three long frames, when all are read. A worker that takes one now and then must not look hung.
        stuck = min(self._stuck_ms + self._hung_left_ms, self._look_ms) if self._stuck_ms is not None else _NEVER
        return min(stuck, _NEVER if self._is_given_up or self._socket else self._try_ms)

    def pump(self, now_ms: int) -> None:
        """Connects if due, reads answers, sends what can be sent, gives up when the relay has hung too long."""
        if self._is_given_up:
            return
        if self._socket is None:
            if now_ms < self._try_ms:
                return
            self._connect(now_ms)
        if self._socket is not None:
            self._read(self._socket, now_ms)
        has_sent = self._send(self._socket, now_ms) if self._socket is not None and self.is_open else False
        self._reckon(now_ms, has_sent)

    def expect_end(self) -> None:
        """From now on whatever waits makes the job wait, so time counts as hung; one more attempt to connect is due."""
        self._is_ending = True
        self._try_ms = 0

    def close(self) -> None:
        """Says BYE if everything is sent; counts what is not; closes."""
        if self._socket is not None and self.is_open and not self._turns:
            try:
                self._socket.send(frames.pack(Frame(frames.BYE)))
            except OSError:
                pass  # the worker sees the end of the connection all the same
        self._give_up()
        # One that hung, and was given up, reads on what it has got when it comes to itself; not if it has been killed.
        if self._taken and self._taken.is_final():
            self._count_lost()
        else:
            self.left_bytes = self._untaken_bytes()
        self._forget_tally()

    def _frame(self, kind: int, payload: bytes, stream: int, time_ns: int = 0) -> Frame:
        return Frame(kind, payload, stream, self._task_local, self.task_global, time_ns, self._is_unbuffered)

    def _queue_loss(self, stream: int) -> None:
        """Puts what was lost at its place: after what was offered before, before what comes next."""
        if not self._is_given_up and stream in self.lost_bytes:
            payload = frames.count_payload(self.lost_bytes.pop(stream))
            self._queue(self._frame(frames.LOST, payload, stream))

    def _queue(self, frame: Frame) -> None:
        if self._is_given_up:
            return
        if frame.stream not in self._waiting:
            self._waiting[frame.stream] = deque()
        if not self._waiting[frame.stream]:
            self._turns.append(frame.stream)
        self._waiting[frame.stream].append(frame)

    def _connect(self, now_ms: int) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
            connection.send(self._hello)
        except OSError:
            connection.close()
            self._come_back(now_ms)
            return
        self._socket = connection
        self.has_connected = True

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.is_open = False
        self._is_blocked = False

    def _forget_tally(self) -> None:
        if self._taken:
            self._taken.close()
        self._taken = None
        self._sent_bytes = 0

    def _untaken_bytes(self) -> int:
        """How much of what was sent is not in records yet."""
        if not self._taken or self._is_drained:
            return 0
        return max(0, self._sent_bytes - self._taken.count_bytes())

    def _count_lost(self) -> None:
        """The worker is dead, or has closed: what it did not make into records nobody else has."""
        lost_bytes = self._untaken_bytes()
        if lost_bytes:
            self.lost_bytes[0] = self.lost_bytes.get(0, 0) + lost_bytes

    def _mourn(self, now_ms: int) -> None:
        self._count_lost()
        self._come_back(now_ms)

    def _come_back(self, now_ms: int) -> None:
        """The connection is gone; a later pump() makes another."""
        self._hang_up()
        self._forget_tally()
        self._try_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, limits.BACKOFF_MOST_MS)

    def _give_up(self) -> None:
        for stream, held in self._waiting.items():
            unsent_bytes = sum(len(frame.payload) for frame in held if frame.kind == frames.DATA)
            unsent_bytes += sum(frames.count_of(frame) for frame in held if frame.kind == frames.LOST)
            if unsent_bytes:
                self.lost_bytes[stream] = self.lost_bytes.get(stream, 0) + unsent_bytes
        self._waiting.clear()
        self._waiting_bytes.clear()
        self._turns.clear()
        self._is_given_up = True
        self._stuck_ms = None
        self._hang_up()

    def _read(self, connection: "socket.socket", now_ms: int) -> None:
        while True:
            fds: "list[int]" = []
            try:
                packet, fds, _, _ = socket.recv_fds(connection, frames.PACKET_MAX_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC)
                if not packet:
                    self._mourn(now_ms)
                    return
                frame = frames.unpack(packet)
                if frame.kind == frames.ANSWER:
                    self._welcome(frames.fields_of(frame.payload), fds, now_ms)
                    if not self.is_open:
                        return
                elif frame.kind == frames.DRAINED:
                    self._is_drained = self._has_asked
            except BlockingIOError:
                return
            except OSError:
                self._mourn(now_ms)
                return
            except PeerFault:
                self._come_back(now_ms)
                return
            finally:
                for fd in fds:
                    os.close(fd)

    def _welcome(self, fields: "dict[str, bytes]", fds: "list[int]", now_ms: int) -> None:
        """Takes the answer, and from fds what it keeps."""
        self.code = frames.number(fields, "code", 255)
        if self.code == frames.YES:
            self._buffer_bytes = frames.number(fields, "stream_buffer_bytes", limits.ID_MOST, limits.COPY_BYTES)
            if fds and self._taken is None:
                slot = frames.number(fields, "tally_slot", limits.TAPS_MOST_COUNT - 1)
                self._taken = Taken(fds.pop(), slot)
            self.is_open = True
            self._has_asked = self._is_drained = False
            self._backoff_ms = limits.BACKOFF_FIRST_MS
            self._queue_loss(0)
        elif self.code in _FINAL:
            self._give_up()
        else:
            self._come_back(now_ms)

    def _send(self, connection: "socket.socket", now_ms: int) -> bool:
        """Sends frames, a stream after the other, while the socket takes them; whether it took any."""
        has_sent = False
        self._is_blocked = False
        try:
            while self._turns:
                stream = self._turns[0]
                held = self._waiting[stream]
                connection.send(frames.pack(held[0]))
                has_sent = True
                frame = held.popleft()
                if frame.kind == frames.DATA:
                    self._waiting_bytes[stream] -= len(frame.payload)
                    self._sent_bytes += len(frame.payload)
                elif frame.kind == frames.LOST:
                    self._sent_bytes += frames.count_of(frame)
                self._turns.popleft()
                if held:
                    self._turns.append(stream)
            if self._is_ending and self._sent_bytes and not self._has_asked:
                connection.send(frames.pack(Frame(frames.DRAIN)))
                self._has_asked = True
        except BlockingIOError:
            self._is_blocked = True
        except ConnectionError:
            self._mourn(now_ms)
        except OSError:
            # ENOBUFS, ENOMEM: the worker lives and reads on what it has got; it takes us again.
            self._come_back(now_ms)
        return has_sent

    def _reckon(self, now_ms: int, has_sent: bool) -> None:
        """Counts the time in which the relay takes nothing and the job waits for it."""
        if self._is_ending:
            holds = self._socket is not None and not self.is_idle()
        else:
            holds = self.is_open and any(self.room(stream) == 0 for stream in self._waiting)
        if self._stuck_ms is not None and (has_sent or not holds):
            gap_ms = now_ms - self._stuck_ms
            self._stuck_ms = None
            if gap_ms > limits.TAP_HUNG_GAP_MS:
                self._hung_left_ms -= gap_ms
        if holds and self._stuck_ms is None:
            self._stuck_ms = now_ms
        self._look_ms = now_ms + limits.TAP_HUNG_LOOK_MS
        if self._hung_left_ms <= 0 or (self._stuck_ms is not None and now_ms - self._stuck_ms >= self._hung_left_ms):
            self._give_up()
