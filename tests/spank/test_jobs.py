# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs: what begins and ends them, what they ask for, who they are."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.relay.rig import LONG_S, eventually
from tests.slurm import host
from tests.slurm.site import MATCHING, Site
from tests.spank.site import LONG_JOB, Ran, Relayed, kinds, of_job, output, raw_of_job

pytestmark = pytest.mark.xdist_group("spank-slurm")

_BEGINNINGS = ("job_start", "step_start", "step_end", "job_end")


def _restarts(count: int) -> "int | None":
    """A restart count as records have it: before 22.05 no prolog is told it (prep_script_slurmd.c)."""
    return count if host.slurm_version() >= (22, 5) else None


def _same(ran: Ran) -> bytes:
    """The lines of a job's file without its id and times. Of stdout and stderr in one file no order is promised."""
    lines = re.sub(rb"[0-9]+(-[0-9]+-[0-9T:]+)?", b"N", ran.output).splitlines(keepends=True)
    # bash tells of its sleep, if the signal came while there was one.
    return b"".join(sorted(line for line in lines if not line.startswith(b"Terminated")))


def _begun(relayed: Relayed, wish: str, *options: str) -> "tuple[str, Path]":
    job_id, folder = relayed.submit(LONG_JOB, f"--relay-io={wish}", *options)
    eventually(lambda: (folder / "out").exists() and b"begun" in (folder / "out").read_bytes())
    return job_id, folder


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (["scancel"], "begun\ngot TERM\n"),
        (["scancel", "--full"], "begun\ngot TERM\n"),
        (["scancel", "-b", "-s", "USR1"], "begun\ngot USR1\n"),
        (["scancel", "-b", "-s", "KILL"], "begun\n"),
    ],
)
def test_a_job_that_is_signalled_ends_as_it_would(relayed: Relayed, how: "list[str]", said: str) -> None:
    ended = {}
    for wish in ("no", "yes"):
        job_id, folder = _begun(relayed, wish, "-wn1")
        relayed.cluster.command(*how, job_id)
        ended[wish] = relayed.ended(job_id, folder)
    assert ended["yes"].status == ended["no"].status
    assert _same(ended["yes"]) == _same(ended["no"])
    # Not slurmstepd's own lines ("*** JOB 7 ON n1 CANCELLED ***"): they go to the file only.
    assert output(relayed.records(ended["yes"].job_id)).decode() == said


def test_a_requeued_job_begins_anew_with_its_restart_count(relayed: Relayed) -> None:
    job_id, folder = relayed.submit(
        'echo run ${SLURM_RESTART_COUNT:-0}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600', "-wn1", "--relay-io=yes"
    )
    eventually(lambda: (folder / "out").exists() and b"run 0" in (folder / "out").read_bytes())
    relayed.cluster.command("scontrol", "requeue", job_id)
    relayed.records(job_id)
    # Slurm waits two minutes. Within the same second slurmd takes it for the same run, and runs no prolog.
    time.sleep(2)

    def runs_again() -> bool:
        relayed.cluster.command("scontrol", "update", f"JobId={job_id}", "StartTime=now", check=False)
        return relayed.cluster.job(job_id)["Restarts"] == "1" and relayed.cluster.job(job_id)["JobState"] == "COMPLETED"

    relayed.cluster.wait_for(runs_again, "not requeued")
    rig = relayed.rigs["n1"]
    eventually(lambda: sum(b'"job_end"' in line for line in raw_of_job(rig, job_id)) == 2)
    records = of_job(rig, job_id)
    one_run = ["job_start", "step_start batch", "log batch", "step_end batch", "job_end"]
    assert kinds(records) == [*one_run, *one_run]
    counts = [one["slurm"].get("restart_count") for one in records if one["type"] in ("job_start", "job_end")]
    assert counts == [_restarts(count) for count in (0, 0, 1, 1)]
    assert output(records) == b"run 0\nrun 1\n"


