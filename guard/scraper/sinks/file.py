# SPDX-License-Identifier: GPL-2.0-or-later
"""NDJSON files, one a day or one a job, rotated by us: by rename, so that no reader's file is cut under it. World room.

Before a batch is written, the sizes of the files that it goes to are kept beside the cursor; whoever finds that note
at the start cuts the files back to them, so that a killed scraper neither loses nor doubles a line.
"""

import os
import time

from guard.base.faults import NodeFault
from guard.scraper import decode
from guard.scraper.limits import OPEN_FILES_MAX_COUNT, SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.scraper.sinks.verdict import Item

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_NS = 1_000_000_000
_PART_MAX_CHARACTERS = 64


class _File:
    """An open file. size_bytes: of its whole lines; opened_s: when it was begun, seconds since the epoch."""

    __slots__ = ("begun_s", "fd", "identity", "size_bytes")

    def __init__(self, fd: int) -> None:
        found = os.fstat(fd)
        self.fd = fd
        self.size_bytes = found.st_size
        self.identity = (found.st_dev, found.st_ino)
        self.begun_s = found.st_mtime if found.st_size else time.time()


class FileSink:
    """Writes into folder. per: "day" (UTC, by the records' time) or "job"; mode: of new files."""

    def __init__(
        self,
        folder: str,
        per: str,
        max_bytes: int,
        max_age_s: float,
        keep_days: int,
        mode: int,
        keep: "Callable[[dict[str, object]], None]",
        kept: "dict[str, object]",
        open_max_count: int = OPEN_FILES_MAX_COUNT,
    ) -> None:
        self.lines_max = SINK_BATCH_RECORDS
        self.bytes_max = SINK_BATCH_BYTES
        self._folder = folder
        self._per = per
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._keep_days = keep_days
        self._mode = mode
        self._keep = keep
        self._open_max_count = open_max_count
        self._files: dict[str, _File] = {}
        self._cleaned_s = 0.0
        os.makedirs(folder, mode=0o750, exist_ok=True)
        for name, size_bytes in kept.items():
            self._cut_back(os.path.join(folder, name), size_bytes)

    def send(self, items: "list[Item]") -> Verdict:
        """Appends every item, or none."""
        heaps: dict[str, list[bytes]] = {}
        for _, line in items:
            heaps.setdefault(self._name(line), []).append(line)
        sizes: dict[str, object] = {}
        files: dict[str, _File] = {}
        try:
            for name in heaps:
                files[name] = self._opened(name, files)
                sizes[name] = files[name].size_bytes
            self._keep(sizes)
            for name, lines in heaps.items():
                _append(files[name], b"".join(lines))
        except OSError as error:
            for name, file in files.items():
                self._undo(file, sizes.get(name))
            raise NodeFault("sink-failed", f"{self._folder}: {error.strerror}")
        return Verdict()

    def reopen(self) -> None:
        """Closes all files; the next lines open what is there then."""
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def idle(self) -> None:
        """Rotates what is too old and removes what is older than keep_days, now and then."""
        now_s = time.time()
        if now_s - self._cleaned_s < 60:
            return
        self._cleaned_s = now_s
        for name, file in list(self._files.items()):
            if now_s - file.begun_s >= self._max_age_s:
                self._rotate(name, file)
        if self._keep_days:
            self._remove_old(now_s - self._keep_days * 86400)

    def close(self) -> None:
        """Closes all files."""
        self.reopen()

    def _name(self, line: bytes) -> str:
        fields = decode.quick_loads(line)
        if self._per == "day":
            day = time.strftime("%Y-%m-%d", time.gmtime(fields["time"] // _NS))
            return f"{day}.ndjson"
        slurm = fields["slurm"]
        # From a record, so it may hold anything; two jobs must not share a name either.
        parts = (slurm.get("cluster", ""), str(slurm.get("job_id", "none")), slurm.get("sluid", ""))
        return ".".join(_safe(part) for part in parts if part) + ".ndjson"

    def _opened(self, name: str, in_use: "dict[str, _File]") -> _File:
        """The open file of that name: the one that is in the folder now, rotated if it is full or old."""
        path = os.path.join(self._folder, name)
        file = self._files.pop(name, None)
        if file and not _is_at(file, path):
            os.close(file.fd)
            file = None
        if file and (
            file.size_bytes >= self._max_bytes or (file.size_bytes and time.time() - file.begun_s >= self._max_age_s)
        ):
            self._rotate(name, file)
            file = None
        if file is None:
            while len(self._files) >= self._open_max_count:
                oldest = next((other for other in self._files if other not in in_use), None)
                if oldest is None:
                    break  # a batch may touch more files than may stay open; it has at most lines_max
                os.close(self._files.pop(oldest).fd)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = _File(os.open(path, flags, self._mode))
            if file.size_bytes >= self._max_bytes:
                self._files[name] = file
                self._rotate(name, file)
                file = _File(os.open(path, flags, self._mode))
        self._files[name] = file
        return file

    def _rotate(self, name: str, file: _File) -> None:
        stem = name[: -len(".ndjson")]
        taken_s = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for number in range(1000):
            target = os.path.join(self._folder, f"{stem}.{taken_s}.{number}.ndjson")
            if not os.path.lexists(target):
                os.rename(os.path.join(self._folder, name), target)
                break
        os.close(file.fd)
        self._files.pop(name, None)

    def _undo(self, file: _File, size_bytes: object) -> None:
        if isinstance(size_bytes, int):
            try:
                os.ftruncate(file.fd, size_bytes)
                file.size_bytes = size_bytes
            except OSError:
                pass  # the note beside the cursor still tells it, at the next start

    def _cut_back(self, path: str, size_bytes: object) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return
        try:
            if isinstance(size_bytes, int) and os.fstat(fd).st_size > size_bytes:
                os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)

    def _remove_old(self, before_s: float) -> None:
        for entry in os.scandir(self._folder):
            if not entry.name.endswith(".ndjson") or entry.name in self._files:
                continue
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before_s:
                os.unlink(entry.path)


def _append(file: _File, data: bytes) -> None:
    """At the end of what we know to be whole: after a short write the next try overwrites the torn line."""
    written = 0
    while written < len(data):
        written += os.pwrite(file.fd, data[written:], file.size_bytes + written)
    file.size_bytes += written


def _is_at(file: _File, path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == file.identity


def _safe(part: str) -> str:
    if part and not set(part) - _SAFE and len(part) <= _PART_MAX_CHARACTERS:
        return part
    import hashlib

    digest = hashlib.sha256(part.encode("utf-8")).hexdigest()[:12]
    return "".join(character if character in _SAFE else "_" for character in part[:_PART_MAX_CHARACTERS]) + "." + digest
