# SPDX-License-Identifier: GPL-2.0-or-later
"""The step worker by its protocol, on real sockets: what a C tap would send, and what a broken or hostile one would."""

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable

import pytest

from guard.relay import frames
from guard.relay.frames import Frame
from tests.relay.rig import JOB_ID, LONG_S, Rig, eventually


class Wire:
    """A tap that says exactly what it is told to."""

    def __init__(self, rig: Rig, step_id: int = 0, is_whole_step: bool = False, **fields: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LONG_S)
        self.socket.connect(str(rig.folder / ("control.sock" if is_whole_step else "tap.sock")))
        hello = {"job_id": b"%d" % JOB_ID, "step_id": b"%d" % step_id, "whole_step": b"%d" % is_whole_step, **fields}
        self.send(Frame(frames.HELLO, frames.fields_payload(hello)))
        self.answer = self.fields()

    def send(self, *sent: Frame) -> None:
        for frame in sent:
            self.socket.send(frames.pack(frame))

    def data(self, text: bytes, task: int = 0, stream: int = 1) -> None:
        self.send(Frame(frames.DATA, text, stream, task, task, time.time_ns()))

    def fields(self) -> "dict[str, bytes]":
        packet = self.socket.recv(frames.PACKET_MAX_BYTES)
        return frames.fields_of(frames.unpack(packet).payload) if packet else {}

    def drain(self) -> None:
        self.send(Frame(frames.DRAIN))
        assert frames.unpack(self.socket.recv(100)).kind == frames.DRAINED

    def bye(self) -> None:
        self.send(Frame(frames.BYE))
        self.socket.close()

    def is_closed(self) -> bool:
        """Waits for the other end to close."""
        try:
            return self.socket.recv(100) == b""
        except ConnectionResetError:
            return True


def test_a_welcome_tells_the_buffer_and_the_cap(rig: Rig) -> None:
    rig.configure(parameters="max_log_kbytes=64,stepd_ring_mbytes=64")
    rig.start()
    rig.event("job_start")
    assert Wire(rig).answer == {
        "code": b"0",
        "stream_buffer_bytes": b"131072",
        "max_log_bytes": b"65536",
        "tally_slot": b"0",
    }


def test_a_tap_of_the_whole_step_ends_it_by_bye(node: Rig) -> None:
    tap = Wire(node, 4, is_whole_step=True)
    for task in range(64):
        for stream in (1, 2):
            tap.data(b"task %d\nrest" % task, task, stream)
    tap.send(*(Frame(frames.END, b"", 1, task, task) for task in range(64)))
    tap.drain()
    tap.bye()
    eventually(lambda: "step_end" in node.kinds())
    logs = node.records("log")
    assert len(logs) == 64 * 2 * 2
    assert {one["slurm"]["task_id_local"] for one in logs} == set(range(64))
    assert node.kinds() == ["job_start", "step_start", *["log"] * 256, "step_end"]
    eventually(lambda: node.workers() == [])


def test_a_step_of_several_taps_ends_a_while_after_the_last(node: Rig) -> None:
    """`relay exec` in each task of a step: the taps come and go, the step is one."""
    first, second = Wire(node), Wire(node)
    first.data(b"a\n")
    first.bye()
    second.data(b"b\n", task=1)
    second.bye()
    third = Wire(node)
    third.data(b"c\n")
    third.bye()
    eventually(lambda: "step_end" in node.kinds())
    assert node.kinds() == ["job_start", "step_start", "log", "log", "log", "step_end"]
    # A late one begins it anew: pairs stay pairs.
    Wire(node).bye()
    eventually(lambda: node.kinds()[-1] == "step_start")
    node.ended()
    assert node.kinds()[-3:] == ["step_start", "step_end", "job_end"]


def test_a_tap_that_dies_leaves_its_last_line_partial_and_the_others_alone(node: Rig) -> None:
    dying, living = Wire(node), Wire(node)
    dying.data(b"half a li")
    living.data(b"whole ", task=1)
    dying.socket.close()
    eventually(lambda: node.records("log"))
    living.data(b"line\n", task=1)
    living.drain()
    eventually(lambda: len(node.records("log")) == 2)
    assert [(one["body"], one.get("partial")) for one in node.records("log")] == [
        ("half a li", True),
        ("whole line\n", None),
    ]


def test_what_a_tap_sent_before_it_closed_is_read(node: Rig) -> None:
    tap = Wire(node)
    for number in range(20):
        tap.data(b"%d\n" % number)
    tap.socket.close()
    eventually(lambda: len(node.records("log")) == 20)


