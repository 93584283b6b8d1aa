# SPDX-License-Identifier: GPL-2.0-or-later
"""docs/site-install.md followed word by word on a cluster of its own: its blocks of sh are typed, its lines for
slurm.conf go into slurm.conf, with the paths that the page lets a site choose.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.slurm import host
from tests.slurm.cluster import Cluster
from tests.slurm.host import heeds_a_prologs_status, reachable_folder, reads_lines
from tests.slurm.site import CPUS, LOGIN_CPU, USER, Desk, Environ, Site

pytestmark = pytest.mark.xdist_group("slurm")

PAGE = (ROOT / "docs" / "site-install.md").read_text()
BLOCK = re.compile(r"^(#+ [^\n]*)$|^```(sh|slurm\.conf)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RELOADED = f"eessi-arch-guard: reloaded 5 modules on n1: {LOGIN_CPU}->{CPUS['n1']}\n"


def blocks(heading: str) -> "list[tuple[str, str]]":
    """The blocks of sh and of slurm.conf below a heading of the page, up to the next heading, in their order."""
    here, found = False, []
    for title, kind, text in BLOCK.findall(PAGE):
        if title:
            here = title.lstrip("# ") == heading
        elif here:
            found.append((kind, text))
    assert found, f"the page has no block below {heading!r}"
    return found


@dataclass
class Reader:
    """An admin with the page in hand: the cluster, and where this site has what the page has in the usual places."""

    site: Site
    cluster: Cluster
    places: "dict[str, str]"

    def placed(self, text: str) -> str:
        """text with this site's paths."""
        for path, place in self.places.items():
            text = text.replace(path, place)
        return text

    def follow(self, heading: str) -> None:
        """Does what the blocks below a heading say, in their order, as root in the checkout."""
        for kind, text in blocks(heading):
            if kind == "slurm.conf":
                changed = {line.partition("=")[0] for line in self.placed(text).splitlines()}
                kept = [line for line in self.cluster.lines if line.partition("=")[0] not in changed]
                self.cluster.reconfigure([*kept, *self.placed(text).splitlines()])
            else:
                environ = {**os.environ, "SLURM_CONF": str(self.cluster.conf)}
                subprocess.run(["/bin/sh", "-e", "-c", self.placed(text)], cwd=ROOT, env=environ, check=True)

    def run(self, *command: "str | Path", environ: "Environ | None" = None) -> "tuple[int, str]":
        """The status and output of a step, of a user with modules for another node."""
        given = self.site.at("n1", self.site.login) if environ is None else environ
        run = self.cluster.run_as(USER, *command, environ=given)
        return run.returncode, run.stdout.decode()


@pytest.fixture
def reader(site: Site) -> "Iterator[Reader]":
    with reachable_folder() as folder:
        own = folder / "cluster"
        own.mkdir()
        published = folder / "cvmfs" / "0.1.0"
        published.mkdir(parents=True)
        (published / "eessi-arch-guard.pyz").write_bytes(site.pyz.read_bytes())
        (published / "eessi-arch-guard.pyz").chmod(0o755)
        (folder / "cvmfs" / "current").symlink_to("0.1.0")
        (folder / "etc").mkdir()
        (folder / "bin").mkdir()
        places = {
            "/cvmfs/software.eessi.io/eessi-arch-guard": f"{folder}/cvmfs",
            "/etc/slurm": f"{folder}/etc",
            "/usr/local/bin": f"{folder}/bin",
        }
        with Cluster(own, [f"Epilog={site.folder}/Epilog"], node_count=1) as cluster:
            yield Reader(site, cluster, places)


# The headings of the page that say how a task's prolog is set up, and those of its other blocks.
WAYS = (
    "TaskProlog: a local wrapper",
    "Straight from CVMFS",
    "Together with a TaskProlog that you have already",
    "In the node's log as well",
    "Older Slurm",
)
CHAINED = WAYS[2]
OTHERS = ("Epilog", "A command for users", "See that it works")


