# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks that the kernel kills while they write, as its OOM killer does: no word to Slurm, no last words of theirs."""

import os
import signal
from pathlib import Path

import pytest

from tests.relay.rig import eventually
from tests.spank.site import Relayed, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

# Writes without end, a line of stdout and a line of stderr in turn.
_TEXT = "echo $SLURM_JOB_ID >id; echo $$ >pid; i=0; while i=$((i+1)); do echo out $i; echo err $i >&2; done"


def _lines(name: str, count: int) -> bytes:
    return b"".join(b"%s %d\n" % (name.encode(), number) for number in range(1, count + 1))


def _kill(folder: Path, file: str) -> None:
    """Kills the task once so much of its output is in a file that all pipes have been full."""
    eventually(lambda: (folder / file).exists() and (folder / file).stat().st_size > 300_000)
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def _whole(data: bytes, name: str) -> int:
    """How many lines of a stream these are: all of them, up to the last."""
    count = data.count(b"\n")
    assert data == _lines(name, count)
    return count


def test_a_task_that_is_killed_while_it_writes(relayed: Relayed) -> None:
    """Its stdout goes to srun, its stderr to a file on the node."""
    for wish in ("no", "yes"):
        folder = relayed.folder()
        step = ("-wn1", f"--relay-io={wish}", "-e", f"{folder}/f.%t", "sh", "-c", f"cd {folder}; {_TEXT}")
        srun = relayed.cluster.popen_as("root", "sh", "-c", 'exec srun "$@" >$0/out 2>$0/said', folder, *step)
        _kill(folder, "f.0")
        assert srun.wait(60) == 137
        assert b"srun: error: n1: task 0: Killed\n" in (folder / "said").read_bytes()
        _whole((folder / "f.0").read_bytes(), "err")
    records = relayed.records((folder / "id").read_text().strip())
    assert output(records, "stderr", step_id="0") == (folder / "f.0").read_bytes()
    out_count = _whole(output(records, step_id="0"), "out")
    assert out_count - _whole((folder / "f.0").read_bytes(), "err") in (0, 1)
    # srun takes no more once it knows that its task was killed, with and without the relay.
    assert _lines("out", out_count).startswith((folder / "out").read_bytes())


def test_a_batch_script_that_is_killed_while_it_writes(relayed: Relayed) -> None:
    for wish in ("no", "yes"):
        job_id, folder = relayed.submit(_TEXT, "-wn1", f"--relay-io={wish}", "--error=err")
        _kill(folder, "out")
        ran = relayed.ended(job_id, folder)
        assert ran.status == "0:9"
        # Slurm's own line about the job may be in it too, and is in no record.
        assert _whole(ran.output, "out") - _whole(ran.files["err"], "err") in (0, 1)
    records = relayed.records(job_id)
    assert (output(records), output(records, "stderr")) == (ran.output, ran.files["err"])