def test_each_node_tells_once_of_a_job_and_of_each_step_with_work_there(relayed: Relayed) -> None:
    text = "srun --label hostname >/dev/null; srun -N1 -n1 -w n2 echo second"
    ran = relayed.batch(text, "-N2", "-wn1,n2", "--relay-io=yes")
    assert ran.status == "0:0"
    first = [kind for kind in kinds(relayed.records(ran.job_id)) if not kind.startswith("log")]
    second = [kind for kind in kinds(relayed.records(ran.job_id, "n2")) if not kind.startswith("log")]
    assert first[0] == "job_start" and first[-1] == "job_end" and second[0] == "job_start" and second[-1] == "job_end"
    assert sorted(first[1:-1]) == ["step_end 0", "step_end batch", "step_start 0", "step_start batch"]
    assert sorted(second[1:-1]) == ["step_end 0", "step_end 1", "step_start 0", "step_start 1"]
    step = relayed.records(ran.job_id, "n2")
    assert {one["slurm"]["task_id_global"] for one in step if one["type"] == "log" and _step(one) == "0"} == {1}
    assert {one["slurm"]["task_id_local"] for one in step if one["type"] == "log" and _step(one) == "0"} == {0}


def _step(record: "dict[str, dict[str, object]]") -> object:
    return record["slurm"].get("step_id")


@pytest.fixture
def by_default(relayed: Relayed) -> "Iterator[str]":
    """A node where jobs are relayed that ask for nothing."""
    rig = relayed.rigs["n2"]
    rig.configure(default="yes", parameters="stepd_ring_mbytes=64")
    rig.stop_node()
    rig.start_node()
    yield "n2"
    rig.configure(default="no", parameters="stepd_ring_mbytes=64")
    rig.stop_node()
    rig.start_node()


# -Q: srun tells of it where a step had to wait for the end of the one before.
_STEPS = (
    "for wish in '' --relay-io=yes --relay-io=no --relay-io=default --export=NONE;"
    " do srun -Qn1 $wish /bin/sh -c 'echo step $SLURM_STEP_ID'; done"
)


@pytest.mark.parametrize(
    ("node", "wish", "is_relayed"),
    [
        ("n1", (), False),
        ("n1", ("--relay-io=yes",), True),
        ("n1", ("--relay-io=no",), False),
        ("n1", ("--relay-io=default",), False),
        ("n2", (), True),
        ("n2", ("--relay-io=yes",), True),
        ("n2", ("--relay-io=no",), False),
        ("n2", ("--relay-io=default",), True),
    ],
)
def test_the_job_is_settled_at_its_start_and_a_step_can_only_leave_itself_out(
    relayed: Relayed, by_default: str, node: str, wish: "tuple[str, ...]", is_relayed: bool
) -> None:
    ran = relayed.batch(_STEPS, f"-w{node}", *wish)
    assert ran.output.decode() == "".join(f"step {number}\n" for number in range(5))
    if not is_relayed:
        assert relayed.is_silent(ran.job_id, node)
        return
    records = relayed.records(ran.job_id, node)
    steps = {step: output(records, step_id=step) for step in ("batch", "0", "1", "2", "3", "4")}
    assert steps == {"batch": ran.output, **{step: f"step {step}\n".encode() for step in "0134"}, "2": b""}
    assert "step_start 2" not in kinds(records)


def test_a_wish_that_is_none_is_refused_where_it_is_typed(relayed: Relayed) -> None:
    ran = relayed.run("srun", "--relay-io=maybe", "true")
    assert ran.status != "0" and b"--relay-io takes yes, no or default" in ran.error


