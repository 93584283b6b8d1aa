# SPDX-License-Identifier: GPL-2.0-or-later
"""A tap against a daemon that the test plays, with a clock that the test moves."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.relay import frames
from guard.relay.frames import Frame
from guard.relay.tally import Tally
from guard.relay.tap import Tap

PIECE = b"x" * 65536


class Daemon:
    """The other end: it answers and reads when told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peer: "socket.socket | None" = None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(8)

    def accept(self, code: int = 0, buffer_bytes: int = 131072, tally: "Tally | None" = None) -> "dict[str, bytes]":
        self.peer, _ = self.listener.accept()
        hello = frames.fields_of(frames.unpack(self.peer.recv(9999)).payload)
        fields = {"code": b"%d" % code, "stream_buffer_bytes": b"%d" % buffer_bytes}
        fds = []
        if tally and tally.fd is not None:
            fields["tally_slot"] = b"3"
            fds = [tally.fd]
        socket.send_fds(self.peer, [frames.pack(Frame(frames.ANSWER, frames.fields_payload(fields)))], fds)
        self.peer.setblocking(False)
        return hello

    def read(self, most: int = 1 << 30) -> "list[Frame]":
        got: "list[Frame]" = []
        assert self.peer
        while len(got) < most:
            try:
                packet = self.peer.recv(1 << 17)
            except BlockingIOError:
                break
            if not packet:
                break
            got.append(frames.unpack(packet))
        return got

    def die(self) -> None:
        assert self.peer
        self.peer.close()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: "pytest.MonkeyPatch") -> "Iterator[Daemon]":
    monkeypatch.chdir(tmp_path)  # a short path for the socket
    made = Daemon(Path("d.sock"))
    yield made
    made.listener.close()


def opened(daemon: Daemon, buffer_bytes: int = 131072, tally: "Tally | None" = None) -> Tap:
    tap = Tap(str(daemon.path), 174, 3, 1, 5)
    tap.pump(0)
    daemon.accept(0, buffer_bytes, tally)
    tap.pump(0)
    assert tap.is_open
    return tap


def shown(got: "list[Frame]") -> "list[tuple[int, int, bytes]]":
    return [(frame.kind, frame.stream, frame.payload) for frame in got]


def fill(tap: Tap, stream: int = 1, now_ms: int = 0) -> None:
    """Until the socket and the stream's buffer are full."""
    for _ in range(100):
        if not tap.room(stream):
            return
        tap.offer(stream, PIECE[: tap.room(stream)], 9)
        tap.pump(now_ms)
    raise AssertionError("it never fills")


def test_hello_names_the_step_and_frames_name_task_and_time(daemon: Daemon) -> None:
    tap = Tap(str(daemon.path), 174, 3, 1, 5, is_unbuffered=True)
    tap.pump(0)
    assert daemon.accept() == {"job_id": b"174", "step_id": b"3"}
    tap.offer(1, b"hello\n", 77)
    tap.end(1)
    tap.pump(0)
    tap.close()
    first, end, bye = daemon.read()
    assert (first.task_local, first.task_global, first.time_ns, first.is_unbuffered) == (1, 5, 77, True)
    assert shown([first, end, bye]) == [(frames.DATA, 1, b"hello\n"), (frames.END, 1, b""), (frames.BYE, 0, b"")]


def test_bytes_that_come_before_the_answer_wait_for_it(daemon: Daemon) -> None:
    tap = Tap(str(daemon.path), 174, 3)
    tap.pump(0)
    tap.offer(1, b"early\n", 1)
    tap.pump(0)
    daemon.accept()
    assert daemon.read() == []
    tap.pump(0)
    assert shown(daemon.read()) == [(frames.DATA, 1, b"early\n")]


def test_a_full_buffer_leaves_no_room_and_what_is_taken_makes_room(daemon: Daemon) -> None:
    tap = opened(daemon)
    fill(tap)
    assert (tap.room(1), tap.room(2)) == (0, 65536)
    assert tap.wants_write()
    daemon.read(1)
    tap.pump(1)
    assert tap.room(1) > 0
    assert tap.lost_bytes == {}


def test_streams_are_served_in_turn(daemon: Daemon) -> None:
    tap = opened(daemon)
    fill(tap)
    tap.offer(2, b"short\n", 1)
    kinds = []
    for now_ms in range(20):
        kinds += [frame.stream for frame in daemon.read()]
        tap.pump(now_ms)
    # At most the frames that were in the socket, and one of the other's turn, come before it.
    assert 2 in kinds
    assert kinds[kinds.index(2) + 1 :] != []


def test_small_reads_that_wait_are_joined(daemon: Daemon) -> None:
    tap = opened(daemon)
    fill(tap, 2)
    for _ in range(5000):
        tap.offer(1, b"x", 1)
    got: "list[Frame]" = []
    for now_ms in range(20):
        got += [frame for frame in daemon.read() if frame.stream == 1]
        tap.pump(now_ms)
    assert [len(frame.payload) for frame in got] == [4096, 904]


