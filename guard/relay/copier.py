# SPDX-License-Identifier: GPL-2.0-or-later
"""A command with its output copied: the original destination first, the relay after (frames.py). Order room.

It ends as the command ends, by the same status or signal, after all that the command wrote is where it belongs.
"""

import errno
import os
import select
import signal
import socket
import time

from guard.relay import command, limits, terminal
from guard.relay.frames import STDERR, STDOUT
from guard.relay.original import Original
from guard.relay.record import STREAM_NAMES
from guard.relay.signals import Signals, die_by, is_forwarded, is_slurmstepd
from guard.relay.tap import Tap
from guard.relay.terminal import Terminal

_NEVER = float("inf")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Stream:
    """One stream of CMD. source: what we read; rest: read and not yet written; is_done: CMD's end is closed."""

    __slots__ = ("is_done", "left_bytes", "number", "original", "rest", "source", "was_empty")

    def __init__(self, number: int, source: int, original: Original) -> None:
        self.number = number
        self.source = source
        self.original = original
        self.rest = b""
        self.is_done = False
        # After CMD's end: what may still be read, and whether a read found nothing.
        self.left_bytes = 1 << 20  # a pipe's largest content, pipe(7): fs.pipe-max-size
        self.was_empty = False


class Copier:
    """One command and its streams.

    Takes: argv, environ - of the command; tap - open; held - which of fds 0, 1, 2 were closed, now on /dev/null.
    """

    def __init__(self, argv: "list[bytes]", environ: "dict[bytes, bytes]", tap: Tap, held: "list[int]") -> None:
        self._held = held
        self._argv = argv
        self._environ = environ
        self._tap = tap
        self._streams: "list[_Stream]" = []
        self._terminal: "Terminal | None" = None
        self._pid = 0
        self._status: "int | None" = None

    def run(self) -> int:
        """Runs the command; gives its exit status, or does not return where a signal ended it."""
        self._signals = Signals()
        self._start()
        self._signals.start()
        if self._terminal:
            self._terminal.enter()
        try:
            self._copy()
        finally:
            if self._terminal:
                self._terminal.leave()
        if any(not stream.is_done for stream in self._streams):
            self._leave_a_copier()
        else:
            self._end_tap()
        status = self._status or 0
        if status < 0:
            die_by(-status)
            return 128 - status
        return status

    def _start(self) -> None:
        """Makes pipes and pty, forks CMD."""
        held = self._held
        places: "dict[int, int]" = {}
        own_ends: "list[int]" = []
        has_terminal = [fd for fd in (STDOUT, STDERR) if fd not in held and os.isatty(fd)]
        if has_terminal:
            is_foreground = has_terminal[0] == STDOUT and terminal.is_foreground(STDOUT)
            self._terminal = Terminal(has_terminal[0], is_foreground)
            if is_foreground:
                places[0] = self._terminal.slave
            places.update((fd, self._terminal.slave) for fd in has_terminal)
            own_ends.append(self._terminal.slave)
            self._streams.append(_Stream(has_terminal[0], self._terminal.master, Original(has_terminal[0])))
        for fd in (STDOUT, STDERR):
            if fd not in held and fd not in places:
                source, end = os.pipe()
                os.set_blocking(source, False)
                places[fd] = end
                own_ends.append(end)
                self._streams.append(_Stream(fd, source, Original(fd)))
        self._pid = os.fork()
        if self._pid == 0:
            self._become_command(places)
        for fd in own_ends:
            os.close(fd)

    def _become_command(self, places: "dict[int, int]") -> None:
        """In the child, never returns."""
        status = 1
        try:
            if self._terminal:
                self._terminal.adopt()
            for fd, end in places.items():
                os.dup2(end, fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._signals.old_mask)
            status = command.become(self._argv, self._environ)
        finally:
            os._exit(status)

    def _copy(self) -> None:
        """Copies until CMD has ended and what it wrote is at its destination; leaves alone what others still write."""
        leftover_ms = _NEVER
        while True:
            now_ms = _now_ms()
            self._tap.pump(now_ms)
            if self._status is not None:
                if leftover_ms == _NEVER:
                    leftover_ms = now_ms + limits.LEFTOVER_LOOK_MS
                    for stream in self._streams:
                        stream.was_empty = False  # only a look after its end tells that nothing of CMD is left
                is_over = now_ms >= leftover_ms
                if all(
                    (stream.is_done or (is_over and (stream.was_empty or stream.left_bytes <= 0))) and not stream.rest
                    for stream in self._streams
                ):
                    return
            self._wait(min(self._tap.next_ms(), leftover_ms if leftover_ms > now_ms else now_ms + 50) - now_ms)

    def _wait(self, wait_ms: float) -> None:
        """One look at everything, and what follows from it."""
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        for stream in self._streams:
            if stream.rest:
                poll.register(stream.original.fd, select.POLLOUT)
            elif not stream.is_done and self._tap.room(stream.number):
                poll.register(stream.source, select.POLLIN)
        tap_fd = self._tap.fd()
        if tap_fd is not None:
            poll.register(tap_fd, select.POLLIN | (select.POLLOUT if self._tap.wants_write() else 0))
        screen = self._terminal
        if screen and screen.is_reading and not screen.has_typed():
            poll.register(0, select.POLLIN)
        if screen and screen.has_typed():
            poll.register(screen.master, select.POLLIN | select.POLLOUT)
        ready = dict(poll.poll(None if wait_ms == _NEVER else max(0.0, wait_ms) + 1))
        for stream in self._streams:
            if stream.rest:
                if stream.original.fd in ready:
                    self._write(stream)
                    if stream.is_done:
                        self._tap.end(stream.number)
            elif not stream.is_done and (stream.source in ready or self._status is not None):
                self._read(stream)
        if screen and 0 in ready:
            screen.read_input()
        if screen and screen.has_typed():
            screen.write_input()
        if self._signals.fd in ready:
            self._heed_signals()

    def _read(self, stream: _Stream) -> None:
        room_bytes = self._tap.room(stream.number)
        if not room_bytes:
            return
        try:
            data = os.read(stream.source, room_bytes)
        except BlockingIOError:
            stream.was_empty = True
            return
        except OSError as error:
            if error.errno != errno.EIO:  # how a pty says that its other end is closed
                raise
            data = b""
        time_ns = time.time_ns()
        if not data:
            self._close(stream)
            return
        if self._status is not None:
            stream.left_bytes -= len(data)
        stream.rest = data
        self._write(stream)
        self._tap.offer(stream.number, data, time_ns)
        if stream.is_done:
            self._tap.end(stream.number)

    def _write(self, stream: _Stream) -> None:
        try:
            stream.rest = stream.original.write(stream.rest)
        except OSError as error:
            # As the seed says: this stream ends here, CMD's next write to it is EPIPE; the others go on.
            stream.rest = b""
            if error.errno != errno.EPIPE:
                name = f"task {self._tap.task_global} {STREAM_NAMES[stream.number]}"
                self._tap.note(f"{name}: cannot write its destination: {error.strerror}")
            os.close(stream.source)
            stream.is_done = True

    def _close(self, stream: _Stream) -> None:
        if not stream.is_done:
            os.close(stream.source)
            stream.is_done = True
            self._tap.end(stream.number)

    def _heed_signals(self) -> None:
        for number, code, sender in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGWINCH:
                if self._terminal:
                    self._terminal.resize()
            elif self._status is None and is_forwarded(
                number,
                code,
                sender == self._pid,
                is_slurmstepd(sender),
                bool(self._terminal and self._terminal.is_foreground),
            ):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        try:
            pid, raw = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pid, raw = self._pid, 0
        if pid:
            self._status = -os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)

    def _end_tap(self) -> None:
        """Sends what waits, within the drain limit and what is left of the time that the relay may hang."""
        self._tap.expect_end()
        end_ms = _now_ms() + limits.TAP_END_MS
        while True:
            now_ms = _now_ms()
            self._tap.pump(now_ms)
            fd = self._tap.fd()
            if self._tap.is_idle() or now_ms >= end_ms:
                break
            poll = select.poll()
            if fd is not None:
                poll.register(fd, select.POLLIN | (select.POLLOUT if self._tap.wants_write() else 0))
            poll.poll(max(0.0, min(end_ms, self._tap.next_ms()) - now_ms) + 1)
        self._tap.close()
        _report(sum(self._tap.lost_bytes.values()), self._tap.left_bytes, self._environ, "/dev/log")

    def _leave_a_copier(self) -> None:
        """Something that CMD started still writes: a process of ours stays with it, as the destination would have."""
        try:
            if os.fork():
                return
        except OSError:
            return  # as if its reader had gone
        try:
            os.setsid()
            null_fd = os.open(os.devnull, os.O_RDWR)
            os.dup2(null_fd, 0)
            self._terminal = None
            while any(not stream.is_done or stream.rest for stream in self._streams):
                now_ms = _now_ms()
                self._tap.pump(now_ms)
                self._wait(self._tap.next_ms() - now_ms)
            self._end_tap()
        finally:
            os._exit(0)


def _report(lost_bytes: int, left_bytes: int, environ: "dict[bytes, bytes]", path: str) -> None:
    """Tells the node's log what no LOST frame could tell: the relay was away or hung. Never waits."""
    sentences = []
    if lost_bytes:
        sentences.append(b"relay lost %d bytes, no worker took them" % lost_bytes)
    if left_bytes:
        sentences.append(b"relay left %d bytes in a worker that hung, they are records only if it goes on" % left_bytes)
    if not sentences:
        return
    where = b"%s.%s" % (environ.get(b"SLURM_JOB_ID", b"?")[:20], environ.get(b"SLURM_STEP_ID", b"batch")[:20])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            for sentence in sentences:
                connection.sendto(b"<14>relay exec: [%s] %s" % (where, sentence), path)
    except OSError:
        pass  # no log here
