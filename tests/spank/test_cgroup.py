# SPDX-License-Identifier: GPL-2.0-or-later
"""As sites run Slurm: each step in cgroups, which end it, freeze it, bound its memory. The relay is outside of them.

Needs cgroup v1 mounted, which no package brings, or a booted system with v2: there Slurm has systemd make its scope.
"""

import contextlib
import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.relay.rig import eventually
from tests.slurm import host
from tests.spank.site import Relayed, kinds, output, running

pytestmark = pytest.mark.xdist_group("spank-slurm")

_ROOT = Path("/sys/fs/cgroup")
_IS_V2 = (_ROOT / "cgroup.controllers").exists() and os.path.isdir("/run/systemd/system")
_CGROUP = f"""\
CgroupPlugin={"cgroup/v2" if _IS_V2 else "cgroup/v1"}
CgroupMountpoint={_ROOT}
ConstrainRAMSpace=yes
AllowedRAMSpace=100
MinRAMSpace=1
"""


@pytest.fixture(scope="module")
def constrained(slurm: None) -> "Iterator[Relayed]":
    """A node whose steps are in cgroups of their own."""
    if host.slurm_version() < (22, 5):
        pytest.skip("cgroup/v1 has its name from Slurm 22.05 on")
    is_v1 = all(os.access(_ROOT / name / "tasks", os.W_OK) for name in ("freezer", "memory", "cpuacct"))
    if not is_v1 and not _IS_V2:
        pytest.skip("this machine has no cgroup v1, nor v2 with a systemd")

    def settings(folder: Path) -> "list[str]":
        (folder / "cgroup.conf").write_text(_CGROUP)
        return [
            "ProctrackType=proctrack/cgroup",
            "TaskPlugin=task/cgroup",
            "SelectTypeParameters=CR_CPU_Memory",
            "JobAcctGatherType=jobacct_gather/cgroup",
        ]

    own = set(_ROOT.glob("*/slurm_n1"))
    with running(("n1",), settings) as made:
        yield made
    # Slurm takes away the cgroups of jobs only.
    for cgroup in set(_ROOT.glob("*/slurm_n1")) - own:
        with contextlib.suppress(OSError):  # a job of another cluster's n1 is in it
            cgroup.rmdir()


# Tells of each MiB that it takes, to srun and to a file on the node, until the kernel kills it.
_HOG = """
import os, sys
taken = []
with open("id", "w") as file:
    file.write(os.environ["SLURM_JOB_ID"])
while True:
    taken.append(bytearray(b"x" * 2**20))
    for file in (sys.stdout, sys.stderr):
        print(f"MiB {len(taken):04}" + "." * 4000, file=file, flush=True)
"""


def test_what_the_kernel_kills_for_its_memory_ends_as_it_would_and_nothing_of_it_is_lost(constrained: Relayed) -> None:
    said = {}
    for wish in ("no", "yes"):
        command = ["-Qwn1", "--mem=60", f"--relay-io={wish}", "-o", "out", "-e", "e.%t", "/usr/bin/python3", "-c", _HOG]
        said[wish] = constrained.run("srun", *command)
        # Slurmstepd's own line: oom-kill in 22.05, later oom_kill.
        assert b"Out Of Memory" in said[wish].error and re.search(rb"oom.kill event", said[wish].files["e.0"])
        assert said[wish].files["out"].endswith(b".\n")
    assert said["yes"].status == said["no"].status
    records = constrained.records(said["yes"].job_id)
    assert kinds(records) == ["job_start", "step_start 0", "log 0", "step_end 0", "job_end"]
    assert output(records, step_id="0") == said["yes"].files["out"]
    written = [line for line in said["yes"].files["e.0"].splitlines(keepends=True) if line.startswith(b"MiB")]
    assert output(records, "stderr", step_id="0") == b"".join(written)
    assert len(written) > 20


# Leaves a process that writes, and ends once that has begun.
_LEAVES = (
    "setsid sh -c 'echo $$ >pid.{0}; while :; do echo {0}; sleep 0.1; done' & until [ -s pid.{0} ]; do sleep 0.1; done"
)


def _is_gone(pid: int) -> bool:
    return not host.is_running(pid)


def test_what_a_job_leaves_running_ends_with_it_and_holds_nothing_up(constrained: Relayed) -> None:
    text = f'{_LEAVES.format("job")}; srun -Q sh -c "{_LEAVES.format("step")}; sleep 0.3"; echo two >&2; exit 3'
    for wish in ("no", "yes"):
        ran = constrained.batch(text, "-wn1", f"--relay-io={wish}")
        assert ran.status == "3:0" and b"two\n" in ran.output
        for name in ("pid.job", "pid.step"):
            eventually(partial(_is_gone, int(ran.files[name])))
    records = constrained.records(ran.job_id)
    first, *middle, last = kinds(records, has_logs=False)
    assert (first, last) == ("job_start", "job_end")
    assert sorted(middle) == ["step_end 0", "step_end batch", "step_start 0", "step_start batch"]
    # The two streams go to one file.
    both = output(records).splitlines() + output(records, "stderr").splitlines()
    assert sorted(both) == sorted(ran.output.splitlines())
    assert output(records, step_id="0").startswith(b"step\n")


def _unread_bytes(pid: str) -> int:
    """What is left in the pipe that is a process's stdout."""
    with open(f"/proc/{pid}/fd/1", "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as pipe:
        (size_bytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))
    return int(size_bytes)


def test_a_job_that_is_frozen_goes_on_where_it_was(constrained: Relayed) -> None:
    folder = constrained.folder()
    text = f"until [ -e {folder}/go ]; do echo tick; sleep 0.02; done; seq 5000"
    job_id, _ = constrained.submit(text, "-wn1", "--relay-io=yes", folder=folder)
    out = folder / "out"
    eventually(lambda: out.exists() and b"tick\n" * 5 in out.read_bytes())
    constrained.cluster.command("scontrol", "suspend", job_id)
    (freezer,) = _ROOT.glob(f"freezer/slurm_n1/uid_*/job_{job_id}/step_batch")
    eventually(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
    (pid,) = (freezer / "cgroup.procs").read_text().split()[:1]
    eventually(lambda: not _unread_bytes(pid))
    size_bytes = out.stat().st_size
    (folder / "go").touch()
    time.sleep(0.5)
    assert out.stat().st_size == size_bytes
    constrained.cluster.command("scontrol", "resume", job_id)
    ran = constrained.ended(job_id, folder)
    assert ran.status == "0:0" and ran.output.endswith(b"\n4999\n5000\n")
    assert output(constrained.records(job_id)) == ran.output
