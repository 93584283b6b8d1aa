# SPDX-License-Identifier: GPL-2.0-or-later
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.relay import sanitize
from tests.relay import reference, vectors


def whole(data: bytes) -> bytes:
    clean, rest = sanitize.clean(data, True)
    assert rest == b""
    return clean


def in_pieces(pieces: "list[bytes]") -> bytes:
    out, rest = b"", b""
    for piece in pieces:
        clean, rest = sanitize.clean(rest + piece, False)
        assert len(rest) <= 3
        out += clean
    return out + sanitize.clean(rest, True)[0]


@pytest.mark.parametrize(
    ("data", "expected"), [row[1:] for row in vectors.SANITIZED], ids=[r[0] for r in vectors.SANITIZED]
)
def test_each_vector_becomes_what_the_table_says_cut_anywhere(data: bytes, expected: bytes) -> None:
    assert whole(data) == expected
    for first, second in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        assert in_pieces([data[:first], data[first:second], data[second:]]) == expected
    assert in_pieces([bytes((byte,)) for byte in data]) == expected


def test_every_code_point_is_passed_or_replaced_as_slurm_does() -> None:
    passed: "set[int]" = set()
    for start in range(0, 0x110000, 0x1000):
        codes = [code for code in range(start, start + 0x1000) if not 0xD800 <= code <= 0xDFFF]
        if codes:
            text = whole("".join(map(chr, codes)).encode()).decode()
            assert len(text) == len(codes)
            passed.update(code for code, got in zip(codes, text) if ord(got) == code)
    refused = {code for code in range(0x110000) if reference.is_rejected(code)}
    assert passed == set(range(0x110000)) - refused


def test_a_rejected_code_point_is_found_among_others() -> None:
    """Each alone between harmless ones: the quick look must not overlook one."""
    for code in [
        *range(0xE000, 0x10000, 7),
        *range(0xFDD0, 0xFDF0),
        *range(0xFFF0, 0x10000),
        *range(0x10000, 0x110000, 31),
    ]:
        clean = whole(b"a" + chr(code).encode() + "é".encode())
        assert clean == b"a" + (vectors.R if reference.is_rejected(code) else chr(code).encode()) + "é".encode(), hex(
            code
        )


def test_all_pairs_and_leads_agree_with_the_reference() -> None:
    for first in range(0x80, 0x100):
        for second in range(256):
            for tail in (b"", b"\x80", b"\xbf\xbf", b"a"):
                data = bytes((first, second)) + tail
                assert whole(data).replace(b"\0", b"\\u0000") == b"".join(reference.units(data)), data


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_reads_may_fall_anywhere(pieces: "list[bytes]") -> None:
    assert in_pieces(pieces) == whole(b"".join(pieces))
