# SPDX-License-Identifier: GPL-2.0-or-later
"""Real sockets; the clock is a number that the tests move."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from guard.relay import datagrams
from guard.relay.ring import Ring
from guard.relay.sender import Sender
from tests.conftest import ROOT, need_program
from tests.relay.rig import LONG_S

ABSENT = "not connecting, the relay_io socket is not present"


def _queue_length() -> int:
    """How many datagrams wait unread where one more does not go in, less one: 10 with the kernel's own max_dgram_qlen;
    with a longer queue it is the sender's buffer that is full first."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to,
    ):
        to.bind("")  # a free abstract name; a pair of sockets would have no limit
        ours.connect(to.getsockname())
        ours.setblocking(False)
        count = 0
        while True:
            try:
                ours.send(bytes(100))
            except BlockingIOError:
                return count - 1
            count += 1


QLEN = _queue_length()


class Scraper:
    """A receiver as a site's scraper is: it binds, reads when told, and goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        old = os.umask(0o177)
        self.socket.bind(str(path))
        os.umask(old)
        self.socket.setblocking(False)

    def read(self, most: int = 1 << 30) -> "list[bytes]":
        out: "list[bytes]" = []
        while len(out) < most:
            try:
                out.append(self.socket.recv(1 << 20))
            except BlockingIOError:
                break
        return out

    def stop(self, unlinks: bool = True) -> None:
        self.socket.close()
        if unlinks:
            self.path.unlink()


class Bench:
    def __init__(self, folder: Path) -> None:
        folder.chmod(0o700)
        self.path = folder / "relay-io.sock"
        self.ring = Ring(1 << 20)
        self.log: "list[str]" = []
        self.owners = frozenset((os.getuid(),))
        self.sender = self.make()
        self.pushed = 0

    def make(self, is_protocol_debug: bool = False) -> Sender:
        return Sender(str(self.path), self.owners, self.ring, self.log.append, is_protocol_debug, 0)

    def push(self, count: int, size_bytes: int = 100) -> None:
        self.ring.push([b"%0*d" % (size_bytes, number) for number in range(self.pushed, self.pushed + count)])
        self.pushed += count

    def said(self) -> "list[str]":
        """What was logged since the last look, without the socket's prefix, which every line must have."""
        prefix = f"[{self.path}] "
        assert all(line.startswith(prefix) for line in self.log)
        lines = [line[len(prefix) :] for line in self.log]
        self.log.clear()
        return lines


