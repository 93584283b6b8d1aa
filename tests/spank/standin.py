# SPDX-License-Identifier: GPL-2.0-or-later
"""In the node daemon's place: one that answers, or does not, and takes frames as slowly as a test wants."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from guard.relay import frames
from guard.relay.frames import Frame

_WELCOME = frames.pack(Frame(frames.ANSWER, frames.fields_payload({"code": b"0", "stream_buffer_bytes": b"131072"})))


class Standin:
    """Takes: path - of its socket; pauses_s - what it waits before each frame that it takes, by the frame's bytes; it
    takes no more once that is None. Without pauses_s it does not even answer."""

    def __init__(self, path: Path, pauses_s: "Callable[[int], float | None] | None") -> None:
        self._pauses_s = pauses_s
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._connections: "list[socket.socket]" = []
        self._taken: "list[Frame]" = []
        self._threads = [Thread(target=self._serve)]
        self._threads[0].start()

    def stop(self) -> None:
        for one in (self._listener, *self._connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end has gone
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._connections):
            one.close()

    def data(self) -> bytes:
        """All bytes of tasks that it has been sent, also those that it has not taken yet."""
        for connection in self._connections:
            connection.setblocking(False)
            try:
                while packet := connection.recv(frames.PACKET_MAX_BYTES):
                    self._taken.append(frames.unpack(packet))
            except OSError:
                pass  # nothing is left
        return b"".join(frame.payload for frame in self._taken if frame.kind == frames.DATA)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            if self._pauses_s:
                connection.recv(frames.PACKET_MAX_BYTES)
                connection.send(_WELCOME)
                self._threads.append(Thread(target=self._take, args=(connection,)))
                self._threads[-1].start()

    def _take(self, connection: "socket.socket") -> None:
        assert self._pauses_s
        size_bytes = 0
        while (pause_s := self._pauses_s(size_bytes)) is not None:
            time.sleep(pause_s)
            try:
                packet = connection.recv(frames.PACKET_MAX_BYTES)
            except OSError:
                return
            if not packet:
                return
            size_bytes = len(packet)
            self._taken.append(frames.unpack(packet))
            if self._taken[-1].kind == frames.DRAIN:
                connection.send(frames.pack(Frame(frames.DRAINED)))


@contextmanager
def standin(path: Path, pauses_s: "Callable[[int], float | None] | None" = None) -> "Iterator[Standin]":
    """The stand-in until the end of the context."""
    made = Standin(path, pauses_s)
    try:
        yield made
    finally:
        made.stop()
