# SPDX-License-Identifier: GPL-2.0-or-later
"""Taps of every kind, by the protocol, at a real worker: what a C tap would send, and a broken or hostile one."""

import random
import time
from collections.abc import Callable

import pytest

from guard.relay import frames
from guard.relay.frames import Frame
from tests.relay.rig import JOB_ID, LONG_S, Rig, Wire, eventually


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
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 3 or (sent <= 10 and time.monotonic() < begun_s + LONG_S):
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


def test_taps_cannot_fill_the_nodes_log(node: Rig) -> None:
    tap = Wire(node, is_whole_step=True)
    tap.send(*(Frame(frames.NOTE, b"again") for _ in range(500)))
    tap.drain()
    tap.bye()
    eventually(lambda: node.workers() == [])
    assert node.log().count("relay: again") == 100
    assert f"[{JOB_ID}.0] relay was told 400 more by taps, not logged\n" in node.log()
