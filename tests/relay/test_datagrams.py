# SPDX-License-Identifier: GPL-2.0-or-later
"""Real sockets; with sendmmsg and, as where there is no ctypes, without."""

import errno
import mmap
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.relay import datagrams, limits

Pair = tuple[socket.socket, socket.socket]


def _made() -> datagrams.Window:
    return datagrams.Window(mmap.mmap(-1, datagrams.PLACE_BYTES), 0)


@pytest.fixture(params=["sendmmsg", "send"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> datagrams.Window:
    if request.param == "send":
        monkeypatch.setattr(datagrams, "_SENDMMSG", None)
    made = _made()
    assert made.is_batched == (request.param == "sendmmsg")
    return made


@pytest.fixture
def pair() -> "Iterator[Pair]":
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.settimeout(120)
        yield ours, theirs


def test_a_window_holds_the_oldest_within_its_count_and_bytes(window: datagrams.Window) -> None:
    records = [b"x" * (limits.WINDOW_BYTES // 4)] * 9
    window.load(records, 3)
    assert len(window.lengths) == 3
    window.load(records, 9)
    assert len(window.lengths) == 4
    window.load([b"y" * (limits.WINDOW_BYTES + 1), b"z"], 9)
    assert window.lengths == [limits.WINDOW_BYTES + 1]
    window.load([], 9)
    assert window.lengths == []


def test_what_is_sent_at_once_are_datagrams_of_their_own(window: datagrams.Window, pair: Pair) -> None:
    ours, theirs = pair
    window.load([b"one", b"", b"three" * 1000, b"four"], 9)
    got, at = [], 0
    while at < 4:
        count = window.send(ours, at, 2, 0)
        assert count == (2 if window.is_batched else 1)
        at += count
        got += [theirs.recv(9999) for _ in range(count)]
    assert got == [b"one", b"", b"three" * 1000, b"four"]


def test_a_full_socket_says_how_many_it_took_and_then_that_it_is_full(window: datagrams.Window, pair: Pair) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    records = [b"%04d" % number * 250 for number in range(200)]
    window.load(records, 200)
    at = 0
    with pytest.raises(BlockingIOError):
        while at < 200:
            at += window.send(ours, at, 200, socket.MSG_DONTWAIT)
    assert 0 < at < 200
    assert [theirs.recv(9999) for _ in range(at)] == records[:at]
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(9999)


def test_one_too_long_is_told_when_it_is_the_first(window: datagrams.Window, pair: Pair) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    window.load([b"before", b"x" * 100_000, b"after"], 9)
    assert window.send(ours, 0, 9, 0) == 1
    with pytest.raises(OSError, match="Message too long") as caught:
        window.send(ours, 1, 9, 0)
    assert caught.value.errno == errno.EMSGSIZE
    assert window.send(ours, 2, 9, 0) == 1
    assert [theirs.recv(99), theirs.recv(99)] == [b"before", b"after"]


@settings(max_examples=50)
@given(st.lists(st.lists(st.binary(max_size=600), max_size=8), max_size=4))
def test_windows_one_after_the_other_carry_their_own_records(loads: "list[list[bytes]]") -> None:
    made = _made()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        for records in loads:
            made.load(records, limits.WINDOW_MOST_COUNT)
            at = 0
            while at < len(records):
                at += made.send(ours, at, 8, 0)
            assert [theirs.recv(9999) for _ in records] == records
