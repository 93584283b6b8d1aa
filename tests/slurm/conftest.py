# SPDX-License-Identifier: GPL-2.0-or-later
"""One cluster, one site and one user for all tests here; each test has its own TaskProlog and its own desk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need, need_program
from tests.eessi.tree import lmod_init
from tests.slurm import cluster
from tests.slurm.site import OVERDUE_NODE, Desk, Overdue, Site, running


@pytest.fixture(scope="session")
def shared_site(pyz: Path) -> "Iterator[Site]":
    """The site, as it is for all tests; they use `site`."""
    if os.geteuid():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("a Slurm of one's own needs root")
    for name in cluster.PROGRAMS:
        need_program(name)
    need("Lmod", lmod_init())
    with running(pyz) as made:
        yield made


@pytest.fixture(scope="session")
def overdue(shared_site: Site) -> Overdue:
    """A job on a node of its own whose guard hangs and whose time limit is over in a minute, Slurm's shortest. Started
    before all other tests, so that theirs is the time it takes."""
    shared_site.prolog(shared_site.by_node)
    desk = Desk.made(shared_site.folder)
    environ = {**shared_site.login, **shared_site.hanging(desk), b"EESSI_ARCH_GUARD_TIMEOUT": b"600"}
    job_id = shared_site.submit(str(desk.task), "-w", OVERDUE_NODE, "--time=1", environ=environ)
    detector, guard = shared_site.hung(desk)
    return Overdue(desk, job_id, detector, guard)


@pytest.fixture
def site(shared_site: Site, overdue: Overdue) -> "Iterator[Site]":
    """The site with the guard as every node's TaskProlog; what a test changes is undone after it."""
    shared_site.prolog(shared_site.by_node)
    yield shared_site
    shared_site.prolog("/bin/true")


@pytest.fixture
def desk(shared_site: Site) -> Desk:
    """Where this test's tasks leave their environments."""
    return Desk.made(shared_site.folder)