def test_a_loss_and_a_note_are_logged_with_the_steps_prefix(node: Rig) -> None:
    tap = Wire(node, 3)
    tap.data(b"before")
    tap.send(Frame(frames.LOST, frames.count_payload(777), 1, 0, 0))
    tap.data(b"after\n")
    tap.send(Frame(frames.NOTE, b"stdout: No space\n\x1b[31m left\xff"))
    tap.drain()
    assert f"[{JOB_ID}.3] relay lost 777 bytes of task 0 stdout before they were records\n" in node.log()
    assert f"[{JOB_ID}.3] relay: stdout: No space??[31m left\ufffd\n" in node.log()
    eventually(lambda: len(node.records("log")) == 2)
    assert [(one["body"], one.get("partial")) for one in node.records("log")] == [("before", True), ("after\n", None)]


def test_exec_below_a_tap_of_the_whole_step_runs_as_itself(node: Rig) -> None:
    tap = Wire(node, 0, is_whole_step=True)
    assert Wire(node, 0).answer["code"] == b"1"
    assert node.exec("--", "echo", "once", step_id=0).stdout == b"once\n"
    tap.bye()
    node.ended()
    assert node.records("log") == []


BAD: "dict[str, Callable[[], bytes]]" = {
    "a length that lies": lambda: frames.pack(Frame(frames.DATA, b"abc", 1))[:-1],
    "no header": lambda: b"x",
    "too long": lambda: frames.pack(Frame(frames.DATA, b"x" * 70_000, 1)),
    "unknown kind": lambda: b"\x63" + bytes(27),
    "a second hello": lambda: frames.pack(Frame(frames.HELLO, b"job_id=1\0")),
    "an answer": lambda: frames.pack(Frame(frames.ANSWER)),
    "an event": lambda: frames.pack(Frame(frames.EVENT, b"event=job_end\0")),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_packet_that_is_no_frame_closes_its_tap_and_no_other(node: Rig, kind: str) -> None:
    good, bad = Wire(node), Wire(node)
    bad.data(b"said before\n")
    bad.socket.send(BAD[kind]())
    assert bad.is_closed()
    good.data(b"fine\n")
    good.drain()
    good.bye()
    node.ended()
    assert sorted(one["body"] for one in node.records("log")) == ["fine\n", "said before\n"]
    assert "relay refuses a tap" in node.log()


def test_garbage_never_ends_the_worker(node: Rig) -> None:
    good = Wire(node)
    (worker,) = node.workers()
    draw = random.Random(174)
    for _ in range(100):
        bad = Wire(node)
        try:
            for _ in range(20):
                packet = bytearray(
                    frames.pack(Frame(draw.randrange(12), draw.randbytes(draw.randrange(40)), draw.randrange(4)))
                )
                packet[draw.randrange(len(packet))] ^= 1 << draw.randrange(8)
                bad.socket.send(packet)
        except OSError:
            pass
        bad.socket.close()
    good.data(b"fine\n")
    good.drain()
    assert node.workers() == [worker]
    eventually(lambda: "fine\n" in node.output(step_id="0"))


def test_a_tap_that_floods_does_not_keep_another_waiting(node: Rig) -> None:
    flood, quiet = Wire(node), Wire(node)
    flood.socket.setblocking(False)
    block = b"x" * 99 + b"\n"
    sent = 0
    (worker,) = node.workers()
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        for _ in range(50):
            try:
                flood.data(block * 655, task=1)
                sent += 1
            except BlockingIOError:
                break
        quiet.data(b"q\n")
        quiet.drain()
    assert sent > 10
    assert node.workers() == [worker]


def test_a_peer_that_asks_and_never_reads_does_not_hold_the_worker(node: Rig) -> None:
    deaf, good = Wire(node), Wire(node)
    for _ in range(3000):
        deaf.send(Frame(frames.DRAIN))
    good.data(b"fine\n")
    good.drain()
    deaf.socket.close()


def test_more_streams_than_a_step_may_have_close_the_tap_that_opens_them(node: Rig) -> None:
    tap = Wire(node)
    with pytest.raises(OSError):
        for task in range(5000):
            tap.data(b"x", task)
            if task > 4096:
                tap.drain()
    assert "more than 4096 streams" in node.log()


def test_two_steps_have_a_worker_each_and_their_own_records(node: Rig) -> None:
    taps = [Wire(node, step_id) for step_id in (0, 1, 4294967291, 4294967290)]
    assert len(node.workers()) == 4
    for tap in taps:
        tap.data(b"x\n")
        tap.bye()
    node.ended()
    assert sorted(one["slurm"]["step_id"] for one in node.records("step_start")) == ["0", "1", "batch", "interactive"]
    assert sorted(one["slurm"]["step_id"] for one in node.records("step_end")) == ["0", "1", "batch", "interactive"]


def test_a_worker_told_to_stop_sends_what_it_has_and_its_step_end(node: Rig) -> None:
    tap = Wire(node)
    tap.data(b"held")
    tap.drain()
    (worker,) = node.workers()
    os.kill(worker, 15)
    eventually(lambda: "step_end" in node.kinds())
    assert [one["body"] for one in node.records("log")] == ["held"]


def test_taps_cannot_fill_the_nodes_log(node: Rig) -> None:
    tap = Wire(node, is_whole_step=True)
    tap.send(*(Frame(frames.NOTE, b"again") for _ in range(500)))
    tap.drain()
    tap.bye()
    eventually(lambda: node.workers() == [])
    assert node.log().count("relay: again") == 100
    assert f"[{JOB_ID}.0] relay was told 400 more by taps, not logged\n" in node.log()


def test_a_tap_of_a_worker_that_ends_is_let_go_before_the_drain(rig: Rig) -> None:
    rig.start()
    rig.event("job_start")
    assert rig.scraper
    tap = Wire(rig)
    tap.data(b"y\n" * 1000)
    tap.drain()
    rig.scraper.signal(19)
    tap.data(b"y\n" * 1000)
    tap.drain()
    (worker,) = rig.workers()
    os.kill(worker, 15)
    assert tap.is_closed()
    assert rig.workers() == [worker]  # it drains
    other = Wire(rig)
    assert other.answer["code"] == b"0"
    rig.scraper.signal(18)
    eventually(lambda: rig.kinds().count("log") == 2000)


def test_a_worker_that_nobody_can_find_any_more_ends(node: Rig) -> None:
    assert node.exec("--", "echo", "hi").returncode == 0
    (worker,) = node.workers()
    node.stop_node(signal.SIGKILL)
    os.kill(worker, signal.SIGCHLD)  # makes it look now, not within the minute
    eventually(lambda: node.records("log"))
    assert node.workers() == [worker]
    shutil.rmtree(node.folder / "jobs")
    os.kill(worker, signal.SIGCHLD)
    eventually(lambda: node.workers() == [])
    eventually(lambda: node.kinds()[-1] == "step_end")


def test_without_a_scraper_the_worker_drops_the_oldest_and_tells(rig: Rig) -> None:
    rig.configure(parameters="stepd_ring_mbytes=1")
    rig.start_node()
    rig.event("job_start")
    tap = Wire(rig, 2, is_whole_step=True)
    for _ in range(20):
        tap.data((b"y" * 99 + b"\n") * 655)
    tap.drain()
    tap.bye()
    prefix = f"[{JOB_ID}.2] [{rig.socket}] "
    eventually(lambda: rig.workers() == [])
    lines = [line[len(prefix) :] for line in rig.log().splitlines() if line.startswith(prefix)]
    assert lines[0] == "not connecting, the relay_io socket is not present"
    assert lines[1].startswith("relay dropped ") and lines[1].endswith(
        "in total, the relay is not draining fast enough"
    )
    # Everything: nobody ever came. step_start, the lines, step_end.
    assert lines[-1] == f"relay dropped {20 * 655 + 2} records in total, the relay is not draining fast enough"
    assert len(lines) == 3


def test_drops_in_the_log_are_exactly_what_is_missing(rig: Rig) -> None:
    rig.configure(parameters="stepd_ring_mbytes=1")
    rig.start()
    rig.event("job_start")
    assert rig.scraper
    tap = Wire(rig, 2, is_whole_step=True)
    rig.scraper.signal(19)
    for number in range(20):
        tap.data(b"".join(b"%06d%s\n" % (number * 655 + line, b"y" * 93) for line in range(655)))
    tap.drain()
    rig.scraper.signal(18)
    tap.bye()
    eventually(lambda: rig.workers() == [] and "step_end" in rig.kinds())
    numbers = [int(one["body"][:6]) for one in rig.records("log")]
    assert numbers == sorted(set(numbers))
    last = [line for line in rig.log().splitlines() if "in total" in line][-1]
    missing = 20 * 655 + 2 - len(numbers) - len(rig.records("step_start")) - len(rig.records("step_end"))
    assert f"relay dropped {missing} records in total" in last


def test_a_worker_that_is_killed_leaves_its_count_to_the_next(rig: Rig) -> None:
    rig.start_node()
    rig.event("job_start")
    tap = Wire(rig, 2, is_whole_step=True)
    tap.data(b"y\n" * 1000 + b"held")
    tap.drain()
    for _ in range(2):
        (worker,) = rig.workers()
        os.kill(worker, signal.SIGKILL)
        assert tap.is_closed()
        tap = Wire(rig, 2, is_whole_step=True)
    rig.start_scraper()
    tap.data(b"more\n")
    tap.drain()
    tap.bye()
    eventually(lambda: "step_end" in rig.kinds())
    assert [one["body"] for one in rig.records("log")] == ["more\n"]
    totals = [line for line in rig.log().splitlines() if line.startswith(f"[{JOB_ID}.2]") and "in total" in line]
    # step_start and 1000 lines; what was held for its end was never a record, and its tap knows.
    assert len(totals) == 3 and all("relay dropped 1001 records in total" in line for line in totals)
