# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever happens to worker, daemon and scraper while a step writes: its files are whole, its status is its own."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.relay.rig import LONG_S, Record, Rig, eventually
from tests.spank.site import Relayed, kinds, md5, of_job, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

NODE = "n3"
_TASKS = 8
_BLOCKS, _LINES = 20, 200
# Each task: 20 blocks of 200 numbered lines of 86 bytes, 344 kB in two seconds; after 3 and 10 it waits for a file.
_WRITER = (
    f"i=10; while [ $i -lt {10 + _BLOCKS} ]; do seq -f $SLURM_PROCID.$i.%080.0f {_LINES};"
    " i=$((i+1)); sleep 0.05; case $i in 13|20) until [ -e {}/go.$i ]; do sleep 0.05; done ;; esac; done; exit 7"
)
_LINE_BYTES = 86
_HALF_BYTES = 10 * _LINES * _LINE_BYTES


def _written(task: int) -> bytes:
    blocks = (f"{task}.{block}.{line:080}\n" for block in range(10, 10 + _BLOCKS) for line in range(1, _LINES + 1))
    return "".join(blocks).encode()


@dataclass
class Busy:
    """A step of 8 writers that have begun and have not ended."""

    relayed: Relayed
    rig: Rig
    folder: Path
    job_id: str
    process: "object"

    def worker(self) -> int:
        (pid,) = self.rig.workers(self.job_id)
        return pid

    def daemon(self) -> int:
        assert self.rig.node
        return self.rig.node.pid

    def ended(self) -> None:
        """Waits for the step's end; its status and its files are what they would be."""
        assert self.process.wait(LONG_S) == 7  # type: ignore[attr-defined]
        for task in range(_TASKS):
            assert md5((self.folder / f"f.{task}").read_bytes()) == md5(_written(task))
        assert self.relayed.cluster.wait_job(self.job_id, "FAILED")["ExitCode"] == "7:0"

    def records(self) -> "list[Record]":
        return of_job(self.rig, self.job_id)

    def got(self) -> "list[bytes]":
        """What the records have of each task: whole lines, in the order written."""
        records = self.records()
        found = [output(records, task=task, step_id="0") for task in range(_TASKS)]
        for task, text in enumerate(found):
            left = iter(_written(task).splitlines())
            assert all(line in left for line in text.splitlines() if len(line) > 80), "not in order"
        return found

    def lost_bytes(self) -> int:
        """What the tap and the worker say was lost."""
        place = re.escape(f"[{self.job_id}.0]")
        told = f"{self.relayed.log(NODE)}\n{self.rig.log()}"
        return sum(map(int, re.findall(rf"{place} relay lost (\d+) bytes", told)))

    def dropped_count(self) -> int:
        """What is said in the end, by a worker or for one that died."""
        place = re.escape(f"[{self.job_id}.0]")
        return int(["0", *re.findall(rf"{place} .*relay dropped (\d+) records? in total", self.rig.log())][-1])

    def missing_bytes(self) -> int:
        """What the files have and the records have not."""
        return sum(len(_written(task)) for task in range(_TASKS)) - sum(map(len, self.got()))


@pytest.fixture
def busy(relayed: Relayed) -> "Iterator[Callable[..., Busy]]":
    """Starts such a step; afterwards the node's relay is as it was."""
    rig = relayed.rigs[NODE]

    def start(ring_mbytes: int = 64, goes_on: bool = True) -> Busy:
        if ring_mbytes != 64:
            _configure(rig, ring_mbytes)
        folder = relayed.folder()
        if goes_on:
            (folder / "go.13").touch()
            (folder / "go.20").touch()
        text = f"[ $SLURM_PROCID = 0 ] && echo $SLURM_JOB_ID >{folder}/id; {_WRITER.format(folder)}"
        process = relayed.cluster.popen_as(
            "root", "srun", "-Q", f"-w{NODE}", "-n8", "--relay-io=yes", "-o", f"{folder}/f.%t", "sh", "-c", text
        )
        eventually(lambda: all(_size_bytes(folder / f"f.{task}") > 50_000 for task in range(_TASKS)))
        return Busy(relayed, rig, folder, (folder / "id").read_text().strip(), process)

    yield start
    for pid in rig.workers():
        os.kill(pid, signal.SIGCONT)
    _configure(rig, 64)


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _configure(rig: Rig, ring_mbytes: int) -> None:
    rig.configure(default="no", parameters=f"stepd_ring_mbytes={ring_mbytes}")
    if rig.node and rig.node.poll() is None:
        rig.node.send_signal(signal.SIGCONT)
        rig.stop_node()
    rig.start_node()


