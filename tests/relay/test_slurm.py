# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay exec` of the built program by a user's job on a real Slurm that has no relay of its own."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import need_program
from tests.relay.rig import Rig
from tests.slurm import cluster
from tests.slurm.host import reachable_folder
from tests.slurm.site import USER

pytestmark = [
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(os.getuid() != 0, reason="a Slurm of one's own needs root"),
]

SCRIPT = """#!/bin/sh
{exec} sh -c 'echo in batch; echo its error >&2'
srun -n2 --overcommit {exec} sh -c 'echo task $SLURM_PROCID'
srun {exec} sh -c 'echo dying; kill -USR1 $$'
echo status $?
srun {exec} sh -c 'exit 7'
echo status $?
{exec} sh -c 'read line || echo no stdin' <&-
"""


def test_a_jobs_output_is_in_its_file_and_in_the_records_with_its_steps_and_tasks(pyz: Path, rig: Rig) -> None:
    for name in cluster.PROGRAMS:
        need_program(name)
    try:
        account = pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True)
        account = pwd.getpwnam(USER)
    rig.start()
    rig.base.chmod(0o711)
    with reachable_folder() as folder:
        program = folder / "eessi-arch-guard.pyz"
        shutil.copy(pyz, program)
        out = folder / "out"
        out.touch()
        os.chown(out, account.pw_uid, account.pw_gid)
        script = folder / "job"
        script.write_text(SCRIPT.format(exec=f"{program} relay exec --folder {rig.folder} --"))
        own = folder / "cluster"
        own.mkdir()
        with cluster.Cluster(own, node_count=1) as slurm:
            held = slurm.run_as(USER, "sbatch", "--hold", "--parsable", "-o", out, "-e", out, script)
            job_id = held.stdout.decode().strip()
            # Told as its Prolog would.
            assert rig.event("job_start", job_id=int(job_id), uid=account.pw_uid) == 0
            slurm.command("scontrol", "release", job_id)
            slurm.wait_job(job_id, "COMPLETED")
        text = out.read_text()
        for line in ("in batch", "its error", "task 0", "task 1", "dying", "status 138", "status 7", "no stdin"):
            assert f"{line}\n" in text, text
    rig.ended(int(job_id))
    got = {
        (one["slurm"]["step_id"], one["slurm"]["task_id_global"], one["stream"], one["body"])
        for one in rig.records("log")
    }
    assert got == {
        ("batch", 0, "stdout", "in batch\n"),
        ("batch", 0, "stderr", "its error\n"),
        ("0", 0, "stdout", "task 0\n"),
        ("0", 1, "stdout", "task 1\n"),
        ("1", 0, "stdout", "dying\n"),
        ("batch", 0, "stdout", "no stdin\n"),
    }
    assert (rig.kinds()[0], rig.kinds()[-1]) == ("job_start", "job_end")
