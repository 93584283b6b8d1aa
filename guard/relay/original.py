# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a task's bytes went before there was a relay: written first, and without one stream waiting for another.

World room. A regular file is written as it is: it does not wait, or waits as the task itself would have. A pipe or a
terminal is opened once more through /proc, so that our not waiting is not seen by others who hold the same pipe.
"""

import os
import select
import socket
import stat

_PIPE_BUF_BYTES = 4096


class Original:
    """One destination. fd: what to poll for writing while write() leaves a rest."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._socket: "socket.socket | None" = None
        # Whether the bytes of a write must be few enough not to wait, since the fd itself waits.
        self._is_small = False
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(mode) or os.isatty(fd):
            try:
                self.fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:
                self._is_small = True  # another user's pipe, or no /proc

    def write(self, data: bytes) -> bytes:
        """Writes what can be written without waiting (a regular file: all of it); gives the rest.

        Raises: OSError - the destination will take no more.
        """
        while data:
            try:
                if self._socket:
                    count = self._socket.send(data, socket.MSG_DONTWAIT)
                elif self._is_small:
                    poll = select.poll()
                    poll.register(self.fd, select.POLLOUT)
                    if not poll.poll(0):
                        return data
                    count = os.write(self.fd, data[:_PIPE_BUF_BYTES])
                else:
                    count = os.write(self.fd, data)
            except BlockingIOError:
                return data
            data = data[count:]
        return data
