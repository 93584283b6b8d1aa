# SPDX-License-Identifier: GPL-2.0-or-later
"""One cluster, one site and one user for all tests here; each test has its own TaskProlog and its own desk."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need, need_program
from tests.eessi.tree import lmod_init
from tests.slurm import cluster as slurm
from tests.slurm.site import CPUS, OVERDUE_NODE, USER, Desk, Overdue, Site


@pytest.fixture(scope="session")
def folder() -> "Iterator[Path]":
    """A short folder that every user can reach: pytest's own is for one user only."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="session")
def cluster(folder: Path) -> "Iterator[slurm.Cluster]":
    """A running cluster, and the user on this machine that the jobs are of."""
    need("root", os.geteuid() == 0)
    for name in slurm.PROGRAMS:
        need_program(name)
    try:
        pwd.getpwnam(USER)
    except KeyError:
        # It stays: another cluster on this machine may be using it.
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True)
    place, own = folder / "site", folder / "cluster"
    place.mkdir()
    own.mkdir()
    (place / "TaskProlog").symlink_to("/bin/true")
    lines = [f"TaskProlog={place}/TaskProlog", f"Epilog={place}/Epilog", "LaunchParameters=use_interactive_step"]
    with slurm.Cluster(own, lines, node_count=len(CPUS) + 1) as running:
        yield running


@pytest.fixture(scope="session")
def shared_site(cluster: slurm.Cluster, folder: Path, pyz: Path) -> Site:
    """The site, as it is for all tests; they use `site`."""
    need("Lmod", lmod_init())
    return Site(cluster, folder / "site", pyz)


@pytest.fixture(scope="session")
def overdue(shared_site: Site) -> Overdue:
    """A job on a node of its own whose guard hangs and whose time limit is over in a minute, Slurm's shortest. Started
    before all other tests, so that theirs is the time it takes."""
    shared_site.prolog(shared_site.by_node)
    desk = Desk(Path(tempfile.mkdtemp(prefix="desk-", dir=shared_site.folder)))
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
    return Desk(Path(tempfile.mkdtemp(prefix="desk-", dir=shared_site.folder)))
