# SPDX-License-Identifier: GPL-2.0-or-later
"""When job_end comes, and what the daemon says for workers that cannot."""

import os
import signal
import time

import pytest

from guard.relay import frames
from tests.relay.rig import JOB_ID, Rig, Wire, eventually
from tests.relay.test_node import said


def test_job_end_comes_after_the_last_record_of_its_steps(node: Rig) -> None:
    taps = [Wire(node, step) for step in range(5)]
    for tap in taps:
        tap.data(b"a line\nheld")
        tap.drain()
        tap.socket.close()
    workers = node.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    assert node.event("job_end") == 0
    time.sleep(0.5)
    assert "job_end" not in node.kinds()
    for worker in workers:
        os.kill(worker, signal.SIGCONT)
    eventually(lambda: "job_end" in node.kinds())
    kinds = node.kinds()
    assert kinds[-1] == "job_end"
    assert (kinds.count("log"), kinds.count("step_end")) == (10, 5)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_job_end_comes_after_what_a_worker_sends_that_nobody_finds_any_more(node: Rig, is_restarted: bool) -> None:
    assert node.scraper
    tap = Wire(node, 1, is_whole_step=True)
    node.scraper.signal(signal.SIGSTOP)
    tap.data(b"y\n" * 2000)
    tap.drain()
    tap.bye()
    eventually(lambda: not list(node.folder.glob("jobs/*/1.sock")))
    assert node.event("job_end") == 0
    if is_restarted:
        node.stop_node(signal.SIGKILL)
        node.start_node()
    time.sleep(0.3)  # for a daemon that would not wait
    node.scraper.signal(signal.SIGCONT)
    eventually(lambda: "job_end" in node.kinds())
    assert node.kinds() == ["job_start", "step_start", *["log"] * 2000, "step_end", "job_end"]


def test_job_end_does_not_wait_for_ever_for_a_worker_that_hangs(rig: Rig) -> None:
    rig.numbers = {}
    rig.start()
    rig.event("job_start")
    Wire(rig)
    (worker,) = rig.workers()
    os.kill(worker, signal.SIGSTOP)
    assert rig.event("job_end") == 0
    eventually(lambda: "job_end" in rig.kinds())


def test_a_daemon_killed_between_a_jobs_end_and_its_record_is_followed_by_one_that_sends_it(node: Rig) -> None:
    Wire(node)
    (worker,) = node.workers()
    os.kill(worker, signal.SIGSTOP)
    assert node.event("job_end") == 0
    node.stop_node(signal.SIGKILL)
    node.start_node()
    assert said(node, frames.HELLO, {"job_id": b"174", "step_id": b"0"}, "tap.sock")["code"] == b"2"
    os.kill(worker, signal.SIGCONT)
    eventually(lambda: node.kinds().count("job_end") == 1)
    assert node.kinds() == ["job_start", "step_start", "step_end", "job_end"]
    eventually(lambda: list((node.folder / "jobs").iterdir()) == [])


def test_of_a_step_whose_worker_was_killed_at_its_end_the_daemon_speaks(node: Rig) -> None:
    assert node.scraper
    taps = {step: Wire(node, step, is_whole_step=True) for step in (2, 3)}
    node.scraper.signal(signal.SIGSTOP)
    for tap in taps.values():
        tap.data(b"y\n" * 1000)
        tap.drain()
    taps[3].bye()  # that one's worker drains: its step_end is among what it holds
    eventually(lambda: not list(node.folder.glob("jobs/*/3.started")))
    for worker in node.workers():
        os.kill(worker, signal.SIGKILL)
    node.scraper.signal(signal.SIGCONT)
    node.ended()
    assert node.kinds()[-2:] == ["step_end", "job_end"]
    assert [one["slurm"]["step_id"] for one in node.records("step_end")] == ["2"]
    for step, kept_count in ((2, 1000), (3, 1001)):
        got_count = sum(one["slurm"]["step_id"] == str(step) for one in node.records("log"))
        (line,) = [line for line in node.log().splitlines() if line.startswith(f"[{JOB_ID}.{step}] relay dropped")]
        assert line.split()[3] == str(kept_count - got_count)
    assert list((node.folder / "jobs").iterdir()) == []


def test_two_workers_of_one_step_that_died_are_one_step_end(node: Rig) -> None:
    assert node.scraper
    node.scraper.signal(signal.SIGSTOP)
    tap = Wire(node, 2, is_whole_step=True)
    tap.data(b"y\n" * 1000)
    tap.drain()
    tap.bye()
    eventually(lambda: not list(node.folder.glob("jobs/*/2.started")))
    drains = node.workers()
    assert Wire(node, 2, is_whole_step=True).answer["code"] == b"0"
    for worker in node.workers():
        os.kill(worker, signal.SIGKILL)
    assert len(drains) == 1 and len(list(node.folder.glob("jobs/*/2*.tally"))) == 2
    node.scraper.signal(signal.SIGCONT)
    node.ended()
    assert node.kinds()[-2:] == ["step_end", "job_end"]
    assert node.kinds().count("step_end") == 1