@pytest.fixture(params=["sendmmsg", "send"])
def bench(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """With many datagrams a system call and, as where there is no ctypes, with one."""
    if request.param == "send":
        monkeypatch.setattr(datagrams, "_SENDMMSG", None)
    return Bench(tmp_path)


def numbers(records: "list[bytes]") -> "list[int]":
    return [int(record) for record in records]


def test_one_record_is_one_datagram_in_order(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(5)
    bench.sender.pump(0)
    assert numbers(scraper.read()) == [0, 1, 2, 3, 4]
    assert bench.said() == []


def test_an_absent_scraper_is_told_once_and_a_late_one_gets_everything(bench: Bench) -> None:
    bench.push(3)
    for now_ms in range(0, 120_000, 250):
        bench.sender.pump(now_ms)
    assert bench.said() == [ABSENT]
    scraper = Scraper(bench.path)
    bench.sender.pump(150_000)
    assert numbers(scraper.read()) == [0, 1, 2]


def test_the_back_off_doubles_from_250_ms_to_30_s(bench: Bench) -> None:
    tries = []
    for _ in range(10):
        now_ms = int(bench.sender.next_ms())
        tries.append(now_ms)
        bench.sender.pump(now_ms)
    waits = [after - before for before, after in zip(tries, tries[1:])]
    assert waits == [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]


def test_no_attempt_is_made_before_the_back_off_is_over(bench: Bench) -> None:
    bench.sender.pump(0)
    scraper = Scraper(bench.path)
    bench.push(1)
    bench.sender.pump(249)
    assert scraper.read() == []
    bench.sender.pump(250)
    assert numbers(scraper.read()) == [0]


def test_the_back_off_starts_anew_after_a_record_went_out(bench: Bench) -> None:
    for _ in range(6):
        bench.sender.pump(int(bench.sender.next_ms()))
    scraper = Scraper(bench.path)
    bench.push(1)
    now_ms = int(bench.sender.next_ms())
    bench.sender.pump(now_ms)
    scraper.stop()
    bench.push(1)
    bench.sender.pump(now_ms + 1)
    assert bench.sender.next_ms() == now_ms + 1 + 250


def test_a_full_socket_is_waited_for_and_nothing_is_lost(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(3 * QLEN)
    bench.sender.pump(0)
    assert bench.sender.wants_write()
    got = scraper.read(3)
    bench.sender.pump(1)
    got += scraper.read()
    while len(got) < 3 * QLEN:
        bench.sender.pump(2)
        got += scraper.read()
    assert numbers(got) == list(range(3 * QLEN))
    bench.sender.pump(3)
    assert not bench.sender.wants_write()
    assert bench.said() == []


def test_a_scraper_that_stops_reading_costs_the_oldest_records(bench: Bench) -> None:
    bench.ring = Ring(10 * 164)
    bench.sender = bench.make()
    scraper = Scraper(bench.path)
    for _ in range(QLEN + 31):
        bench.push(1)
        bench.sender.pump(5)
    assert bench.said() == ["relay dropped 1 record in total, the relay is not draining fast enough"]
    bench.sender.pump(5 + 60_000)
    dropped = bench.ring.dropped_count
    assert dropped == QLEN + 31 - 10 - (QLEN + 1)
    assert bench.said() == [f"relay dropped {dropped} records in total, the relay is not draining fast enough"]
    got = scraper.read()
    while bench.ring.records:
        bench.sender.pump(70_000)
        got += scraper.read()
    assert numbers(got) == [*range(QLEN + 1), *range(QLEN + 1 + dropped, QLEN + 31)]


def test_a_restarted_scraper_gets_the_record_that_was_in_flight_first(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(2)
    bench.sender.pump(0)
    assert numbers(scraper.read()) == [0, 1]
    scraper.stop()
    bench.push(2)
    bench.sender.pump(1000)  # ECONNREFUSED
    assert bench.sender.fd() is None
    scraper = Scraper(bench.path)
    bench.sender.pump(1250)
    assert numbers(scraper.read()) == [2, 3]
    assert bench.said() == []


def test_the_record_in_flight_is_dropped_when_the_ring_filled_meanwhile(bench: Bench) -> None:
    bench.ring = Ring(3 * 164)
    bench.sender = bench.make()
    scraper = Scraper(bench.path)
    bench.sender.pump(0)
    scraper.stop()
    bench.push(1)
    bench.sender.pump(1)
    bench.push(3)
    scraper = Scraper(bench.path)
    bench.sender.pump(1000)
    assert numbers(scraper.read()) == [1, 2, 3]
    assert bench.ring.dropped_count == 1


def test_a_left_behind_socket_file_is_quiet_unless_protocol_is_debugged(bench: Bench) -> None:
    Scraper(bench.path).stop(unlinks=False)
    for now_ms in (0, 250, 750):
        bench.sender.pump(now_ms)
    assert bench.said() == []
    bench.make(is_protocol_debug=True).pump(0)
    assert bench.said() == [f"connect() failed: {os.strerror(errno.ECONNREFUSED)}"]


def test_a_record_too_large_for_a_datagram_is_dropped_told_and_holds_nothing_up(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.ring.push([b"1", b"x" * 300_000, b"2", b"x" * 250_000, b"3"])
    bench.sender.pump(0)
    assert numbers(scraper.read()) == [1, 2, 3]
    assert bench.said() == ["relay dropped 2 records due to EMSGSIZE, the smallest being 250000 bytes"]
    assert bench.ring.dropped_count == 2


def test_each_refusal_is_told_once_and_again_only_when_the_reason_changes(bench: Bench) -> None:
    def tries(count: int = 3) -> "list[str]":
        for _ in range(count):
            bench.sender.pump(int(bench.sender.next_ms()))
        assert bench.sender.fd() is None
        return bench.said()

    assert tries() == [ABSENT]
    bench.path.write_text("")
    assert tries() == ["not connecting, the relay_io socket path is not a socket"]
    bench.path.unlink()
    elsewhere = bench.path.with_name("elsewhere")
    scraper = Scraper(elsewhere)
    bench.path.symlink_to(elsewhere)
    assert tries() == []
    bench.path.unlink()
    scraper.stop()
    assert tries() == [ABSENT]
    scraper = Scraper(bench.path)
    for mode in (0o770, 0o707, 0o1777):
        bench.path.parent.chmod(mode)
        assert tries() == (
            ["not connecting, the directory of the relay_io socket is writable by group or other"]
            if mode == 0o770
            else []
        )
    bench.path.parent.chmod(0o755)
    bench.push(1)
    bench.sender.pump(int(bench.sender.next_ms()))
    assert numbers(scraper.read()) == [0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_socket_or_folder_of_another_user_is_refused_and_slurms_user_is_not(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    os.chown(bench.path, 12345, 0)
    bench.push(1)
    bench.sender.pump(0)
    assert bench.said() == ["not connecting, the relay_io socket is owned by uid 12345, not by root or SlurmdUser"]
    os.chown(bench.path, 0, 0)
    os.chown(bench.path.parent, 12345, 0)
    bench.sender.pump(250)
    assert bench.said() == [
        "not connecting, the directory of the relay_io socket is owned by uid 12345, not by root or SlurmdUser"
    ]
    assert scraper.read() == []
    bench.owners = frozenset((0, 12345))
    bench.make().pump(0)
    assert numbers(scraper.read()) == [0]
    os.chown(bench.path.parent, 0, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_socket_removed_and_made_anew_by_another_is_looked_at_again(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(1)
    bench.sender.pump(0)
    assert numbers(scraper.read()) == [0]
    scraper.stop()
    forged = Scraper(bench.path)
    os.chown(bench.path, 12345, 0)
    bench.push(1)
    bench.sender.pump(1)
    bench.sender.pump(251)
    assert forged.read() == []
    assert bench.said() == ["not connecting, the relay_io socket is owned by uid 12345, not by root or SlurmdUser"]


def test_draining_sends_what_is_left_and_waits_for_room(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(QLEN + 20)
    got: "list[bytes]" = []
    now = iter(range(10_000_000))

    def clock_ms() -> int:
        got.extend(scraper.read())
        return next(now)

    bench.sender.drain(clock_ms, 5000)
    got += scraper.read()
    assert numbers(got) == list(range(QLEN + 20))
    assert bench.said() == []


def test_draining_gives_up_after_its_time_and_tells_what_is_lost(bench: Bench) -> None:
    scraper = Scraper(bench.path)
    bench.push(QLEN + 6)
    now = iter([0, 0, 0, 49, 49, 50, 50, 51])
    bench.sender.drain(lambda: next(now), 50)
    assert bench.said() == ["relay dropped 5 records in total, the relay is not draining fast enough"]
    scraper.stop()


def test_draining_without_a_scraper_makes_one_more_attempt_and_does_not_wait(bench: Bench) -> None:
    bench.sender.pump(0)
    bench.push(2)
    assert bench.said() == [ABSENT]
    bench.sender.drain(lambda: 1, 5000)
    assert bench.said() == ["relay dropped 2 records in total, the relay is not draining fast enough"]


def test_the_one_more_attempt_may_find_the_scraper(bench: Bench) -> None:
    bench.sender.pump(0)
    bench.push(2)
    scraper = Scraper(bench.path)
    bench.sender.drain(lambda: 1, 5000)
    assert numbers(scraper.read()) == [0, 1]


# A ring of 20 records, drained by the real clock; `send`: as where there is no ctypes. Tells what is left and dropped.
DRAINS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from guard.relay import datagrams
from guard.relay.ring import Ring
from guard.relay.sender import Sender
if sys.argv[3] == "sendto":
    datagrams._SENDMMSG = None
ring = Ring(1 << 20)
sender = Sender(sys.argv[2], frozenset((os.getuid(),)), ring, print, False, 0)
sender.pump(0)
ring.push([b"%d" % number for number in range(20)])
sender.drain(lambda: time.monotonic_ns() // 1_000_000, 120_000)
print(ring.pushed_count - ring.dropped_count, ring.dropped_count)
"""


@pytest.mark.parametrize("call", ["sendmmsg", "sendto"])
@pytest.mark.parametrize("error", ["ENOBUFS", "ENOMEM", "EAGAIN", "EINTR", "ECONNREFUSED", "ENOTCONN", "EMSGSIZE"])
def test_an_error_of_the_kernel_in_between_costs_no_record_but_one_too_large(
    tmp_path: Path, call: str, error: str
) -> None:
    """strace fails the call once. A connection that broke is made anew, at once since the end is near."""
    tmp_path.chmod(0o700)
    path = tmp_path / "s"
    scraper = Scraper(path)
    calls = tmp_path / "calls"
    argv = [need_program("strace"), "-qq", "-o", str(calls), "-e", f"trace=connect,{call}"]
    argv += ["-e", f"inject={call}:error={error}:when=2"]
    drains = subprocess.Popen(
        [*argv, sys.executable, "-I", "-S", "-c", DRAINS, str(ROOT), str(path), call],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    scraper.socket.settimeout(LONG_S)
    is_oversize = error == "EMSGSIZE"
    got = [int(scraper.socket.recv(99)) for _ in range(19 if is_oversize else 20)]
    said, _ = drains.communicate(timeout=LONG_S)
    scraper.stop()
    gone = {8 if call == "sendmmsg" else 1} if is_oversize else set()
    assert got == [number for number in range(20) if number not in gone]
    assert said.splitlines()[-1] == ("19 1" if is_oversize else "20 0")
    assert calls.read_text().count("connect(") == (2 if error in ("ECONNREFUSED", "ENOTCONN") else 1)
    assert ("due to EMSGSIZE, the smallest being 1 bytes" in said) == is_oversize