def test_a_default_that_changes_does_not_split_a_running_job(relayed: Relayed, by_default: str) -> None:
    rig = relayed.rigs[by_default]
    folder = relayed.folder()
    text = f"echo before; until [ -e {folder}/go ]; do sleep 0.05; done; srun -n1 echo after"
    job_id, _ = relayed.submit(text, "-wn2", folder=folder)
    eventually(lambda: (folder / "out").exists() and b"before" in (folder / "out").read_bytes())
    rig.configure(default="no")
    rig.stop_node()
    rig.start_node()
    (folder / "go").touch()
    ran = relayed.ended(job_id, folder)
    records = relayed.records(job_id, by_default)
    assert output(records) == ran.output == b"before\nafter\n"
    assert output(records, step_id="0") == b"after\n"
    later = relayed.batch("echo later", "-wn2")
    assert relayed.is_silent(later.job_id, by_default)


def test_a_user_cannot_choose_who_the_records_say_it_is(relayed: Relayed) -> None:
    forged = "SLURM_JOB_ACCOUNT=evil SLURM_RESTART_COUNT=7 SLURM_JOB_USER=root SLURM_JOB_ID=1 SLURM_CLUSTER_NAME=evil"
    text = f'(export {forged}; echo batch); export SLURM_PROCID=9; srun -n1 env {forged} sh -c "echo step"'
    given = "--export=ALL,SLURM_JOB_ACCOUNT=evil,SLURM_RESTART_COUNT=7,SLURM_PROCID=9"
    ran = relayed.batch(text, "-wn1", "--relay-io=yes", given)
    records = relayed.records(ran.job_id)
    assert output(records) == b"batch\nstep\n"
    own = relayed.cluster.job(ran.job_id)["UserId"].partition("(")[0]
    assert {one["slurm"]["user_name"] for one in records} == {own}
    assert {one["slurm"]["cluster"] for one in records} == {"test"}
    # From 25.11 on slurmd's prolog is told the job's SLUID.
    sluid = relayed.cluster.job(ran.job_id).get("SLUID")
    assert {one["slurm"].get("sluid") for one in records} == {sluid}
    assert (sluid is not None) == (host.slurm_version() >= (25, 11))
    assert records[0]["slurm"].get("restart_count") == _restarts(0) and records[0]["slurm"]["partition"] == "p"
    assert {one["slurm"]["task_id_global"] for one in records if one["type"] == "log"} == {0}
    assert "evil" not in str(records)


def test_a_job_whose_prolog_fails_has_a_start_and_an_end(relayed: Relayed) -> None:
    mark = relayed.place / "fails-on-n3"
    mark.touch()
    try:
        job_id, _ = relayed.submit("echo never", "-wn3", "--relay-io=yes")
        eventually(lambda: bool(raw_of_job(relayed.rigs["n3"], job_id)))
        relayed.cluster.command("scancel", job_id)
        assert kinds(relayed.records(job_id, "n3")) == ["job_start", "job_end"]
        drained = lambda: "DRAIN" in relayed.cluster.command("scontrol", "show", "node", "n3")  # noqa: E731
        relayed.cluster.wait_for(drained, "slurmd does not drain the node")
    finally:
        mark.unlink()
        relayed.cluster.command("scontrol", "update", "NodeName=n3", "State=RESUME", check=False)
        relayed.cluster.wait_idle("n3")


def _are_begun(folder: Path) -> bool:
    return len([path for path in folder.glob("id.*") if path.stat().st_size]) == 64


def _descriptors_count(pid: str) -> int:
    """What a process has open all the time of a second, without its connections to srun, which come and go."""
    counts = []
    for _ in range(20):
        opened = []
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                opened.append(os.readlink(fd))
        inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
        counts.append(sum(name[len("socket:[") : -1] not in inodes for name in opened))
        time.sleep(0.05)
    return min(counts)


