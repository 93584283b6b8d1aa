# SPDX-License-Identifier: GPL-2.0-or-later
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.relay import lines
from tests.relay import reference, vectors

CASES = int(os.environ.get("FUZZ_CASES", "100000"))
Bodies = list[tuple[bytes, bool]]


def bodies_of(pieces: "list[tuple[int, bytes]]") -> "Bodies":
    out: "Bodies" = []
    for kind, data in pieces:
        if kind == lines.LINES:
            assert data.endswith(b"\n")
            out += [(line + b"\n", False) for line in data[:-1].split(b"\n")]
        else:
            out.append((data, kind == lines.PARTIAL))
    return out


def split(reads: "list[bytes]", cap_bytes: int, is_unbuffered: bool = False) -> "Bodies":
    stream = lines.Stream(cap_bytes)
    pieces = [piece for read in reads for piece in stream.feed(read, is_unbuffered)]
    return bodies_of(pieces + stream.end(is_unbuffered))


TABLE: "tuple[tuple[str, bytes, Bodies], ...]" = (
    ("nothing", b"", []),
    ("a line", b"hello\n", [(b"hello\n", False)]),
    ("an empty line", b"\n\n", [(b"\n", False), (b"\n", False)]),
    ("a last line without newline", b"a\nb", [(b"a\n", False), (b"b", True)]),
    ("a carriage return is no line end", b"a\rb\rc\nd\r\n", [(b"a\rb\rc\n", False), (b"d\r\n", False)]),
    ("exactly the cap with its newline", b"1234567\n", [(b"1234567\n", False)]),
    ("exactly the cap before its newline", b"12345678\n", [(b"12345678", True), (b"\n", False)]),
    ("above the cap", b"123456789\n", [(b"12345678", True), (b"9\n", False)]),
    ("twice the cap, no newline", b"1234567812345678", [(b"12345678", True), (b"12345678", True)]),
    ("no cut inside a character", "1234567é\n".encode(), [(b"1234567", True), ("é\n".encode(), False)]),
    ("a character that just fits", "123456é\n".encode(), [("123456é".encode(), True), (b"\n", False)]),
    ("four bytes at the border", "12345\U0001f600\n".encode(), [(b"12345", True), ("\U0001f600\n".encode(), False)]),
    ("a NUL takes six", b"a\0b\n", [(b"a\\u0000b", True), (b"\n", False)]),
    ("a NUL is not cut in two", b"abc\0d\n", [(b"abc", True), (b"\\u0000d\n", False)]),
    ("NULs", b"\0\0\0", [(b"\\u0000", True)] * 3),
    ("what looks like a NUL's text is six characters", b"abc\\u0000\n", [(b"abc\\u000", True), (b"0\n", False)]),
    ("an ill-formed byte takes three", b"ab\xff\xff\n", [(b"ab" + vectors.R * 2, True), (b"\n", False)]),
    ("and is not cut in two", b"abc\xff\xff\n", [(b"abc" + vectors.R, True), (vectors.R + b"\n", False)]),
    ("a character cut off by the end", b"ab\xe2\x82", [(b"ab" + vectors.R * 2, True)]),
    (
        "short, long, short",
        b"a\n123456789\nb\n",
        [(b"a\n", False), (b"12345678", True), (b"9\n", False), (b"b\n", False)],
    ),
    (
        "line separators of Unicode and of str.splitlines",
        b"\x0b\x0c\x1c\xc2\x85\n",
        [(b"\x0b\x0c\x1c\xc2\x85\n", False)],
    ),
)