@pytest.mark.parametrize("state", ["all well", "scraper stopped", "worker stopped"])
def test_a_worker_that_is_killed_is_followed_by_another_and_what_it_held_is_counted(
    busy: "Callable[..., Busy]", state: str
) -> None:
    step = busy(goes_on=False)
    worker = step.worker()
    assert step.rig.scraper
    if state == "scraper stopped":  # the worker's ring fills
        step.rig.scraper.signal(signal.SIGSTOP)
    elif state == "worker stopped":  # its connection to the tap fills
        os.kill(worker, signal.SIGSTOP)
    (step.folder / "go.13").touch()
    eventually(lambda: all((step.folder / f"f.{task}").stat().st_size == _HALF_BYTES for task in range(_TASKS)))
    os.kill(worker, signal.SIGKILL)
    step.rig.scraper.signal(signal.SIGCONT)
    eventually(lambda: step.rig.workers(step.job_id) not in ([], [worker]))
    (step.folder / "go.20").touch()
    step.ended()
    records = step.relayed.records(step.job_id, NODE)
    assert [kind for kind in kinds(records) if kind != "log 0"] == [
        "job_start",
        "step_start 0",
        "step_end 0",
        "job_end",
    ]
    assert all(text.endswith(_written(task)[-50_000:]) for task, text in enumerate(step.got()))
    # All that its ring had were whole lines: step_start went out long before.
    assert step.missing_bytes() == step.lost_bytes() + step.dropped_count() * _LINE_BYTES
    assert step.dropped_count() > 100 or state != "scraper stopped"
    assert step.lost_bytes() > 10_000 or state != "worker stopped"


def test_a_worker_that_hangs_holds_the_step_once_and_what_it_missed_is_counted(busy: "Callable[..., Busy]") -> None:
    step = busy()
    worker = step.worker()
    os.kill(worker, signal.SIGSTOP)
    step.ended()
    os.kill(worker, signal.SIGCONT)
    step.relayed.records(step.job_id, NODE)
    assert 0 < step.lost_bytes() == step.missing_bytes()


def test_what_a_hung_worker_was_left_with_is_told_in_case_it_never_goes_on(busy: "Callable[..., Busy]") -> None:
    step = busy()
    worker = step.worker()
    os.kill(worker, signal.SIGSTOP)
    step.ended()
    os.kill(worker, signal.SIGKILL)
    step.relayed.records(step.job_id, NODE)
    (left,) = re.findall(rf"\[{step.job_id}\.0\] relay left (\d+) bytes", step.relayed.log(NODE))
    assert 0 < int(left) == step.missing_bytes() - step.lost_bytes() - step.dropped_count() * _LINE_BYTES


def test_a_worker_that_hangs_and_is_killed_while_the_step_goes_on_is_counted_too(busy: "Callable[..., Busy]") -> None:
    step = busy()
    worker = step.worker()
    os.kill(worker, signal.SIGSTOP)
    eventually(lambda: (step.folder / "f.0").stat().st_size > 300_000)  # the tap has given it up
    os.kill(worker, signal.SIGKILL)
    step.ended()
    records = step.relayed.records(step.job_id, NODE)
    assert kinds(records)[-2:] == ["step_end 0", "job_end"]
    assert 100_000 < step.lost_bytes() == step.missing_bytes() - step.dropped_count() * _LINE_BYTES


# Writes more than the tap holds of a stream, until its pipe has been full for half a second, tells how much that was,
# and ends; at 64 MiB in any case, since without a relay that holds it it would fill the disk.
_FILLER = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "id").write_text(os.environ["SLURM_JOB_ID"])
while not (folder / "go").exists():
    time.sleep(0.02)
os.set_blocking(1, False)
count = 0
full_s = time.monotonic()
while (time.monotonic() < full_s + 0.5 or count <= 131_072) and count < 1 << 26:
    try:
        count += os.write(1, b"x" * 4096)
        full_s = time.monotonic()
    except BlockingIOError:
        time.sleep(0.01)
