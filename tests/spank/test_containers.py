# SPDX-License-Identifier: GPL-2.0-or-later
"""A job in a container of its own, and hooks that Slurm runs in there: the same bytes and status, the records whole."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import host
from tests.spank.site import Relayed, kinds, output, running

pytestmark = pytest.mark.xdist_group("spank-slurm")

# A container hides /tmp, where a test cluster has all it has; which folders else, job_container.conf says from 23.02 on.
_CONTAINER = "AutoBasePath=true\nBasePath={}/box Dirs=/var/tmp\n"
_WAYS = {
    # Hooks in a process of their own without any container, as Slurm 24.05 and later do it.
    "hooks-apart": ("", "contain_spank"),
    "tasks-in-it": (_CONTAINER, ""),
    "tasks-and-hooks-in-it": (_CONTAINER, "contain_spank"),
    # slurmstepd is in it too, and so is the tap.
    "all-in-it": (f"{_CONTAINER}EntireStepInNS=true\n", ""),
}


@pytest.fixture(scope="module", params=_WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Which of them."""
    return str(request.param)


@pytest.fixture(scope="module")
def contained(way: str, slurm: None) -> "Iterator[Relayed]":
    """A node whose jobs are so."""
    if host.slurm_version() < (24, 5):
        pytest.skip("Slurm before 24.05 has no contain_spank")
    container, parameter = _WAYS[way]
    has_namespaces = host.slurm_version() >= (25, 11)
    plugin = "NamespaceType=namespace/tmpfs" if has_namespaces else "JobContainerType=job_container/tmpfs"

    def settings(folder: Path) -> "list[str]":
        (folder / "job_container.conf").write_text(container.format(folder))
        lines = [f"SlurmdParameters=config_overrides,{parameter}", "PrologFlags=Contain"]
        return [*lines, plugin] if container else lines

    with running(("n1",), settings) as made:
        yield made


# What each task writes, in two files and to two files of srun's.
_TASK = "seq 500; echo err $SLURM_PROCID >&2; exit 3"
_OUT = "".join(f"{number}\n" for number in range(1, 501)).encode()


def test_a_job_in_a_container_is_relayed_and_is_what_it_was(contained: Relayed, way: str) -> None:
    text = f"readlink /proc/self/ns/mnt; srun -Qn4 -o f.%t -e g.%t sh -c '{_TASK}'; srun -Qn4 sh -c '{_TASK}'; exit 5"
    plain = contained.batch(text, "-wn1", "-n4", "--error=err")
    tapped = contained.batch(text, "-wn1", "-n4", "--error=err", "--relay-io=yes")
    assert tapped.status == plain.status == "5:0"
    for ran in (plain, tapped):
        place, _, rest = ran.output.partition(b"\n")
        assert (place.decode() != os.readlink("/proc/self/ns/mnt")) == ("in-it" in way)
        assert sorted(rest.splitlines()) == sorted(4 * _OUT.splitlines())
        told = [line for line in ran.files["err"].splitlines() if not line.startswith(b"srun: ")]
        assert sorted(told) == [b"err %d" % task for task in range(4)]
        for task in range(4):
            assert (ran.files[f"f.{task}"], ran.files[f"g.{task}"]) == (_OUT, b"err %d\n" % task)
    records = contained.records(tapped.job_id)
    assert kinds(records, has_logs=False) == [
        "job_start",
        *("step_start batch", "step_start 0", "step_end 0", "step_start 1", "step_end 1", "step_end batch"),
        "job_end",
    ]
    assert output(records) == tapped.output
    for step_id in ("0", "1"):
        for task in range(4):
            assert output(records, "stdout", task, step_id) == _OUT
            assert output(records, "stderr", task, step_id) == b"err %d\n" % task
    assert contained.is_silent(plain.job_id)
