# SPDX-License-Identifier: GPL-2.0-or-later
import json

import pytest

from guard.base.faults import PeerFault
from guard.relay import frames, step
from guard.relay.frames import Frame
from guard.relay.step import Step

SLURM: "dict[str, object]" = {"cluster": "c", "node": "n", "job_id": 1, "step_id": "0"}


def data(text: bytes, stream: int = 1, task: int = 0, time_ns: int = 5, is_unbuffered: bool = False) -> Frame:
    return Frame(frames.DATA, text, stream, task, task + 100, time_ns, is_unbuffered)


def shown(records: "list[bytes]") -> "list[tuple[int, str, str]]":
    parsed = [json.loads(one) for one in records]
    return [(one["slurm"]["task_id_global"], one["stream"], one["body"]) for one in parsed]


def test_streams_and_tasks_do_not_mix() -> None:
    made = Step(SLURM, 4096)
    assert made.data(data(b"out")) == []
    assert made.data(data(b"err", stream=2)) == []
    assert made.data(data(b"other", task=1)) == []
    assert shown(made.data(data(b"\n", stream=2))) == [(100, "stderr", "err\n")]
    assert shown(made.data(data(b" put\n"))) == [(100, "stdout", "out put\n")]
    keys = [(task, task + 100, stream) for task in (0, 1) for stream in (1, 2)]
    assert shown(made.close(keys, 9)) == [(101, "stdout", "other")]
    assert made.close(keys, 9) == []


def test_what_is_held_is_known() -> None:
    made = Step(SLURM, 4096)
    held_bytes = []
    for text in (b"whole\n", b"held", b"\0", b"\xe2\x82", b"\xac", b" out\nrest"):
        made.data(data(text))
        made.data(data(b"12\n345", stream=2))
        held_bytes.append(made.held_bytes)
    # In bytes as records have them: a NUL is six. The other stream holds 3 always.
    assert [held - 3 for held in held_bytes] == [0, 4, 10, 12, 13, 4]
    made.close([(0, 100, 1), (0, 100, 2), (7, 7, 1)], 9)
    assert made.held_bytes == 0


def test_time_is_that_of_the_read_that_completed_the_line() -> None:
    made = Step(SLURM, 4096)
    made.data(data(b"a", time_ns=5))
    assert [json.loads(one)["time"] for one in made.data(data(b"\nb\nc", time_ns=7))] == [7, 7]
    assert [json.loads(one)["time"] for one in made.close([(0, 100, 1)], 9)] == [9]


def test_a_stream_may_turn_unbuffered() -> None:
    made = Step(SLURM, 4096)
    made.data(data(b"a"))
    got = [json.loads(one) for one in made.data(data(b"b", is_unbuffered=True))]
    assert [(one["body"], one.get("partial"), one.get("unbuffered")) for one in got] == [
        ("a", True, None),
        ("b", None, True),
    ]


def test_start_and_end_name_the_step() -> None:
    made = Step(SLURM, 4096)
    assert json.loads(made.start(3)) == {"v": 1, "type": "step_start", "time": 3, "slurm": SLURM}
    assert json.loads(made.end(4)) == {"v": 1, "type": "step_end", "time": 4, "slurm": SLURM}


def test_one_stream_too_many_is_the_taps_fault() -> None:
    made = Step(SLURM, 4096)
    for task in range(4096):
        made.data(data(b"x", task=task))
    with pytest.raises(PeerFault):
        made.data(data(b"x", task=4096))
    made.close([(0, 100, 1)], 5)
    made.data(data(b"x", task=4096))


def test_a_loss_is_told_with_its_stream() -> None:
    frame = Frame(frames.LOST, frames.count_payload(1234), 2, 0, 7)
    assert step.loss(frame) == "relay lost 1234 bytes of task 7 stderr before they were records"
