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
    from typing import Any, BinaryIO

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
    raw: BinaryIO = sys.stdin.buffer if path == "-" else open(path, "rb", buffering=PIECE_BYTES)  # noqa: SIM115
    file = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)  # type: ignore[arg-type]
    begin = file.peek(4)[:4]
    if begin.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), PIECE_BYTES)
    if begin == _ZSTD:
        try:
            import zstandard
        except ImportError:
            raise SiteFault("zstandard-missing", path)
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(reader, PIECE_BYTES)  # type: ignore[arg-type]
    return file
