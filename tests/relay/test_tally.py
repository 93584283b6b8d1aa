# SPDX-License-Identifier: GPL-2.0-or-later
"""Real files, and processes that are really killed."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from guard.relay import limits, tally
from guard.relay.taken import Taken
from guard.relay.tally import Tally
from tests.conftest import ROOT, need

# A worker's life: makes records, sends them with `patience` as it goes, and is killed. "single": one a system call.
WORKER = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from guard.relay import datagrams
from guard.relay.ring import Ring
from guard.relay.tally import Tally
if sys.argv[4] == "single":
    datagrams._SENDMMSG = None
tally = Tally(sys.argv[2])
ring = Ring(100_000, tally.pushed_count, tally.dropped_count)
connection = socket.socket(fileno=0)
slot = tally.take_slot(ring.pushed_count)
print("begun", flush=True)
taken = 0
while True:
    ring.push([b"%0200d" % (ring.pushed_count + number) for number in range(100)])
    taken += 20_000
    tally.commit(ring.pushed_count, slot, taken)
    tally.window.load(ring.records, int(sys.argv[3]))
    at = 0
    while at < len(tally.window.lengths):
        try:
            at += tally.window.send(connection, at, 64, 0)
        except InterruptedError:
            pass
    ring.take(at)
"""


def taken_bytes(fd: int, slot: int) -> int:
    return Taken(fd, slot).count_bytes()


