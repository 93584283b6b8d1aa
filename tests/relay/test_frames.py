# SPDX-License-Identifier: GPL-2.0-or-later
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base.faults import PeerFault
from guard.relay import frames
from guard.relay.frames import Frame


def packet(
    kind: int = 4,
    stream: int = 1,
    flags: int = 0,
    zero: int = 0,
    length: "int | None" = None,
    payload: bytes = b"x",
    end: int = 0,
) -> bytes:
    """As the text of frames.py has it, packed by hand."""
    size = len(payload) if length is None else length
    return struct.pack("<BBBBIIIQI", kind, stream, flags, zero, 3, 7, size, 1786000818715000001, end) + payload


def test_a_frame_is_laid_out_as_the_text_says() -> None:
    made = frames.pack(Frame(frames.DATA, b"x", frames.STDOUT, 3, 7, 1786000818715000001, True))
    assert made == packet(flags=1)
    assert made[:4] == b"\x04\x01\x01\x00"
    assert (made[4:8], made[8:12], made[12:16]) == (b"\x03\0\0\0", b"\x07\0\0\0", b"\x01\0\0\0")
    assert len(made) == 28 + 1


def test_a_frame_comes_back() -> None:
    got = frames.unpack(packet(flags=1, payload=b"hello"))
    assert (got.kind, got.stream, got.is_unbuffered, got.task_local, got.task_global) == (4, 1, True, 3, 7)
    assert (got.time_ns, got.payload) == (1786000818715000001, b"hello")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "0 bytes"),
        (packet()[:27], "27 bytes"),
        (packet(length=0), "length 0 in a packet of 29 bytes"),
        (packet(length=2), "length 2 in a packet of 29 bytes"),
        (packet(length=0xFFFF_FFFF), "length 4294967295 in"),
        (packet(payload=b"x" * 65537), "65565 bytes"),
        (packet(kind=0), "kind 0"),
        (packet(kind=11), "kind 11"),
        (packet(kind=255), "kind 255"),
        (packet(flags=2), "flags 2"),
        (packet(zero=1), "flags 0"),
        (packet(end=1), "flags 0"),
        (packet(stream=0), "stream 0 with kind 4"),
        (packet(stream=3), "stream 3 with kind 4"),
        (packet(kind=10, stream=1, payload=b""), "stream 1 with kind 10"),
        (packet()[:16] + b"\xff" * 8 + packet()[24:], "time_ns 18446744073709551615"),
        (packet(payload=b""), "payload of 0 bytes with kind 4"),
        (packet(kind=6, payload=b"1234567"), "payload of 7 bytes with kind 6"),
    ],
)
def test_what_is_no_frame_is_refused(bad: bytes, why: str) -> None:
    with pytest.raises(PeerFault) as caught:
        frames.unpack(bad)
    assert (caught.value.code, why in caught.value.detail) == ("bad-frame", True)


@given(
    st.binary(max_size=80) | st.builds(packet, kind=st.integers(0, 12), flags=st.integers(0, 3), payload=st.binary())
)
def test_any_bytes_are_a_frame_or_a_peers_fault(data: bytes) -> None:
    try:
        frame = frames.unpack(data)
    except PeerFault:
        return
    assert frames.pack(frame) == data


@given(
    st.dictionaries(
        st.from_regex("[a-z_]{1,9}", fullmatch=True),
        st.binary(max_size=40).filter(lambda one: b"\0" not in one),
        max_size=9,
    )
)
def test_fields_come_back(fields: "dict[str, bytes]") -> None:
    assert frames.fields_of(frames.fields_payload(fields)) == fields


@pytest.mark.parametrize(
    "bad", [b"a=1", b"a\0", b"a=1\0a=2\0", b"\xe9=1\0", b"=\0=\0", b"\0", b"a=" + b"x" * 4095 + b"\0", b"a=1\0\0"]
)
def test_fields_that_are_none_are_refused(bad: bytes) -> None:
    with pytest.raises(PeerFault):
        frames.fields_of(bad)


@pytest.mark.parametrize(
    "digits", [b"", b"-1", b"+1", b"1.0", b"0x1", b" 1", b"1 ", b"4294967296", b"9" * 30, "٤".encode(), b"\xb2"]
)
def test_a_number_is_digits_within_its_range(digits: bytes) -> None:
    with pytest.raises(PeerFault):
        frames.number({"job_id": digits}, "job_id", 0xFFFF_FFFF)
    with pytest.raises(PeerFault):
        frames.number({}, "job_id", 0xFFFF_FFFF)
    assert frames.number({"job_id": b"4294967295"}, "job_id", 0xFFFF_FFFF) == 0xFFFF_FFFF
