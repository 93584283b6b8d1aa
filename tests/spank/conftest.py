# SPDX-License-Identifier: GPL-2.0-or-later
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need, need_program
from tests.slurm import cluster
from tests.spank.site import LONG_JOB, Relayed, running


@pytest.fixture(scope="session")
def slurm() -> None:
    """What a cluster with the tap needs is here."""
    need("root, which a Slurm of one's own needs,", os.geteuid() == 0)
    for name in (*cluster.PROGRAMS, "make", "gcc"):
        need_program(name)
    need("libslurm-dev", Path("/usr/include/slurm/spank.h").exists())


@pytest.fixture(scope="session")
def relayed(slurm: None) -> "Iterator[Relayed]":
    """A cluster with the tap on every node; jobs are relayed that ask for it."""
    with running() as made:
        for wish in ("no", "yes"):
            made.overdue[wish] = made.submit(LONG_JOB, "-wn4", "--time=1", f"--relay-io={wish}")
        yield made