def test_a_worker_that_takes_nothing_for_two_seconds_is_given_up(daemon: Daemon) -> None:
    tap = opened(daemon)
    fill(tap)
    tap.pump(1999)
    assert tap.room(1) == 0
    assert tap.next_ms() == 2000
    tap.pump(2000)
    assert tap.room(1) == 65536
    assert (tap.fd(), tap.is_idle()) == (None, True)
    assert tap.lost_bytes[1] >= 65536
    before = tap.lost_bytes[1]
    tap.offer(1, b"more", 1)
    assert tap.lost_bytes[1] == before + 4
    tap.pump(1_000_000)
    assert tap.fd() is None


def test_a_worker_that_takes_a_frame_now_and_then_is_kept(daemon: Daemon) -> None:
    """The socket is not writable before all its frames are taken: what is due tells when to try."""
    tap = opened(daemon)
    fill(tap)
    for taken_ms in range(200, 8200, 200):
        while tap.next_ms() <= taken_ms:
            now_ms = int(tap.next_ms())
            tap.pump(now_ms)
            fill(tap, now_ms=now_ms)
        daemon.read(1)
    assert tap.is_open
    assert tap.lost_bytes == {}


def test_gaps_add_up_to_two_seconds_and_short_ones_do_not_count(daemon: Daemon) -> None:
    tap = opened(daemon)
    now_ms = 0
    for _ in range(50):  # a slow worker: 50 gaps of 200 ms are no hang
        fill(tap, now_ms=now_ms)
        now_ms += 200
        daemon.read()
        tap.pump(now_ms)
        assert tap.is_open
    hung_ms = 0
    while tap.is_open:
        fill(tap, now_ms=now_ms)
        now_ms += 600
        hung_ms += 600
        if hung_ms <= 1800:
            daemon.read()
        tap.pump(now_ms)
        assert hung_ms <= 2400
    assert hung_ms >= 2000


def test_a_task_that_is_not_waiting_costs_no_hung_time(daemon: Daemon) -> None:
    tap = opened(daemon)
    for _ in range(6):
        tap.offer(1, PIECE, 1)  # more than the socket takes, less than the buffer
        tap.pump(0)
        if tap.wants_write():
            break
    assert tap.wants_write()
    assert tap.room(1) > 0
    tap.pump(60_000)
    assert tap.is_open


def test_at_its_end_what_waits_counts(daemon: Daemon) -> None:
    tap = opened(daemon)
    for _ in range(6):
        tap.offer(1, PIECE, 1)
        tap.pump(0)
        if tap.wants_write():
            break
    tap.expect_end()
    tap.pump(0)
    assert not tap.is_idle()
    tap.pump(2000)
    assert tap.is_idle()
    assert tap.lost_bytes[1] > 0


def test_at_its_end_it_waits_until_all_was_taken(daemon: Daemon) -> None:
    tap = opened(daemon)
    tap.expect_end()
    tap.pump(0)
    assert tap.is_idle()  # it has sent nothing
    tap.offer(1, b"last", 1)
    tap.pump(0)
    assert [frame.kind for frame in daemon.read()] == [frames.DATA, frames.DRAIN]
    tap.pump(1999)
    assert not tap.is_idle()
    assert daemon.peer
    daemon.peer.send(frames.pack(Frame(frames.DRAINED)))
    tap.pump(1999)
    assert tap.is_idle() and tap.lost_bytes == {}
    tap.close()
    assert [frame.kind for frame in daemon.read()] == [frames.BYE]


def test_drained_that_nobody_asked_for_means_nothing(daemon: Daemon) -> None:
    tap = opened(daemon)
    assert daemon.peer
    daemon.peer.send(frames.pack(Frame(frames.DRAINED)))
    tap.pump(0)
    tap.offer(1, b"last", 1)
    tap.expect_end()
    tap.pump(0)
    assert not tap.is_idle()


@pytest.mark.parametrize(("taken_bytes", "lost_bytes"), [(0, 1000), (400, 600), (1000, 0), (5000, 0), (-10, 1010)])
@pytest.mark.parametrize("is_last", [True, False], ids=["in the commit", "in the slot"])
def test_what_a_worker_held_that_died_is_told_to_the_next(
    daemon: Daemon, tmp_path: Path, taken_bytes: int, lost_bytes: int, is_last: bool
) -> None:
    worker = Tally(str(tmp_path / "0.tally"))
    tap = opened(daemon, tally=worker)
    tap.offer(1, b"x" * 600, 1)
    tap.offer(2, b"x" * 400, 1)
    tap.pump(0)
    worker.commit(9, 3, taken_bytes)
    if not is_last:
        worker.commit(10, 5, 77)
    daemon.die()
    tap.pump(0)
    assert tap.lost_bytes == ({0: lost_bytes} if lost_bytes else {})
    tap.pump(250)
    daemon.accept()
    tap.pump(250)
    got = daemon.read()
    assert [(frame.kind, frame.stream, frames.count_of(frame)) for frame in got] == (
        [(frames.LOST, 0, lost_bytes)] if lost_bytes else []
    )
    assert tap.lost_bytes == {}


