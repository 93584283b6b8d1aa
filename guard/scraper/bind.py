# SPDX-License-Identifier: GPL-2.0-or-later
"""The bound socket: taken over from systemd, or made where Slurm will accept it and where nobody else reads.

World room. Source: seed relay_io "The uds_json plugin" (who may own what), sd_listen_fds(3).
"""

import errno
import fcntl
import os
import socket
import stat
import time

from guard.base.deadline import Deadline
from guard.base.faults import SiteFault

# Not in Python's socket module: asm-generic/socket.h, SO_TIMESTAMPNS_OLD, whose timespec has C longs.
SO_TIMESTAMPNS = 35
_LISTEN_FD = 3
_LOCK_LOOK_S = 0.05
_QLEN_FILE = "/proc/sys/net/unix/max_dgram_qlen"


class Bound:
    """A bound socket. identity: (st_dev, st_ino) of the file that we made, None when systemd holds the socket; qlen:
    net.unix.max_dgram_qlen as it was when we bound, None when it is not known for this socket."""

    __slots__ = ("identity", "lock_fd", "path", "qlen", "sock")

    def __init__(
        self, sock: socket.socket, path: str, identity: "tuple[int, int] | None", lock_fd: int, qlen: "int | None"
    ) -> None:
        self.sock = sock
        self.path = path
        self.identity = identity
        self.lock_fd = lock_fd
        self.qlen = qlen


def handed_over(environ: "dict[bytes, bytes]", pid: int) -> "socket.socket | None":
    """The socket that systemd passes by its LISTEN_FDS protocol, None when it passes none to this process.

    Raises: SiteFault(socket-failed) - what it passes is no unix datagram socket.
    """
    if environ.get(b"LISTEN_PID") != b"%d" % pid or environ.get(b"LISTEN_FDS", b"0") == b"0":
        return None
    try:
        sock = socket.socket(fileno=_LISTEN_FD)
    except OSError as error:
        raise SiteFault("socket-failed", f"systemd passed nothing that is a socket, {error.strerror}")
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
        raise SiteFault(
            "socket-failed", "systemd passed another kind of socket; use ListenDatagram= in the .socket unit"
        )
    sock.set_inheritable(False)
    return sock


def adopted(sock: socket.socket) -> Bound:
    """A handed-over socket as ours: it outlives us, with what is queued in it."""
    _prepare(sock)
    return Bound(sock, str(sock.getsockname()), None, -1, None)


def bound(path: str, owners: "frozenset[int]", socket_uid: int, lock_wait_s: float) -> Bound:
    """A new socket at path, mode 0600, with a lock beside it that lives as long as we and our children do.

    Takes: owners - who may own socket and folder (root, SlurmUser); socket_uid - who shall own the socket;
    lock_wait_s - how long a scraper that is just ending may hold the lock.
    Raises: SiteFault(socket-taken, socket-unsafe, socket-failed).
    """
    _check_folder(os.path.dirname(path) or ".", owners)
    lock_fd = _locked(path + ".lock", lock_wait_s)
    try:
        _remove_dead(path, owners)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Before the bind: a datagram that was queued without it has no sender.
        _prepare(sock)
        qlen = max_dgram_qlen()
        old_umask = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(old_umask)
        made = os.lstat(path)
        if socket_uid != made.st_uid:
            os.chown(path, socket_uid, -1, follow_symlinks=False)
    except OSError as error:
        os.close(lock_fd)
        raise SiteFault("socket-failed", f"{path}: {error.strerror}")
    except BaseException:
        os.close(lock_fd)
        raise
    return Bound(sock, path, (made.st_dev, made.st_ino), lock_fd, qlen)


def unlink_own(bound: Bound) -> None:
    """Removes the socket's file if it is still the one that we made."""
    try:
        found = os.lstat(bound.path)
        if (found.st_dev, found.st_ino) == bound.identity:
            os.unlink(bound.path)
    except OSError:
        pass  # gone already


def max_dgram_qlen() -> "int | None":
    """How many datagrams the kernel queues for a socket that is created now."""
    try:
        with open(_QLEN_FILE, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setblocking(False)


def _check_folder(folder: str, owners: "frozenset[int]") -> None:
    try:
        found = os.stat(folder)
    except OSError as error:
        raise SiteFault("socket-unsafe", f"{folder}: {error.strerror}")
    if found.st_uid not in owners:
        raise SiteFault("socket-unsafe", f"{folder} belongs to uid {found.st_uid}")
    if found.st_mode & 0o022:
        raise SiteFault("socket-unsafe", f"{folder} has mode {stat.S_IMODE(found.st_mode):04o}")


def _locked(path: str, wait_s: float) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SiteFault("socket-failed", f"{path}: {error.strerror}")
    deadline = Deadline(wait_s)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            if not deadline.left_s():
                os.close(fd)
                raise SiteFault("socket-taken", path)
        time.sleep(_LOCK_LOOK_S)


def _remove_dead(path: str, owners: "frozenset[int]") -> None:
    """Unlinks a socket file to which nobody is bound, and nothing else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SiteFault("socket-unsafe", f"{path} is there and is no socket")
    if found.st_uid not in owners:
        raise SiteFault("socket-unsafe", f"{path} belongs to uid {found.st_uid}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        number = probe.connect_ex(path)
    # EPROTOTYPE: somebody listens there with another kind of socket.
    if number != errno.ECONNREFUSED:
        raise SiteFault("socket-taken", f"{path} ({os.strerror(number) if number else 'it answers'})")
    os.unlink(path)