def _begin(path: Path, connection: socket.socket, how: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-I", "-S", "-c", WORKER, str(ROOT), str(path), "80", how]
    process = subprocess.Popen(argv, stdin=connection.fileno(), stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"begun\n"
    return process


def _read(theirs: socket.socket) -> int:
    count = 0
    while True:
        try:
            theirs.recv(999)
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize("how", ["batched", "single"])
def test_what_a_worker_sent_that_was_killed_is_known_to_the_datagram(tmp_path: Path, how: str) -> None:
    path = tmp_path / "0.tally"
    draw = random.Random(os.environ.get("FUZZ_SEED", "7"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    theirs.setblocking(False)
    received_count = off_count = 0
    for _ in range(15):
        worker = _begin(path, ours, how)
        assert tally.are_living(str(tmp_path))
        assert list(tally.of_dead(str(tmp_path))) == []
        before_count = received_count
        while received_count == before_count:
            received_count += _read(theirs)
        end_s = time.monotonic() + draw.uniform(0.0, 0.05)
        while time.monotonic() < end_s:
            received_count += _read(theirs)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        received_count += _read(theirs)
        assert not tally.are_living(str(tmp_path))
        ((step_id, lost_count),) = tally.of_dead(str(tmp_path))
        made_count, sent_count = tally._counts_of_dead(str(path))
        assert (step_id, lost_count) == ("0", made_count - sent_count)
        off_count += abs(sent_count - received_count)
        assert sent_count == received_count if how == "batched" else abs(sent_count - received_count) <= 15
        assert made_count > sent_count > 0
    # By send(), nothing but this process knows of the last one.
    assert off_count == 0 or how == "single"


def test_a_commit_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "0.tally")
    made = Tally(path)
    assert made.fd is not None
    first, second = made.take_slot(0), made.take_slot(0)
    made.commit(5, first, 100)
    made.commit(7, second, 30)
    before = Path(path).read_bytes()
    made.commit(9, second, 60)
    after = Path(path).read_bytes()
    assert [taken_bytes(made.fd, slot) for slot in (first, second)] == [100, 60]
    # A kill within it leaves some of its bytes: none, or all but the one that makes the others count.
    torn = Path(tmp_path / "torn")
    torn.write_bytes(before[:1] + after[1 : limits.TALLY_SLOTS_AT] + before[limits.TALLY_SLOTS_AT :])
    with open(torn, "rb") as file:
        assert [taken_bytes(file.fileno(), slot) for slot in (first, second)] == [100, 30]
    # Nor is it needed that the slot's own place was reached.
    torn.write_bytes(after[: limits.TALLY_SLOTS_AT] + before[limits.TALLY_SLOTS_AT :])
    with open(torn, "rb") as file:
        assert [taken_bytes(file.fileno(), slot) for slot in (first, second)] == [100, 60]


def test_a_tap_that_a_living_worker_lets_go_reads_what_no_commit_of_another_can_change(tmp_path: Path) -> None:
    """Whichever commit it sees as the one that counts, and whatever of that: CPUs show writes in an order of theirs."""
    path = tmp_path / "0.tally"
    made = Tally(str(path))
    gone, other = made.take_slot(0), made.take_slot(0)
    made.commit(1, gone, 100)
    made.commit(2, gone, 150)
    made.give_slot(gone, 2)
    seen = [path.read_bytes()]
    for pushed_count in (3, 4):
        made.commit(pushed_count, other, 1000 + pushed_count)
        seen.append(path.read_bytes())
    mixed = tmp_path / "mixed"
    for half, origins in product((b"\0", b"\1"), product(seen, repeat=6)):
        words = [data[limits.TALLY_COMMITS_AT + 8 * word :][:8] for word, data in enumerate(origins)]
        slots = seen[0][limits.TALLY_SLOTS_AT : limits.TALLY_SLOTS_AT + 8 * (gone + 1)]
        mixed.write_bytes(half.ljust(limits.TALLY_COMMITS_AT) + b"".join(words) + slots)
        with open(mixed, "rb") as file:
            assert taken_bytes(file.fileno(), gone) == 150


def test_a_slot_is_taken_again_as_late_as_can_be_and_begins_at_nothing(tmp_path: Path) -> None:
    made = Tally(str(tmp_path / "0.tally"))
    assert made.fd is not None
    slot = made.take_slot(0)
    made.commit(1, slot, 50)
    made.give_slot(slot, 1)
    for _ in range(limits.TAPS_MOST_COUNT - 1):
        assert made.take_slot(1) != slot
    assert taken_bytes(made.fd, slot) == 50
    assert made.take_slot(1) == slot
    assert taken_bytes(made.fd, slot) == 0


def test_the_next_worker_goes_on_with_the_counts_and_leaves_the_old_file_to_its_taps(tmp_path: Path) -> None:
    path = tmp_path / "0.tally"
    ours, _full = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    worker = _begin(path, ours, "batched")
    while not path.read_bytes()[limits.TALLY_COMMITS_AT]:
        time.sleep(0.01)
    worker.kill()
    worker.wait()
    made_count, sent_count = tally._counts_of_dead(str(path))
    with open(path, "rb") as file:
        old_bytes = taken_bytes(file.fileno(), 0)
        made = Tally(str(path))
        assert (made.pushed_count, made.dropped_count) == (made_count, made_count - sent_count)
        made.commit(made_count, made.take_slot(made_count), 1)
        assert taken_bytes(file.fileno(), 0) == old_bytes > 1
    assert tally._counts_of_dead(str(path)) == (0, 0)  # it lives


def test_one_that_steps_aside_makes_place_and_still_counts_as_living(tmp_path: Path) -> None:
    path = str(tmp_path / "batch.tally")
    first = Tally(path)
    first.commit(3)
    first.step_aside()
    second = Tally(path)
    assert second.pushed_count == 0
    second.remove()
    assert tally.are_living(str(tmp_path))
    first.remove()
    assert not tally.are_living(str(tmp_path)) and list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_for_the_file_the_worker_works_without(tmp_path: Path) -> None:
    need("root", os.geteuid() == 0)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "full").write_bytes(bytes(16 << 10))  # a page at least is there, and that may be one of 64 KiB
        made = Tally(str(tmp_path / "0.tally"))
        made.commit(3, made.take_slot(0), 5)
        assert made.fd is None and made.window.sent_count == 0
        assert not tally.are_living(str(tmp_path))
        made.step_aside()
        made.remove()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_folder_that_is_gone_has_none(tmp_path: Path) -> None:
    made = Tally(str(tmp_path / "gone" / "0.tally"))
    assert made.fd is None
    assert not tally.are_living(str(tmp_path / "gone")) and list(tally.of_dead(str(tmp_path / "gone"))) == []
