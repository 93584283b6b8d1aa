# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of ours in a folder that others can write to: opened, judged, published, never trusted by their name.

World room. Seed guard-emits, "One decision per step". The names of the guard's files can be guessed, so whatever lies
there may be a link, a pipe, a device or somebody else's; what counts is the opened file itself.
"""

import _stat as stat
import posix as os  # what a cached answer needs of it, without the 0.9 ms that os costs at each start

_TRIES = 4


class Unusable(Exception):
    """What lies at a path cannot be used safely. The text says why."""


def read(path: bytes, size_max_bytes: int) -> "bytes | None":
    """The content of a file of ours, None where there is none.

    Raises: Unusable - it is not a regular file of this user with mode 0600 and one name, or larger, or not readable.
    """
    try:
        fd = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(os.strerror(error.errno or 0))
    try:
        size = _judged_size_bytes(fd, size_max_bytes)
        data = os.read(fd, size)
        while len(data) < size:
            piece = os.read(fd, size - len(data))
            if not piece:
                break
            data += piece
        return data
    except OSError as error:
        raise Unusable(os.strerror(error.errno or 0))
    finally:
        os.close(fd)


def open_lock(path: bytes) -> int:
    """An open fd on an empty file of ours to lock, made if it is not there. Raises: Unusable - as read."""
    mask = os.umask(0o177)  # not 0o777 & ~0o600 of whatever the job has: with umask 777 nobody could open it again
    try:
        fd = _open(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise Unusable(os.strerror(error.errno or 0))
    finally:
        os.umask(mask)
    try:
        _judged_size_bytes(fd, 0)
    except (Unusable, OSError) as error:
        os.close(fd)
        raise Unusable(str(error))
    return fd


def publish(path: bytes, data: bytes) -> None:
    """Puts data at path in one step: a reader sees nothing, what was there before, or all of it.

    Raises: Unusable - it could not be done, and nothing of it is left. A crash leaves at most a temporary file under a
    name that no reader looks for.
    """
    fd, temporary = _new_file(path)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise Unusable(os.strerror(error.errno or 0))


def _open(path: bytes, flags: int) -> int:
    # O_NONBLOCK: to open a FIFO that somebody planted must not wait for its writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def _new_file(path: bytes) -> "tuple[int, bytes]":
    mask = os.umask(0o177)
    try:
        for _ in range(_TRIES):
            temporary = b"%s.%s" % (path, os.urandom(8).hex().encode("ascii"))
            try:
                return _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), temporary
            except FileExistsError:
                continue
            except OSError as error:
                raise Unusable(os.strerror(error.errno or 0))
    finally:
        os.umask(mask)
    raise Unusable("no free temporary name")


def _judged_size_bytes(fd: int, size_max_bytes: int) -> int:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise Unusable("not a regular file")
    if found.st_uid != os.getuid():
        raise Unusable("not this user's")
    if stat.S_IMODE(found.st_mode) != 0o600:
        raise Unusable("its mode is not 0600")
    if found.st_nlink != 1:
        raise Unusable("it has another name")
    if found.st_size > size_max_bytes:
        raise Unusable("too large")
    return found.st_size