(folder / "count").write_text(str(count))
"""


def test_what_a_task_left_in_its_pipe_is_in_its_file_when_srun_returns(
    relayed: Relayed, busy: "Callable[..., Busy]"
) -> None:
    folder = relayed.folder()
    command = ["-o", f"{folder}/f.%t", "-e", f"{folder}/e.%t", "/usr/bin/python3", "-c", _FILLER, str(folder)]
    step = relayed.cluster.popen_as("root", "srun", "-Q", f"-w{NODE}", "--relay-io=yes", *command)
    eventually(lambda: (folder / "id").exists())
    for worker in relayed.rigs[NODE].workers():
        os.kill(worker, signal.SIGSTOP)
    (folder / "go").touch()
    assert step.wait(LONG_S) == 0
    size_bytes = (folder / "f.0").stat().st_size
    assert 1 << 26 > size_bytes == int((folder / "count").read_text()) > 131_072


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_step_that_runs_does_not_need_the_daemon(busy: "Callable[..., Busy]", number: signal.Signals) -> None:
    step = busy()
    os.kill(step.daemon(), number)
    step.ended()
    eventually(lambda: kinds(step.records())[-1:] == ["step_end 0"])  # of the job's end nobody is told
    # All of it is relayed; but a machine where nothing runs for two seconds has a worker that hangs.
    assert step.lost_bytes() == step.missing_bytes() < _TASKS * len(_written(0)) / 4


def test_worker_and_daemon_killed_together_cost_the_job_nothing(busy: "Callable[..., Busy]") -> None:
    step = busy()
    for pid in (step.daemon(), step.worker()):
        os.kill(pid, signal.SIGKILL)
    step.ended()
    # What the worker's ring held the next daemon tells at the job's end.
    step.rig.start_node()
    assert step.rig.event("job_end", job_id=int(step.job_id)) == 0
    records = step.relayed.records(step.job_id, NODE)
    assert kinds(records)[-2:] == ["step_end 0", "job_end"]
    assert 0 < step.missing_bytes() == step.lost_bytes() + step.dropped_count() * _LINE_BYTES


def test_without_a_daemon_or_with_one_that_hangs_jobs_run_as_ever(
    relayed: Relayed, busy: "Callable[..., Busy]"
) -> None:
    rig = relayed.rigs[NODE]
    assert rig.node
    for number in (signal.SIGSTOP, signal.SIGKILL):
        os.kill(rig.node.pid, number)
        if number == signal.SIGKILL:
            rig.node.wait(LONG_S)
        text = "echo out; echo err >&2; srun -n1 echo step; exit 3"
        ran = relayed.batch(text, f"-w{NODE}", "--relay-io=yes")
        assert (ran.status, sorted(ran.output.splitlines())) == ("3:0", [b"err", b"out", b"step"])


@pytest.mark.parametrize("state", ["away", "stopped"])
def test_a_scraper_that_does_not_read_costs_records_and_they_are_counted(
    relayed: Relayed, busy: "Callable[..., Busy]", state: str
) -> None:
    scraper = relayed.rigs[NODE].scraper
    assert scraper
    if state == "away":
        scraper.stop()
        os.unlink(relayed.rigs[NODE].socket)
    step = busy(ring_mbytes=1)
    if state == "stopped":
        scraper.signal(signal.SIGSTOP)
    step.ended()
    eventually(lambda: not step.rig.workers())
    if state == "away":
        step.rig.start_scraper()
    else:
        scraper.signal(signal.SIGCONT)
    relayed.records(step.job_id, NODE)
    records = [one for one in step.records() if one["type"] not in ("job_start", "job_end")]
    step.got()
    # Each line is a record; step_start and step_end are two more.
    assert 0 < step.dropped_count() == _TASKS * _BLOCKS * _LINES + 2 - len(records)


def test_a_scraper_that_is_restarted_finds_everything(busy: "Callable[..., Busy]") -> None:
    step = busy()
    assert step.rig.scraper
    step.rig.scraper.signal(signal.SIGSTOP)
    kept = step.rig.scraper
    step.rig.start_scraper()
    kept.signal(signal.SIGCONT)  # what is in the old socket is read by nobody else
    step.ended()
    step.relayed.records(step.job_id, NODE)
    kept.stop()
    assert step.got() == [_written(task) for task in range(_TASKS)]


def test_a_batch_jobs_file_is_whole_when_slurm_says_that_it_has_ended(busy: "Callable[..., Busy]") -> None:
    step = busy()
    relayed = step.relayed
    text = "head -c 300000 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/zero | tr '\\0' y >&2"
    jobs = [relayed.submit(text, f"-w{NODE}", "--relay-io=yes", "--error=err") for _ in range(20)]
    whole = {"out": b"x" * 300_000 + b"\n", "err": b"y" * 100_000}
    for job in jobs:
        ran = relayed.ended(*job)
        assert ran.files == whole and ran.status == "0:0"
    for job_id, _ in jobs:
        records = relayed.records(job_id, NODE)
        assert (output(records), output(records, "stderr")) == (whole["out"], whole["err"])
    step.ended()