def test_64_tasks_are_relayed_for_four_descriptors_each(relayed: Relayed) -> None:
    counts = {}
    for wish in ("no", "yes"):
        folder = relayed.folder()
        text = (
            f"echo $SLURM_JOB_ID $PPID >{folder}/id.$SLURM_PROCID; until [ -e {folder}/go ]; do sleep 0.2; done;"
            " seq -f $SLURM_PROCID.%.0f 200; echo err $SLURM_PROCID >&2"
        )
        files = ["-o", f"{folder}/f.%t.out", "-e", f"{folder}/f.%t.err"]
        step = relayed.cluster.popen_as("root", "srun", "-wn1", "-n64", f"--relay-io={wish}", *files, "sh", "-c", text)
        try:
            eventually(partial(_are_begun, folder))
            job_id, slurmstepd = (folder / "id.0").read_text().split()
            counts[wish] = _descriptors_count(slurmstepd)
        finally:
            (folder / "go").touch()
        assert step.wait(LONG_S) == 0
        for task in range(64):
            lines = "".join(f"{task}.{number}\n" for number in range(1, 201))
            assert (folder / f"f.{task}.out").read_text() == lines
            assert (folder / f"f.{task}.err").read_text() == f"err {task}\n"
    # For each task two streams, for each its pipe and its file; for the step the worker, its tally, a wake-up and the
    # two ends on which tasks give theirs.
    assert counts["yes"] - counts["no"] == 64 * 4 + 5
    records = relayed.records(job_id)
    for task in range(64):
        lines = "".join(f"{task}.{number}\n" for number in range(1, 201))
        assert output(records, task=task, step_id="0").decode() == lines
        assert output(records, "stderr", task, "0").decode() == f"err {task}\n"


def test_a_destination_that_fails_ends_its_stream_and_no_other(relayed: Relayed) -> None:
    text = "sh -c 'echo lost; sleep 0.5; echo again; echo unreached >&2'; echo status $? >&2"
    ran = relayed.batch(text, "-wn1", "--relay-io=yes", "--output=/dev/full", "--error=err")
    # As relay_io says: the next write is EPIPE and SIGPIPE, which a shell's echo outlives.
    assert b"status " in ran.files["err"]
    assert "stdout: cannot write its destination: No space left on device" in relayed.rigs["n1"].log()
    assert output(relayed.records(ran.job_id), "stderr") == ran.files["err"]


def test_the_guards_line_is_in_the_records_once_for_each_node(relayed: Relayed, pyz: Path) -> None:
    place = relayed.folder()
    site = Site(relayed.cluster, place, pyz)
    link = relayed.place / "TaskProlog"
    link.unlink()
    link.symlink_to(site.by_node)
    try:
        # n4 has the two that outlive their limit, and CPUs enough.
        text = "[ $SLURM_PROCID = 0 ] && echo $SLURM_JOB_ID >id; echo task $SLURM_PROCID"
        command = ["srun", "-N4", "-n8", "--ntasks-per-node=2", "--relay-io=yes", "sh", "-c", text]
        ran = relayed.run(*command, environ=site.login)
        assert ran.status == "0", ran.error
        for node in relayed.rigs:
            records = relayed.records(ran.job_id, node)
            bodies = [one["body"] for one in records if one["type"] == "log"]
            said = [body for body in bodies if not body.startswith("task ")]
            assert len(bodies) - len(said) == 2
            assert len(said) == (0 if node == MATCHING else 1), said
            assert all("eessi-arch-guard" in body for body in said)
    finally:
        link.unlink()
        link.symlink_to("/bin/true")


def test_a_job_that_outlives_its_limit_ends_as_it_would(relayed: Relayed) -> None:
    ended = {wish: relayed.ended(*job) for wish, job in relayed.overdue.items()}
    assert ended["yes"].status == ended["no"].status
    assert _same(ended["yes"]) == _same(ended["no"])
    assert b"DUE TO TIME LIMIT" in ended["yes"].output
    records = relayed.records(ended["yes"].job_id, "n4")
    assert kinds(records) == ["job_start", "step_start batch", "log batch", "step_end batch", "job_end"]