def test_every_block_of_the_page_is_followed_by_a_test_here() -> None:
    titles = [title.lstrip("# ") for title, _, _ in BLOCK.findall(PAGE)]
    with_blocks = {titles[i - 1] for i in range(1, len(titles)) if not titles[i] and titles[i - 1]}
    assert with_blocks == {*WAYS, *OTHERS}


def test_each_way_reloads_modules_and_leaves_other_tasks_alone(reader: Reader) -> None:
    site_prolog(reader, "echo print hello; echo export SITE=was here")
    for heading in WAYS:
        reader.follow(heading)
        said = "hello\n" if heading == CHAINED else ""
        assert reader.run("srun", "app") == (0, f"{said}{RELOADED}App for {CPUS['n1']}\n"), heading
        assert reader.run("srun", "printenv", "A", environ={b"A": b"b"}) == (0, f"{said}b\n"), heading
        if heading == CHAINED:
            assert reader.run("srun", "printenv", "SITE") == (0, f"hello\n{RELOADED}was here\n")
            site_prolog(reader, "exit 3")
            expected = 3 if heeds_a_prologs_status() else 0
            assert reader.run("srun", "true")[0] == reader.run("srun", "true", environ={})[0] == expected


def site_prolog(reader: Reader, text: str) -> None:
    """The TaskProlog that the site has already."""
    path = Path(reader.placed("/etc/slurm/site-taskprolog"))
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_wrapper_for_this_slurm_lets_long_lines_through(reader: Reader) -> None:
    long = reader.site.at("n1", reader.site.login)
    long[b"PATH"] += b"".join(b":/nowhere/%d" % number for number in range(400))
    reader.follow("TaskProlog: a local wrapper")
    said = reader.run("srun", "true", environ=long)[1]
    # From 23.02 on Slurm itself tells that it reads them (SLURM_JOB_START_TIME).
    assert ("PATH is the longest of" in said) == (host.slurm_version() < (23, 2))
    reader.follow("Older Slurm")
    if reads_lines():
        # Not for these, the page says: what they cannot take is not given to them all the same.
        assert "PATH is the longest of" in reader.run("srun", "true", environ=long)[1]
    else:
        assert reader.run("srun", "app", environ=long) == (0, f"{RELOADED}App for {CPUS['n1']}\n")


def test_the_epilog_takes_the_jobs_files_and_drains_no_node(reader: Reader) -> None:
    reader.follow("TaskProlog: a local wrapper")
    reader.follow("Epilog")
    status, said = reader.run("srun", "/bin/sh", "-c", "ls -A /tmp; echo $SLURM_JOB_ID")
    job_id = said.splitlines()[-1]
    assert status == 0 and f".n1.{job_id}.0.prolog." in said
    reader.cluster.wait_idle()
    assert reader.site.cache_files(job_id) == []


def test_the_command_for_users_works_in_a_batch_script_as_its_page_shows(reader: Reader, desk: Desk) -> None:
    reader.follow("A command for users")
    page = (ROOT / "docs" / "batch-script.md").read_text()
    script = desk.folder / "job.sh"
    script.write_text(
        next(text for _, kind, text in BLOCK.findall(page) if kind == "sh").replace("gmx_mpi --version", "app")
    )
    environ = reader.site.at("n1", reader.site.login)
    environ[b"PATH"] += b":" + os.fsencode(reader.placed("/usr/local/bin"))
    status, said = reader.run("sbatch", "--parsable", f"--output={desk.folder}/out", script, environ=environ)
    assert status == 0
    reader.cluster.wait_job(said.strip(), "COMPLETED")
    assert (desk.folder / "out").read_text() == f"{RELOADED}App for {CPUS['n1']}\n"


def test_what_the_page_says_to_look_at_shows_what_the_guard_would_do(reader: Reader) -> None:
    reader.follow("TaskProlog: a local wrapper")
    ((_, text),) = blocks("See that it works")
    status, said = reader.run("/bin/sh", "-c", reader.placed(text))
    assert status == 0
    assert f"reload 5 modules, {LOGIN_CPU}->{CPUS['n1']}" in said
    assert re.search("^fix +nothing$", said, re.MULTILINE)