def test_what_is_told_of_a_dead_worker_and_lost_again_is_not_forgotten(daemon: Daemon, tmp_path: Path) -> None:
    tap = Tap("d.sock", 1, 0)
    for now_ms in (0, 250, 750):
        tap.pump(now_ms)
        worker = Tally(str(tmp_path / f"{now_ms}.tally"))
        daemon.accept(tally=worker)
        tap.pump(now_ms)
        tap.offer(1, b"x" * 100, 1)
        tap.pump(now_ms)
        daemon.die()
        tap.pump(now_ms)
    assert tap.lost_bytes == {0: 300}


@pytest.mark.parametrize("is_killed", [True, False])
def test_of_a_worker_that_was_given_up_what_it_held_is_lost_only_if_it_was_killed(
    daemon: Daemon, tmp_path: Path, is_killed: bool
) -> None:
    worker = Tally(str(tmp_path / "0.tally"))
    tap = opened(daemon, tally=worker)
    fill(tap)
    sent_bytes = sum(len(frame.payload) for frame in daemon.read())
    fill(tap)
    tap.pump(2000)
    assert tap.room(1) == 65536 and 0 not in tap.lost_bytes
    if is_killed:
        sent_bytes += sum(len(frame.payload) for frame in daemon.read())
        worker._memory.close()
    tap.close()
    assert tap.lost_bytes.get(0, 0) == (sent_bytes if is_killed else 0)


def test_after_drained_a_worker_may_go(daemon: Daemon, tmp_path: Path) -> None:
    tap = opened(daemon, tally=Tally(str(tmp_path / "0.tally")))
    tap.offer(1, b"x" * 100, 1)
    tap.expect_end()
    tap.pump(0)
    daemon.read()
    assert daemon.peer
    daemon.peer.send(frames.pack(Frame(frames.DRAINED)))
    daemon.die()
    tap.pump(0)
    assert tap.is_idle() and tap.lost_bytes == {}


def test_after_a_workers_death_it_comes_back_and_tells_the_loss_at_its_place(daemon: Daemon) -> None:
    tap = opened(daemon)
    daemon.die()
    tap.pump(0)
    assert not tap.is_open
    assert tap.room(1) == 65536  # the task never waits for a worker that is not there
    for number in range(3):
        tap.offer(1, bytes((97 + number,)) * 65536, 1)
    assert tap.lost_bytes == {1: 65536}
    tap.pump(249)
    assert tap.fd() is None
    tap.pump(250)
    daemon.accept()
    got: "list[Frame]" = []
    for now_ms in range(260, 270):
        tap.pump(now_ms)
        got += daemon.read()
    tap.offer(1, b"after", 1)
    tap.pump(271)
    got += daemon.read()
    assert [(frame.kind, frame.payload[:1]) for frame in got if frame.kind == frames.DATA] == [
        (frames.DATA, b"a"), (frames.DATA, b"b"), (frames.DATA, b"a"),
    ]  # fmt: skip
    assert [frames.count_of(frame) for frame in got if frame.kind == frames.LOST] == [65536]
    assert got[2].kind == frames.LOST
    assert tap.lost_bytes == {}


def test_the_back_off_doubles_to_thirty_seconds(tmp_path: Path) -> None:
    tap = Tap(str(tmp_path / "none"), 1, 0)
    waits, now_ms = [], 0
    for _ in range(9):
        tap.pump(now_ms)
        waits.append(int(tap.next_ms()) - now_ms)
        now_ms = int(tap.next_ms())
    assert waits == [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]


@pytest.mark.parametrize("code", [1, 2, 3, 5])
def test_a_no_is_final(daemon: Daemon, code: int) -> None:
    tap = Tap(str(daemon.path), 174, 3)
    tap.pump(0)
    daemon.accept(code)
    tap.pump(0)
    assert (tap.fd(), tap.next_ms(), tap.code) == (None, float("inf"), code)


@pytest.mark.parametrize("code", [4, 6])
def test_a_not_now_is_asked_again(daemon: Daemon, code: int) -> None:
    tap = Tap(str(daemon.path), 174, 3)
    tap.pump(0)
    daemon.accept(code)
    tap.pump(0)
    assert (tap.fd(), tap.next_ms()) == (None, 250)


@pytest.mark.parametrize(
    "packet", [b"x", frames.pack(Frame(frames.ANSWER, b"code=x\0")), frames.pack(Frame(frames.ANSWER))]
)
def test_an_answer_that_is_none_is_a_dead_worker(daemon: Daemon, packet: bytes) -> None:
    tap = Tap(str(daemon.path), 174, 3)
    tap.pump(0)
    peer, _ = daemon.listener.accept()
    peer.send(packet)
    tap.pump(0)
    assert (tap.fd(), tap.is_open, tap.next_ms()) == (None, False, 250)
    peer.close()