@pytest.mark.parametrize(("data", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_stream_is_cut_as_the_table_says_wherever_the_reads_fall(data: bytes, expected: "Bodies") -> None:
    assert reference.bodies(data, 8) == expected
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert split([data[:first], data[first:second], data[second:]], 8) == expected
    assert split([bytes((byte,)) for byte in data], 8) == expected


def test_a_line_that_reaches_the_cap_does_not_wait_for_its_newline() -> None:
    stream = lines.Stream(8)
    assert stream.feed(b"1234567") == []
    assert stream.feed(b"8") == [(lines.PARTIAL, b"12345678")]
    assert stream.end() == []


def test_a_split_character_waits() -> None:
    stream = lines.Stream(1024)
    assert stream.feed(b"\xf0\x9f\x98") == []
    assert stream.feed(b"\x80\n") == [(lines.LINES, "\U0001f600\n".encode())]


def test_a_stream_that_ended_may_go_on() -> None:
    stream = lines.Stream(1024)
    stream.feed(b"ab\xe2")
    assert stream.end() == [(lines.PARTIAL, b"ab" + vectors.R)]
    assert stream.feed(b"\x82\n") == [(lines.LINES, vectors.R + b"\n")]


@pytest.mark.parametrize("reads", [[b"a\nb"], [b"a", b"\n", b"b"]])
def test_unbuffered_output_is_cut_at_each_read_and_never_partial(reads: "list[bytes]") -> None:
    assert split(reads, 4096, True) == [(read, False) for read in reads]


def test_unbuffered_chunks_are_at_most_a_kib_and_hold_whole_characters() -> None:
    data = b"x" * 1023 + "é".encode() + b"\0" * 200 + b"\xff" * 400
    got = split([data], 4096, True)
    assert b"".join(body for body, _ in got) == b"".join(reference.units(data))
    assert [len(body) for body, _ in got] == [1023, 1022, 1023, 357]
    assert not any(partial for _, partial in got)


def random_case(draw: random.Random) -> bytes:
    """Mostly what the rows of the tables are made of, so that every path is met often."""
    parts = [
        b"\n", b"\r", b"\0", b"\0\0", b"a", b"word", b"longer words\n", b"\\u0000", b"\xff", b"\x80", b"\xe2", b"\x82",
        b"\xac", b"\xed\xa0\x80", b"\xf0\x9f", b"\x98\x80", "é".encode(), "€".encode(), "\U0001f600".encode(),
        "\ue000".encode(), "\uffff".encode(), b"\xf4\x90\x80\x80", b"\xc0\x80",
    ]  # fmt: skip
    if draw.random() < 0.2:
        return draw.getrandbits(8 * 24).to_bytes(24, "little")
    return b"".join(draw.choices(parts, k=draw.randint(0, 14)))


def test_the_slow_reference_gives_the_same_on_random_input() -> None:
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    for case in range(CASES):
        data = random_case(draw)
        cap_bytes = draw.choice((8, 9, 11, 16, 40))
        cut = draw.randint(0, len(data))
        reads = [data[:cut], data[cut : cut + 3], data[cut + 3 :]]
        assert split(reads, cap_bytes) == reference.bodies(data, cap_bytes), (seed, case, reads, cap_bytes)


@given(st.lists(st.binary(max_size=3000), max_size=6), st.integers(1, 64))
def test_bodies_joined_are_the_sanitized_input_and_within_the_cap(reads: "list[bytes]", cap_kbytes: int) -> None:
    data = b"".join(reads)
    got = split(reads, cap_kbytes * 1024)
    assert b"".join(body for body, _ in got) == b"".join(reference.units(data))
    assert all(0 < len(body) <= cap_kbytes * 1024 for body, _ in got)
    assert all(partial != body.endswith(b"\n") for body, partial in got)
    unbuffered = split(reads, cap_kbytes * 1024, True)
    assert b"".join(body for body, _ in unbuffered) == b"".join(reference.units(data))
    assert all(0 < len(body) <= 1024 for body, _ in unbuffered)


def test_a_line_of_200_mb_holds_no_more_than_the_cap() -> None:
    stream = lines.Stream(4096)
    total_bytes = 0
    piece = b"x" * 65_521
    for _ in range(3200):
        total_bytes += sum(len(body) for kind, body in stream.feed(piece) if kind == lines.PARTIAL)
        assert stream._held_bytes < 4096
    assert total_bytes + stream._held_bytes == 3200 * 65_521
