# SPDX-License-Identifier: GPL-2.0-or-later
import array
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.scraper import bind, receive
from guard.scraper.limits import RECEIVE_SLOTS_COUNT

ME = os.geteuid()
SO_SNDBUFFORCE = 32


class Pair:
    """A bound socket of ours and a connected sender."""

    def __init__(self, path: str) -> None:
        self.bound = bind.bound(path, frozenset((0, ME)), ME, 0.0)
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sender.connect(path)
        self.sender.setblocking(False)

    def receiver(self, uids: "frozenset[int]" = frozenset((ME,)), slot_bytes: int = 65536) -> receive.Receiver:
        return receive.Receiver(self.bound.sock, uids, slot_bytes)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    tmp_path.chmod(0o755)
    made = Pair(str(tmp_path / "s"))
    yield made
    made.sender.close()
    made.bound.sock.close()
    os.close(made.bound.lock_fd)


def test_nothing_is_nothing(pair: Pair) -> None:
    batch = pair.receiver().drain()
    assert (batch.datagrams, batch.refused) == ([], [])


def test_all_that_is_queued_comes_in_one_look_in_order_with_sender_and_the_kernels_time(pair: Pair) -> None:
    before_ns = time.time_ns()
    count = min(8, RECEIVE_SLOTS_COUNT)
    for number in range(count):
        pair.sender.send(b"%d" % number * (number + 1))
    after_ns = time.time_ns()
    time.sleep(0.05)
    datagrams = pair.receiver().drain().datagrams
    assert [raw for raw, _, _ in datagrams] == [b"%d" % number * (number + 1) for number in range(count)]
    assert all(pid == os.getpid() for _, _, pid in datagrams)
    times = [received_ns for _, received_ns, _ in datagrams]
    assert times == sorted(times) and before_ns <= times[0] and times[-1] <= after_ns


def test_the_same_slots_serve_again_and_again(pair: Pair) -> None:
    receiver = pair.receiver()
    for number in range(50):
        pair.sender.send(b"x" * (50 - number))
        assert [raw for raw, _, _ in receiver.drain().datagrams] == [b"x" * (50 - number)]


def test_a_datagram_longer_than_the_slot_is_seen_and_the_next_of_its_size_is_taken(pair: Pair) -> None:
    receiver = pair.receiver(slot_bytes=65536)
    # The sender's buffer, 208 KiB, counts whole pages: 200,000 bytes in pages of 16 KiB leave it no room for "after".
    pair.sender.send(b"{" + b"x" * 99_998 + b"}")
    pair.sender.send(b"after")
    batch = receiver.drain()
    assert [(code, len(head), pid) for code, head, pid in batch.refused] == [("truncated", 4096, os.getpid())]
    assert [raw for raw, _, _ in batch.datagrams] == [b"after"]
    pair.sender.send(b"{" + b"x" * 99_998 + b"}")
    assert [len(raw) for raw, _, _ in receiver.drain().datagrams] == [100_000]


def test_a_datagram_just_as_long_as_the_slot_is_whole(pair: Pair) -> None:
    pair.sender.send(b"x" * 65536)
    assert [len(raw) for raw, _, _ in pair.receiver(slot_bytes=65536).drain().datagrams] == [65536]


def test_the_slot_takes_the_longest_that_an_ordinary_sender_can_send(pair: Pair) -> None:
    with open("/proc/sys/net/core/wmem_default", "rb") as file:
        longest = int(file.read()) - 32  # measured: sndbuf - 32; one byte more is EMSGSIZE
    with pytest.raises(OSError, match="Message too long"):
        pair.sender.send(b"x" * (longest + 1))
    pair.sender.send(b"x" * longest)
    assert [len(raw) for raw, _, _ in pair.receiver(slot_bytes=receive.slot_bytes()).drain().datagrams] == [longest]


def test_root_can_send_what_no_ordinary_sender_can_and_it_is_taken_the_second_time(pair: Pair) -> None:
    if ME != 0:
        pytest.skip("only root may go past wmem_max")
    pair.sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    receiver = pair.receiver(slot_bytes=256 << 10)
    pair.sender.send(b"x" * (2 << 20))
    assert [code for code, _, _ in receiver.drain().refused] == ["truncated"]
    pair.sender.send(b"x" * (2 << 20))
    assert [len(raw) for raw, _, _ in receiver.drain().datagrams] == [2 << 20]


def test_another_users_datagram_is_refused(pair: Pair) -> None:
    pair.sender.send(b"forged")
    batch = pair.receiver(frozenset((ME + 1,))).drain()
    assert batch.datagrams == []
    assert batch.refused == [("foreign-uid", b"forged", os.getpid())]


def test_each_datagram_is_judged_by_its_own_sender(pair: Pair) -> None:
    if ME != 0:
        pytest.skip("only root can send as somebody else")
    pair.sender.send(b"root's")
    pid = os.fork()
    if pid == 0:
        os.setuid(12345)
        pair.sender.send(b"forged")
        os._exit(0)
    os.waitpid(pid, 0)
    pair.sender.send(b"root's again")
    batch = pair.receiver().drain()
    assert [raw for raw, _, _ in batch.datagrams] == [b"root's", b"root's again"]
    assert batch.refused == [("foreign-uid", b"forged", pid)]


def test_a_datagram_from_before_credentials_were_asked_for_is_not_taken_for_the_last_ones_sender(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, socket.socket(socket.AF_UNIX, 2) as sender:
        sock.bind(path)
        sender.connect(path)
        bind.adopted(sock)
        receiver = receive.Receiver(sock, frozenset((ME,)), 65536)
        sender.send(b"known")
        assert len(receiver.drain().datagrams) == 1
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        sender.send(b"unknown")
        assert [code for code, _, _ in receiver.drain().refused] == ["foreign-uid"]


def test_file_descriptors_that_come_along_are_closed(pair: Pair) -> None:
    receiver = pair.receiver()
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    pair.sender.sendmsg([b"gift"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write_fd] * 20))])
    os.close(write_fd)
    assert [raw for raw, _, _ in receiver.drain().datagrams] == [b"gift"]
    assert os.read(read_fd, 1) == b""  # nobody has the other end, or it would be BlockingIOError
    os.close(read_fd)


def test_an_empty_datagram_is_no_end(pair: Pair) -> None:
    pair.sender.send(b"")
    pair.sender.send(b"after")
    assert [raw for raw, _, _ in pair.receiver().drain().datagrams] == [b"", b"after"]


def test_after_the_shut_down_senders_keep_their_record_and_what_was_queued_is_still_read(pair: Pair) -> None:
    receiver = pair.receiver()
    pair.sender.send(b"queued")
    pair.bound.sock.shutdown(socket.SHUT_RD)
    with pytest.raises(BrokenPipeError):
        pair.sender.send(b"kept")
    assert [raw for raw, _, _ in receiver.drain().datagrams] == [b"queued"]
    assert receiver.drain().datagrams == []


def test_a_long_datagram_costs_memory_only_once_it_has_come() -> None:
    with open("/proc/self/statm", "rb") as file:
        before = int(file.read().split()[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        receiver = receive.Receiver(sock, frozenset(), 8 << 20)
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1]) - before
        assert receiver and pages * os.sysconf("SC_PAGESIZE") < 1 << 20
