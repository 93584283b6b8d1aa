# SPDX-License-Identifier: GPL-2.0-or-later
"""The sanitizer and the splitter once more: slow, a unit at a time, written from the seed and Unicode's table 3-7.

Shares nothing with guard/relay. A unit is what must not be cut: a character, a replaced byte, a NUL's six characters.
"""

REPLACEMENT = b"\xef\xbf\xbd"

# Unicode 15, table 3-7: first byte, second, third, fourth of a well-formed sequence.
WELL_FORMED = (
    ((0x00, 0x7F),),
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
    ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
    ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)


def sequence_at(data: bytes, at: int) -> bytes:
    """The well-formed sequence that begins at data[at], or nothing."""
    for row in WELL_FORMED:
        part = data[at : at + len(row)]
        if len(part) == len(row) and all(low <= byte <= high for byte, (low, high) in zip(part, row)):
            return part
    return b""


def is_rejected(code: int) -> bool:
    """Whether Slurm rejects this code point (seed "Record format"; NUL is another matter)."""
    return (
        0xD800 <= code <= 0xDFFF
        or 0xFDD0 <= code <= 0xFDEF
        or code & 0xFFFE == 0xFFFE
        or 0xE000 <= code <= 0xF8FF
        or 0xF0000 <= code <= 0xFFFFD
        or 0x100000 <= code <= 0x10FFFD
        or 0xFFF0 <= code <= 0xFFF8
    )


def units(data: bytes) -> "list[bytes]":
    """Everything data becomes, unit by unit, NULs escaped."""
    out = []
    at = 0
    while at < len(data):
        sequence = sequence_at(data, at)
        if not sequence:
            out.append(REPLACEMENT)
        elif sequence == b"\0":
            out.append(b"\\u0000")
        elif is_rejected(ord(sequence.decode())):
            out.append(REPLACEMENT)
        else:
            out.append(sequence)
        at += len(sequence) or 1
    return out


def bodies(data: bytes, cap_bytes: int) -> "list[tuple[bytes, bool]]":
    """The records of a buffered stream that wrote data and ended: body, partial."""
    out = []
    body = b""
    for unit in units(data):
        if len(body) + len(unit) > cap_bytes:
            out.append((body, True))
            body = b""
        body += unit
        if unit == b"\n":
            out.append((body, False))
            body = b""
        elif len(body) == cap_bytes:
            out.append((body, True))
            body = b""
    if body:
        out.append((body, True))
    return out
