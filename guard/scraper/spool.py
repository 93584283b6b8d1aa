# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue between the socket and the sinks: one log of lines on disk, one cursor for each sink. World room.

Segments are named for the number of their first line, so a reader whose segment was thrown away knows how many it
lost. A line's number with the spool's own name is its id for ever: not a hash of its content, since two equal lines
that one read() of slurmstepd took have the same time and are yet two. On a tmpfs the same queue is one in memory.
"""

import errno
import json
import os
import stat
import uuid

from guard.base.faults import NodeFault
from guard.scraper import appended
from guard.scraper.limits import SEGMENT_MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIX = ".ndjson"
_NUMBER_DIGITS = 16
_COUNT_PIECE_BYTES = 1 << 20


class Cursor:
    """How far a reader is. number: of the next line; segment: number of the first line of its segment; offset: in
    bytes in that segment."""

    __slots__ = ("number", "offset", "segment")

    def __init__(self, number: int, segment: int, offset: int) -> None:
        self.number = number
        self.segment = segment
        self.offset = offset


class Piece:
    """Some lines in a row, each with its newline. first: number of the first; after: the cursor behind the last."""

    __slots__ = ("after", "first", "lines")

    def __init__(self, first: int, lines: "list[bytes]", after: Cursor) -> None:
        self.first = first
        self.lines = lines
        self.after = after


def prepare(folder: str) -> str:
    """Makes the folder if it is not there, 0700, and gives the spool's name, which stays with it.

    Raises: NodeFault(spool-failed).
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise NodeFault("spool-failed", f"{folder} must belong to this user and be writable by nobody else")
        path = os.path.join(folder, "name")
        try:
            with open(path, encoding="ascii") as file:
                name = file.read().strip()
        except FileNotFoundError:
            name = ""
        if not name:
            name = uuid.uuid4().hex[:12]
            replace(path, name.encode("ascii") + b"\n")
        return name
    except OSError as error:
        raise NodeFault("spool-failed", f"{folder}: {error.strerror}")


def segments(folder: str) -> "list[int]":
    """The segments that are there, oldest first, each by the number of its first line."""
    found = []
    for name in os.listdir(folder):
        if name.endswith(_SUFFIX) and len(name) == _NUMBER_DIGITS + len(_SUFFIX) and name[:_NUMBER_DIGITS].isdigit():
            found.append(int(name[:_NUMBER_DIGITS]))
    return sorted(found)


def path(folder: str, segment: int) -> str:
    """The file of a segment."""
    return os.path.join(folder, f"{segment:0{_NUMBER_DIGITS}d}{_SUFFIX}")


