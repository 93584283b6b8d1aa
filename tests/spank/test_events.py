# SPDX-License-Identifier: GPL-2.0-or-later
"""PrologFlags=RunInJob: Prolog and Epilog run in the job's extern step, where no plugin's do; they tell of jobs."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.rig import command
from tests.slurm import host
from tests.slurm.site import USER
from tests.spank.site import Relayed, kinds, output, running

pytestmark = pytest.mark.xdist_group("spank-slurm")


@pytest.fixture(scope="module")
def told(slurm: None) -> "Iterator[Relayed]":
    """A node where they do."""
    if host.slurm_version() < (24, 5):
        pytest.skip("Slurm 24.05 and later only")

    def settings(folder: Path) -> "list[str]":
        plugstack = folder / "plugstack.conf"
        plugstack.write_text(plugstack.read_text().replace("\n", " events=no\n"))
        for name, event in (("Prolog", ("job_start", "--relay-io", "yes")), ("Epilog", ("job_end",))):
            told = command("event", *event, "--folder", str(folder.parent / "relay" / "n1" / "run"))
            (folder / name).write_text(f"#!/bin/sh\n{shlex.join(told)} || :\n")
            (folder / name).chmod(0o755)
        return ["PrologFlags=RunInJob", f"Prolog={folder}/Prolog", f"Epilog={folder}/Epilog"]

    with running(("n1",), settings) as made:
        yield made


def test_a_job_is_relayed_that_the_sites_prolog_tells_of(told: Relayed) -> None:
    ran = told.batch("echo one; srun -Qn1 echo two; srun -Qn1 --relay-io=no echo three", "-wn1")
    records = told.records(ran.job_id)
    first, *middle, last = kinds(records, has_logs=False)
    assert (first, last) == ("job_start", "job_end")
    assert sorted(middle) == ["step_end 0", "step_end batch", "step_start 0", "step_start batch"]
    assert output(records) == ran.output == b"one\ntwo\nthree\n"
    assert output(records, step_id="0") == b"two\n"
    assert (records[0]["slurm"]["user_name"], records[0]["slurm"]["node"]) == (USER, "n1")
