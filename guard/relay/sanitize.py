# SPDX-License-Identifier: GPL-2.0-or-later
"""Any bytes -> UTF-8 of the subset that Slurm accepts, a piece at a time. Pure.

Seed relay_io "Record format"; the code points are those of Slurm's src/common/xutf.c (master 284c3b9, 2026-08-20).
Where that file takes several ill-formed bytes for one U+FFFD, the seed's words win: each byte that is not part of a
well-formed sequence is one U+FFFD. An encoded surrogate (ED A0 80) is not well-formed UTF-8: three bytes, three.
A NUL stays a NUL here: it is one thing of six bytes to whoever cuts a line (lines.py), and must not be cut in two.
"""

import codecs
import re

# \ud800-\udfff: what surrogateescape makes of a byte that is not part of a well-formed sequence, one for each byte.
_REJECTED = re.compile(
    "[\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufff0-\ufff8\ufffe\uffff"
    + "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(1, 15))
    + "\U000f0000-\U0010ffff]"
)
# Well-formed text without any of these bytes or pairs holds no rejected code point: U+E000 and up start with EE or
# EF, planes 15 and 16 with F3 or F4 (so do planes 12 to 14, which then go the slower way), nFFFE ends BF BE, BF BF.
_SUSPECTS = (b"\xee", b"\xef", b"\xf3", b"\xf4", b"\xbf\xbe", b"\xbf\xbf")


def clean(data: bytes, is_end: bool) -> "tuple[bytes, bytes]":
    """What can be said of data now, and the rest, which waits for more.

    Takes: data - the rest of the call before, and the bytes that followed; is_end - nothing will follow.
    Gives: clean - UTF-8 of the subset, NUL included; rest - at most 3 bytes, the beginning of a well-formed sequence;
    empty at the end.
    """
    if data.isascii():
        return data, b""
    try:
        text, used_bytes = codecs.utf_8_decode(data, "strict", is_end)
        if not any(suspect in data for suspect in _SUSPECTS):
            return data[:used_bytes], data[used_bytes:]
    except UnicodeDecodeError:
        text, used_bytes = codecs.utf_8_decode(data, "surrogateescape", is_end)
    return _REJECTED.sub("\ufffd", text).encode(), data[used_bytes:]
