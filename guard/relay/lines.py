# SPDX-License-Identifier: GPL-2.0-or-later
"""One stream's bytes -> the bodies of its records. Pure.

Seed relay_io, "How output becomes records": a record is a line with its newline; a line that reaches the cap goes out
at once, marked partial, and so does a last line without a newline. The cap counts after sanitizing and NUL escaping. No
cut inside a character, nor inside the six characters that stand for a NUL. A carriage return is no line end.
The bodies of a line are its greedy cuts, so they are the same wherever the reads fell.
"""

from guard.relay import sanitize
from guard.relay.limits import NUL_TEXT_BYTES, UNBUFFERED_BODY_BYTES

NUL_TEXT = b"\\u0000"
_NUL_EXTRA_BYTES = NUL_TEXT_BYTES - 1

# What a piece is. LINES: one or more whole lines, each of them a record. The others are one record.
LINES = 0
PARTIAL = 1
UNBUFFERED = 2


class Stream:
    """What one stream holds between reads: less than the cap of an unfinished line, and 3 bytes of a character.

    A piece is (LINES | PARTIAL | UNBUFFERED, bytes): sanitized, NULs escaped, no body above cap_bytes.
    """

    __slots__ = ("_cap_bytes", "_held", "_held_bytes", "_rest")

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._rest = b""
        # Clean bytes of the unfinished line, NULs still NULs, and their length once those are escaped.
        self._held: "list[bytes]" = []
        self._held_bytes = 0

    def held_bytes(self) -> int:
        """What it holds, in bytes as its records will have them."""
        return self._held_bytes + len(self._rest)

    def feed(self, data: bytes, is_unbuffered: bool = False) -> "list[tuple[int, bytes]]":
        """The pieces that data completes. An unbuffered stream holds back nothing but a split character."""
        clean, self._rest = sanitize.clean(self._rest + data if self._rest else data, False)
        return self._unbuffered(clean) if is_unbuffered else self._split(clean)

    def end(self, is_unbuffered: bool = False) -> "list[tuple[int, bytes]]":
        """The pieces of what is still held. The stream may be fed again."""
        clean, self._rest = sanitize.clean(self._rest, True)
        pieces = self._unbuffered(clean) if is_unbuffered else self._split(clean)
        return pieces + self._release()

    def _unbuffered(self, clean: bytes) -> "list[tuple[int, bytes]]":
        cap_bytes = min(self._cap_bytes, UNBUFFERED_BODY_BYTES)
        return self._release() + [(UNBUFFERED, _escaped(body)) for body in _cuts(clean, cap_bytes)]

    def _split(self, clean: bytes) -> "list[tuple[int, bytes]]":
        end = clean.rfind(b"\n") + 1
        if not end:
            return self._hold(clean) if clean else []
        pieces: "list[tuple[int, bytes]]" = []
        start = 0
        if self._held:
            start = clean.index(b"\n") + 1
            pieces += self._line(b"".join(self._held) + clean[:start])
            self._held = []
            self._held_bytes = 0
        pieces += self._lines(clean[start:end])
        if end < len(clean):
            pieces += self._hold(clean[end:])
        return pieces

    def _lines(self, block: bytes) -> "list[tuple[int, bytes]]":
        """Pieces of whole lines. They are looked at one by one only if one may be above the cap."""
        escaped = _escaped(block)
        if not _has_long_line(escaped, self._cap_bytes):
            return [(LINES, escaped)] if block else []
        pieces: "list[tuple[int, bytes]]" = []
        start = at = 0
        while at < len(block):
            after = block.index(b"\n", at) + 1
            if after - at + _NUL_EXTRA_BYTES * block.count(b"\0", at, after) > self._cap_bytes:
                pieces += [(LINES, _escaped(block[start:at]))] if start < at else []
                pieces += self._line(block[at:after])
                start = after
            at = after
        return pieces + ([(LINES, _escaped(block[start:]))] if start < len(block) else [])

    def _line(self, line: bytes) -> "list[tuple[int, bytes]]":
        """Pieces of one line that has its newline."""
        *bodies, last = _cuts(line, self._cap_bytes)
        return [*((PARTIAL, _escaped(body)) for body in bodies), (LINES, _escaped(last))]

    def _hold(self, tail: bytes) -> "list[tuple[int, bytes]]":
        """Adds to the unfinished line, and gives the cuts that it has reached."""
        self._held.append(tail)
        self._held_bytes += len(tail) + _NUL_EXTRA_BYTES * tail.count(b"\0")
        if self._held_bytes < self._cap_bytes:
            return []
        *bodies, last = _cuts(b"".join(self._held), self._cap_bytes)
        self._held = [last]
        self._held_bytes = len(last) + _NUL_EXTRA_BYTES * last.count(b"\0")
        pieces = [(PARTIAL, _escaped(body)) for body in bodies]
        return pieces + self._release() if self._held_bytes >= self._cap_bytes else pieces

    def _release(self) -> "list[tuple[int, bytes]]":
        body = _escaped(b"".join(self._held))
        self._held = []
        self._held_bytes = 0
        return [(PARTIAL, body)] if body else []


def _has_long_line(block: bytes, cap_bytes: int) -> bool:
    """Whether whole lines hold one above cap_bytes, its newline counted.

    If every window of half the cap holds a newline, none does: a few finds, where a look at each line would cost more
    than the rest of the splitting.
    """
    if len(block) <= cap_bytes:
        return False
    half_bytes = cap_bytes // 2
    for start in range(0, len(block), half_bytes):
        if block.find(b"\n", start, start + half_bytes) < 0:
            return max(map(len, block.split(b"\n"))) >= cap_bytes
    return False


def _escaped(clean: bytes) -> bytes:
    return clean.replace(b"\0", NUL_TEXT)


def _cuts(clean: bytes, cap_bytes: int) -> "list[bytes]":
    """clean cut greedily: every cut but the last is full, none is above cap_bytes once its NULs are escaped."""
    cuts = []
    start = 0
    while start < len(clean):
        end = _cut_end(clean, start, cap_bytes)
        cuts.append(clean[start:end])
        start = end
    return cuts


def _cut_end(clean: bytes, start: int, cap_bytes: int) -> int:
    end = start + cap_bytes
    at = clean.find(b"\0", start, end)
    while at >= 0:
        end -= _NUL_EXTRA_BYTES
        if at >= end:
            end = at  # this NUL no longer fits
            break
        at = clean.find(b"\0", at + 1, end)
    if end < len(clean):
        while clean[end] & 0xC0 == 0x80:
            end -= 1
    return min(end, len(clean))
