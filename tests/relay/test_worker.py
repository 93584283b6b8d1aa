# SPDX-License-Identifier: GPL-2.0-or-later
"""The step worker: when its step begins and ends, what is dropped and told, what it leaves to the next."""

import os
import shutil
import signal

from guard.relay import frames
from guard.relay.frames import Frame
from tests.relay.rig import JOB_ID, Rig, Wire, eventually


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


def test_a_step_of_two_slurmstepds_ends_with_the_second(node: Rig) -> None:
    """srun puts components of a heterogeneous step on nodes of their own; slurmctld and slurmd do not ask for it."""
    first, second = Wire(node, 4, is_whole_step=True), Wire(node, 4, is_whole_step=True)
    first.data(b"first\n", 0)
    second.data(b"half a ", 1)
    second.drain()
    first.drain()
    first.bye()
    eventually(lambda: len(node.records("log")) == 1)
    second.data(b"line\n", 1)
    second.drain()
    second.bye()
    eventually(lambda: "step_end" in node.kinds())
    assert [one["body"] for one in node.records("log")] == ["first\n", "half a line\n"]
    assert node.kinds() == ["job_start", "step_start", "log", "log", "step_end"]


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
