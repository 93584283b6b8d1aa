# SPDX-License-Identifier: GPL-2.0-or-later
"""Files -> lines, one after the other, never a whole file: plain, gzip or zstd, told by how they begin. World room."""

import gzip
import io
import sys
import zlib

from guard.base.faults import NodeFault, SiteFault
from guard.report.limits import LINE_MAX_BYTES, PIECE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def lines(path: str) -> "Iterator[bytes]":
    """The lines of a file, `-` for stdin, each without its newline; a last one without newline counts.

    A line longer than LINE_MAX_BYTES comes in pieces, none of which is a record.
    Raises: NodeFault(unreadable), SiteFault(zstandard-missing).
    """
    try:
        with _opened(path) as file:
            while True:
                line = file.readline(LINE_MAX_BYTES)
                if not line:
                    return
                yield line.rstrip(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise NodeFault("unreadable", f"{path}: {getattr(error, 'strerror', None) or error}")


def _opened(path: str) -> "Any":
    file: Any = sys.stdin.buffer if path == "-" else open(path, "rb", buffering=PIECE_BYTES)  # noqa: SIM115
    begin = file.peek(4)[:4]
    if begin.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), PIECE_BYTES)
    if begin == _ZSTD:
        try:
            import zstandard
        except ImportError:
            raise SiteFault("zstandard-missing", path)
        return io.BufferedReader(_Zstd(zstandard, file), PIECE_BYTES)
    return file


class _Zstd(io.RawIOBase):
    """A zstd file of any number of frames. zstandard's own stream_reader takes a cut file for one that ends."""

    def __init__(self, zstandard: "Any", file: "Any") -> None:
        super().__init__()
        self._zstandard = zstandard
        self._file = file
        self._frame: "Any" = None
        self._ready = b""
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Any") -> int:
        """Fills buffer with what comes next, 0 at the end. Raises: OSError - it is no zstd, or cut."""
        try:
            while not self._ready:
                piece = self._rest or self._file.read(PIECE_BYTES // 8)
                self._rest = b""
                if not piece:
                    if self._frame is not None:
                        raise OSError("the file ends in the middle of a frame")
                    return 0
                if self._frame is None:
                    self._frame = self._zstandard.ZstdDecompressor().decompressobj()
                self._ready = self._frame.decompress(piece)
                if self._frame.eof:
                    self._rest = self._frame.unused_data
                    self._frame = None
        except self._zstandard.ZstdError as error:
            raise OSError(str(error))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
