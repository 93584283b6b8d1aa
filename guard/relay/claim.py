# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's folder: that it is ours alone, and the sockets in it. World room."""

import fcntl
import os
import socket
import stat

from guard.base.faults import NodeFault, SiteFault
from guard.relay import frames, limits

_BACKLOG = 1024


def folder(path: str) -> "tuple[int, list[socket.socket]]":
    """The folder, ours alone by a lock that the fd holds, and its two listening sockets: control, tap.

    Raises: SiteFault(no-folder) - it is not a folder of ours alone, or its name is too long; NodeFault(daemon-runs).
    """
    if len(os.fsencode(path)) > limits.FOLDER_MAX_BYTES:
        raise SiteFault("no-folder", f"{path}: longer than {limits.FOLDER_MAX_BYTES} bytes")
    try:
        os.makedirs(path, 0o755, exist_ok=True)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise SiteFault("no-folder", path)
        lock_fd = os.open(f"{path}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeFault("daemon-runs", path)
        os.makedirs(f"{path}/jobs", 0o700, exist_ok=True)
        listeners = []
        for name, mask in ((frames.CONTROL_NAME, 0o177), (frames.TAP_NAME, 0o111)):
            place = f"{path}/{name}"
            try:
                os.unlink(place)  # the lock is ours, so whoever bound it is gone
            except FileNotFoundError:
                pass
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            old_mask = os.umask(mask)
            try:
                listener.bind(place)
            finally:
                os.umask(old_mask)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
    except OSError as error:
        raise SiteFault("no-folder", f"{path}: {error.strerror or error}")
    return lock_fd, listeners
