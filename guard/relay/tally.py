# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a worker outlives it: how much it had made and sent, so that what it held when killed is counted. World room.

    <job's folder>/<step>.tally         of the step's worker, locked (flock) while that lives
    <job's folder>/<step>-<pid>.tally   of a worker that nobody finds any more and that still drains

A tally is a file that its worker writes as memory. Its taps get it to read, as a file descriptor: when the connection
ends, a tap knows from it how much of what it sent was never a record (frames.py, "Tally"). The next worker of the step
goes on with it, or the daemon reads it at the job's end: records made, less those sent, are those that were dropped.
The lock is exclusive; who wants to know whether its worker lives tries a shared one, which holds off nobody else.
Every number is written beside the one that counts, and one byte then makes it count: a kill in between loses nothing.
"""

import fcntl
import mmap
import os
from collections import deque

from guard.relay import datagrams
from guard.relay.limits import TALLY_COMMITS_AT, TALLY_SLOTS_AT, TAPS_MOST_COUNT
from guard.relay.taken import COMMIT, SLOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# The slot of commits that are no tap's, behind those that are.
_NO_SLOT = TAPS_MOST_COUNT
_WINDOW_AT = TALLY_SLOTS_AT + SLOT.size * (_NO_SLOT + 1)
_SIZE_BYTES = _WINDOW_AT + datagrams.PLACE_BYTES
_SUFFIX = ".tally"


class Tally:
    """A worker's. pushed_count, dropped_count: of the worker before, if one of this step died; window: for the sender;
    fd: for taps, read-only; None where there is no room for the file: then nothing outlives the worker."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.fd: "int | None" = None
        self.pushed_count, sent_count = _counts_of_dead(path)
        try:
            self._memory = self._made()
        except OSError:
            self._memory = mmap.mmap(-1, _SIZE_BYTES)
        self.dropped_count = self.pushed_count - sent_count
        # The one that was given back last is taken last: a tap may yet read there what became of its bytes.
        self._free = deque(range(TAPS_MOST_COUNT))
        self._half = self._slot_bytes = 0
        self._slot = _NO_SLOT
        self.window = datagrams.Window(self._memory, _WINDOW_AT, sent_count)
        self.commit(self.pushed_count)
        try:
            os.rename(f"{path}.new", path)
        except OSError:
            pass  # there is no file, or no folder any more

    def _made(self) -> mmap.mmap:
        """A new file, not the one of the worker before: that one's taps may still read there."""
        path = f"{self._path}.new"
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, _SIZE_BYTES)  # a hole that finds no room later would be SIGBUS
            memory = mmap.mmap(fd, _SIZE_BYTES)  # it has a duplicate of fd, and with that the lock
        finally:
            os.close(fd)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return memory

    def commit(self, pushed_count: int, slot: "int | None" = None, taken_bytes: int = 0) -> None:
        """Writes down, in one stroke, how many records were made and how many bytes of this tap's are in them."""
        if slot is not None:
            self._slot, self._slot_bytes = slot, taken_bytes
        self._half = 1 - self._half
        at = TALLY_COMMITS_AT + self._half * COMMIT.size
        COMMIT.pack_into(self._memory, at, pushed_count, self._slot, self._slot_bytes)
        self._memory[0] = self._half
        SLOT.pack_into(self._memory, TALLY_SLOTS_AT + self._slot * SLOT.size, self._slot_bytes)

    def take_slot(self, pushed_count: int) -> int:
        """A tap's slot, at 0 bytes. There are as many as a worker takes taps."""
        slot = self._free.popleft()
        self.commit(pushed_count, slot)
        return slot

    def give_slot(self, slot: int, pushed_count: int) -> None:
        """The tap is to be let go; what it reads here from now on nobody writes, until the slot is taken again.

        It may read while others' commits are made, and a CPU need not show those in the order in which they are
        written (aarch64): so neither commit is its own any more.
        """
        for _ in range(2):
            self.commit(pushed_count, _NO_SLOT)
        self._free.append(slot)

    def step_aside(self) -> None:
        """Makes place for the next worker of the step, which will not go on with this one's."""
        path = f"{self._path[: -len(_SUFFIX)]}-{os.getpid()}{_SUFFIX}"
        try:
            os.rename(self._path, path)
            self._path = path
        except OSError:
            pass  # the job's folder is gone

    def remove(self) -> None:
        """Everything is told."""
        try:
            os.unlink(self._path)
        except OSError:
            pass


def are_living(folder: str) -> bool:
    """Whether a worker of this job still lives."""
    return any(map(_is_living, _paths(folder)))


def of_dead(folder: str) -> "Iterator[tuple[str, int]]":
    """Each step of this job whose worker died without another, with how many records were lost with it."""
    for path in _paths(folder):
        if not _is_living(path):
            made_count, sent_count = _counts_of_dead(path)
            yield os.path.basename(path)[: -len(_SUFFIX)].partition("-")[0], made_count - sent_count


def _paths(folder: str) -> "list[str]":
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIX)]
    except OSError:
        return []


def _counts_of_dead(path: str) -> "tuple[int, int]":
    """How many records a worker made and sent that died; 0 and 0 where there is none, or it lives."""
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with mmap.mmap(file.fileno(), _SIZE_BYTES) as memory:
                at = TALLY_COMMITS_AT + (memory[0] & 1) * COMMIT.size
                pushed_count = COMMIT.unpack_from(memory, at)[0]
                return pushed_count, datagrams.sent_count(memory, _WINDOW_AT)
    except (OSError, ValueError):
        return 0, 0


def _is_living(path: str) -> bool:
    """Whether the worker of this tally lives; one that ended as it should has taken its file away."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