class Writer:
    """Appends lines. One at a time for a spool (the socket's lock sees to that). number: of the next line."""

    def __init__(self, folder: str, number_min: int = 0, segment_max_bytes: int = SEGMENT_MAX_BYTES) -> None:
        """Goes on behind the last whole line that is there; what a killed writer left of another is cut off.

        Takes: number_min - a number that a sink has come to: after a power cut the segments may be behind it, and no
        number is given twice. Raises: OSError.
        """
        self._folder = folder
        self._segment_max_bytes = segment_max_bytes
        found = segments(folder)
        self.segment = found[-1] if found else number_min
        self._fd = self._opened()
        lines_count, self._size_bytes = _whole_lines(self._fd)
        os.ftruncate(self._fd, self._size_bytes)
        self.number = self.segment + lines_count
        if self.number < number_min:
            self.number = number_min
            self._next()

    def append(self, lines: "list[bytes]") -> None:
        """Appends whole lines, all or nothing.

        Raises: OSError - nothing was appended; the same call may be made again.
        """
        if self._size_bytes >= self._segment_max_bytes:
            self._next()
        data = b"".join(lines)
        written = 0
        try:
            while written < len(data):
                # A disk that fills up takes a part of it first.
                written += os.pwrite(self._fd, data[written:] if written else data, self._size_bytes + written)
        except OSError:
            os.ftruncate(self._fd, self._size_bytes)
            raise
        self._size_bytes += written
        self.number += len(lines)

    def close(self) -> None:
        """Closes the segment."""
        os.close(self._fd)

    def _next(self) -> None:
        old_fd = self._fd
        self.segment, old = self.number, self.segment
        try:
            self._fd = self._opened()
        except OSError:
            self.segment = old
            raise
        os.close(old_fd)
        self._size_bytes = 0

    def _opened(self) -> int:
        return os.open(path(self._folder, self.segment), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class Reader:
    """Reads lines from a cursor on. lost_count: lines that were thrown away before they were read."""

    def __init__(self, folder: str, cursor: "Cursor | None") -> None:
        self._folder = folder
        if cursor is None:
            first = (segments(folder) or [0])[0]
            cursor = Cursor(first, first, 0)
        self.cursor = cursor
        self.lost_count = 0
        self._fd = -1
        self._fd_segment = -1

    def read(self, lines_max: int, bytes_max: int) -> "Piece | None":
        """The next lines, at most lines_max and about bytes_max but at least one; None when there are none yet.

        The cursor stays where it is: move it to Piece.after when the lines have been dealt with. Raises: OSError.
        """
        while True:
            piece = self._read(lines_max, bytes_max)
            if piece is not None:
                return piece
            later = [segment for segment in segments(self._folder) if segment > self.cursor.segment]
            if not later:
                return None
            # The writer may have appended to ours between our look into it and the birth of the next one.
            piece = self._read(lines_max, bytes_max)
            if piece is not None:
                return piece
            self.lost_count += max(0, later[0] - self.cursor.number)
            self.cursor = Cursor(later[0], later[0], 0)

    def close(self) -> None:
        """Closes the segment that is open."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._fd_segment = -1

    def _read(self, lines_max: int, bytes_max: int) -> "Piece | None":
        cursor = self.cursor
        if self._fd_segment != cursor.segment:
            self.close()
            try:
                self._fd = os.open(path(self._folder, cursor.segment), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            self._fd_segment = cursor.segment
        data = appended.pread(self._fd, bytes_max, cursor.offset)
        end = data.rfind(b"\n") + 1
        while not end and len(data) >= bytes_max:
            # One line longer than a batch.
            bytes_max *= 2
            data = appended.pread(self._fd, bytes_max, cursor.offset)
            end = data.rfind(b"\n") + 1
        if not end:
            return None
        lines = data[:end].split(b"\n")[:-1]
        if len(lines) > lines_max:
            del lines[lines_max:]
            end = sum(map(len, lines)) + len(lines)
        return Piece(
            cursor.number,
            [line + b"\n" for line in lines],
            Cursor(cursor.number + len(lines), cursor.segment, cursor.offset + end),
        )


def load_cursor(folder: str, name: str, sink: str) -> "tuple[Cursor | None, dict[str, object]]":
    """A sink's cursor and what the sink itself keeps beside it; None when there is none in the spool of that name."""
    try:
        with open(os.path.join(folder, f"cursor.{sink}"), "rb") as file:
            saved = json.loads(file.read())
        if saved["spool"] != name:
            return None, {}
        return Cursor(int(saved["number"]), int(saved["segment"]), int(saved["offset"])), dict(saved["sink"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}


def save_cursor(folder: str, name: str, sink: str, cursor: Cursor, kept: "dict[str, object]") -> None:
    """Keeps a sink's cursor. kept: JSON. Raises: OSError."""
    saved = {
        "spool": name,
        "number": cursor.number,
        "segment": cursor.segment,
        "offset": cursor.offset,
        "sink": kept,
    }
    replace(os.path.join(folder, f"cursor.{sink}"), json.dumps(saved).encode("ascii") + b"\n")


def sync(folder: str) -> None:
    """Returns when all lines that were there at the call are on the disk. Raises: OSError."""
    # What is before the last two was synced while it was one of them.
    for segment in segments(folder)[-2:]:
        try:
            fd = os.open(path(folder, segment), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


def sweep(folder: str, cursors: "Iterable[Cursor | None]", spool_max_bytes: int) -> "tuple[int, int]":
    """Throws away what every sink has read, and past spool_max_bytes the oldest, read or not; never the newest.

    Gives: bytes that are left, number of segments that were thrown away unread by some sink. Raises: OSError.
    """
    found = segments(folder)
    # A sink without a cursor has read nothing.
    needed = min((cursor.segment if cursor else 0 for cursor in cursors), default=0)
    sizes = {segment: os.stat(path(folder, segment)).st_size for segment in found}
    left_bytes = sum(sizes.values())
    unread_count = 0
    for segment in found[:-1]:
        if segment >= needed:
            if left_bytes <= spool_max_bytes:
                break
            unread_count += 1
        os.unlink(path(folder, segment))
        left_bytes -= sizes[segment]
    return left_bytes, unread_count


def replace(path: str, data: bytes, mode: int = 0o600) -> None:
    """Writes a small file whole or not at all. Raises: OSError."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def _whole_lines(fd: int) -> "tuple[int, int]":
    """How many whole lines a segment has, and their length in bytes."""
    count = end = offset = 0
    while True:
        data = os.pread(fd, _COUNT_PIECE_BYTES, offset)
        if not data:
            return count, end
        count += data.count(b"\n")
        last = data.rfind(b"\n")
        if last >= 0:
            end = offset + last + 1
        offset += len(data)
