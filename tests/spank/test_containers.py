# SPDX-License-Identifier: GPL-2.0-or-later
"""A job in a container of its own, and hooks that Slurm runs in there: the same bytes and status, the records whole."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.relay.rig import eventually
from tests.slurm import host
from tests.spank.site import Relayed, kinds, output, running

pytestmark = pytest.mark.xdist_group("spank-slurm")


@dataclass
class Way:
    """since: the Slurm that has it; file, text: what lies beside slurm.conf; plugin: of NamespaceType, none for "";
    parameter: of SlurmdParameters."""

    since: "tuple[int, int]"
    file: str = ""
    text: str = ""
    plugin: str = ""
    parameter: str = ""


# Not /tmp, which a container hides unless it is told otherwise: a test cluster has all that it has there.
_TMPFS = "AutoBasePath=true\nBasePath={folder}/box\nDirs=/var/tmp\n"
_LINUX = """\
defaults:
  auto_base_path: true
  base_path: "{folder}/box"
  dirs: "/var/tmp"
  clone_ns_flags: "CLONE_NEWPID,CLONE_NEWUSER"
"""

WAYS = {
    "hooks apart, without a container": Way((24, 5), parameter="contain_spank"),
    "tasks in it": Way((24, 5), "job_container.conf", _TMPFS, "tmpfs"),
    "tasks and hooks in it": Way((24, 5), "job_container.conf", _TMPFS, "tmpfs", "contain_spank"),
    "slurmstepd too": Way((24, 11), "job_container.conf", f"{_TMPFS}EntireStepInNS=true\n", "tmpfs"),
    "processes and users too": Way((25, 11), "namespace.yaml", _LINUX, "linux", "contain_spank"),
}


def _unmountable(folder: Path) -> "list[int]":
    """The CPUs on which a mount namespace can be made, but its file not be mounted, as Slurm does with it.

    Linux 6.18 numbers namespaces by CPU and refuses one (EINVAL) whose number is below that of the one that mounts.
    """
    (folder / "namespace").touch()
    refused = []
    for cpu in sorted(os.sched_getaffinity(0)):
        command = ["taskset", "-c", str(cpu), "unshare", "--mount", "sh", "-c", "echo; cat"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
            assert made.stdin and made.stdout and made.stdout.read(1) == b"\n"
            mount = ["mount", "--bind", f"/proc/{made.pid}/ns/mnt", str(folder / "namespace")]
            if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
                refused.append(cpu)
            else:
                subprocess.run(["umount", str(folder / "namespace")], check=True)
            made.stdin.close()
    return refused


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """One of them, that this Slurm has."""
    chosen = WAYS[request.param]
    if host.slurm_version() < chosen.since:
        pytest.skip("Slurm {}.{:02} and later only".format(*chosen.since))
    return chosen


@pytest.fixture(scope="module")
def contained(slurm: None, way: Way) -> "Iterator[Relayed]":
    """A node whose jobs are so."""
    if way.plugin:
        with host.reachable_folder() as folder:
            refused = _unmountable(folder)
        if refused:
            pytest.skip(f"a namespace made on CPUs {refused} cannot be mounted here: run this on the others (taskset)")

    def settings(folder: Path) -> "list[str]":
        lines = [f"SlurmdParameters=config_overrides,{way.parameter}", "PrologFlags=Contain"]
        if way.plugin:
            (folder / way.file).write_text(way.text.format(folder=folder))
            has_namespaces = host.slurm_version() >= (25, 11)
            kind = "NamespaceType=namespace" if has_namespaces else "JobContainerType=job_container"
            lines.append(f"{kind}/{way.plugin}")
        return lines

    with running(("n1",), settings) as made:
        yield made
        # Slurm takes a container away after the job's end; what is mounted could not be removed.
        eventually(lambda: not list(made.cluster.folder.glob("box/n1/*")))


_TASK = "seq 500; echo err $SLURM_PROCID >&2; exit 3"
_OUT = "".join(f"{number}\n" for number in range(1, 501)).encode()


def test_a_job_in_a_container_is_relayed_and_is_what_it_was(contained: Relayed, way: Way) -> None:
    step = f"sh -c '{_TASK}'"
    text = f"readlink /proc/self/ns/mnt; srun -Qn4 -o f.%t -e g.%t {step}; srun -Qn4 {step}; exit 5"
    plain = contained.batch(text, "-wn1", "-n4", "--error=err")
    tapped = contained.batch(text, "-wn1", "-n4", "--error=err", "--relay-io=yes")
    assert tapped.status == plain.status == "5:0"
    for ran in (plain, tapped):
        place, _, rest = ran.output.partition(b"\n")
        assert (place.decode() != os.readlink("/proc/self/ns/mnt")) == bool(way.plugin)
        assert sorted(rest.splitlines()) == sorted(4 * _OUT.splitlines())
        told = [line for line in ran.files["err"].splitlines() if not line.startswith(b"srun: ")]
        assert sorted(told) == [b"err %d" % task for task in range(4)]
        for task in range(4):
            assert (ran.files[f"f.{task}"], ran.files[f"g.{task}"]) == (_OUT, b"err %d\n" % task)
    records = contained.records(tapped.job_id)
    first, *middle, last = kinds(records, has_logs=False)
    assert (first, last) == ("job_start", "job_end")
    # Between steps no order is promised.
    assert sorted(middle) == sorted(f"step_{kind} {step}" for kind in ("start", "end") for step in ("batch", 0, 1))
    assert output(records) == tapped.output
    for step_id in ("0", "1"):
        for task in range(4):
            assert output(records, "stdout", task, step_id) == _OUT
            assert output(records, "stderr", task, step_id) == b"err %d\n" % task
    assert contained.is_silent(plain.job_id)
