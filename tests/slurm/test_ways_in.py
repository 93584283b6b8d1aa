# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways in which a site or a user starts the guard: as the TaskProlog itself, by the shipped wrapper, chained with a
TaskProlog of the site's own, and in a batch script by eval.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.eessi import tree as eessi
from tests.slurm.host import heeds_a_prologs_status
from tests.slurm.site import CPUS, LOGIN_CPU, Desk, Environ, Site, differences

pytestmark = pytest.mark.xdist_group("slurm")

RELOADED = b"EESSI_ARCH_GUARD_RELOADED"
FAILED = b"EESSI_ARCH_GUARD_FAILED"
ON_N1 = ("srun", "-w", "n1")
PLAIN = {b"PLAIN": b"no EESSI here"}


@pytest.fixture
def start(site: Site) -> Environ:
    """What a task on n1 comes with, for a TaskProlog that does not say itself what node it is on."""
    return site.at("n1", site.login)


class TestThePyzItself:
    def test_it_reloads(self, site: Site, desk: Desk, start: Environ) -> None:
        site.prolog(site.pyz)
        run = site.run(*ON_N1, "-n2", desk.task, environ=start)
        assert run.status == "0" and len(desk.tasks()) == 2
        for task in desk.tasks():
            assert differences(task, site.fresh(start, "n1")) == {}
        assert run.output.count("eessi-arch-guard: reloaded") == 1

    def test_it_says_and_does_nothing_without_eessi(self, site: Site, desk: Desk) -> None:
        site.prolog(site.pyz)
        run = site.run(*ON_N1, desk.task, environ=PLAIN)
        assert (run.status, run.output) == ("0", "")
        assert desk.tasks()[0][b"PLAIN"] == PLAIN[b"PLAIN"]

    def test_an_entry_without_a_name_is_passed_over(self, site: Site, desk: Desk, start: Environ) -> None:
        # What Slurm makes of this line is the entry `=x=x`, which Python hands to no child; the sh header drops it.
        site.prolog(site.script("nameless", "echo export =x"))
        run = site.run(*ON_N1, f"--task-prolog={site.pyz}", desk.task, environ=start)
        (task,) = desk.tasks()
        assert task.pop(b"") == b"x=x"
        assert differences(task, site.fresh(start, "n1")) == {}
        assert "reloaded 5 modules" in run.output

    def test_verbose_says_why_it_does_nothing(self, site: Site, start: Environ) -> None:
        site.prolog(site.pyz)
        run = site.run(*ON_N1, "true", environ={**PLAIN, b"EESSI_ARCH_GUARD_VERBOSE": b"1"})
        assert run.output == "eessi-arch-guard: nothing to do, EESSI is not loaded\n"
        matching = {**site.at("n3", site.login), b"EESSI_ARCH_GUARD_VERBOSE": b"1"}
        run = site.run("srun", "-w", "n3", "-n2", "true", environ=matching)
        assert run.output == "eessi-arch-guard: nothing to do, target already matches this node\n"


def whole(site: Site, path: Path) -> None:
    shutil.copy(site.pyz, path)


def not_executable(site: Site, path: Path) -> None:
    shutil.copyfile(site.pyz, path)


def missing(site: Site, path: Path) -> None:
    pass


def unreadable(site: Site, path: Path) -> None:
    shutil.copyfile(site.pyz, path)
    path.chmod(0)


def broken_link(site: Site, path: Path) -> None:
    path.symlink_to("nowhere")


def folder_that_is_not_there(site: Site, path: Path) -> None:
    path.parent.rmdir()


def empty(site: Site, path: Path) -> None:
    path.touch()


def cut_off(site: Site, path: Path) -> None:
    path.write_bytes(site.pyz.read_bytes()[:100_000])


class TestTheShippedWrapper:
    @pytest.fixture
    def wrapper(self, site: Site) -> Path:
        """The wrapper, copied to a local folder, as a site does."""
        path = site.folder / "taskprolog.sh"
        shutil.copy(ROOT / "build" / "taskprolog.sh", path)
        site.prolog(path)
        return path

    def with_site_prolog(self, site: Site, wrapper: Path, text: str) -> None:
        """Gives the wrapper a TaskProlog of the site's own, in a script of one line: slurm.conf takes no arguments."""
        own = site.script("site-prolog", text)
        site.prolog(site.script("taskprolog-chain", f"exec {wrapper} --chain {own}"))

    def published(self, desk: Desk, site: Site, make: "Callable[[Site, Path], None]") -> Environ:
        """The file that stands for the one on CVMFS, made by make."""
        (desk.folder / "cvmfs").mkdir()
        path = desk.folder / "cvmfs" / "eessi-arch-guard.pyz"
        make(site, path)
        return {b"EESSI_ARCH_GUARD_FILE": os.fsencode(path)}

    @pytest.mark.parametrize("make", [whole, not_executable])
    def test_it_starts_the_guard(
        self, site: Site, desk: Desk, start: Environ, wrapper: Path, make: "Callable[[Site, Path], None]"
    ) -> None:
        environ = {**start, **self.published(desk, site, make)}
        run = site.run(*ON_N1, "-n2", desk.task, environ=environ)
        assert run.status == "0" and len(desk.tasks()) == 2
        for task in desk.tasks():
            assert differences(task, site.fresh(environ, "n1")) == {}
        assert run.output == f"eessi-arch-guard: reloaded 5 modules on n1: {LOGIN_CPU}->{CPUS['n1']}\n"

    @pytest.mark.parametrize("make", [missing, unreadable, broken_link, folder_that_is_not_there, empty, cut_off])
    def test_the_task_runs_where_there_is_no_guard(
        self, site: Site, desk: Desk, start: Environ, wrapper: Path, make: "Callable[[Site, Path], None]"
    ) -> None:
        environ = {**start, **self.published(desk, site, make)}
        run = site.run(*ON_N1, "-n2", "/bin/bash", "-c", f"{desk.task}; exit 7", environ=environ)
        assert run.status == "7" and len(desk.tasks()) == 2
        for task in desk.tasks():
            assert differences(task, environ) == {}
        path = environ[b"EESSI_ARCH_GUARD_FILE"].decode()
        if make is cut_off:
            # Python has met it, and tells how it ended.
            assert re.fullmatch("eessi-arch-guard: skipped, .+ ended with status [0-9]+\n", run.output)
        else:
            assert run.output == f"eessi-arch-guard: skipped, {path} cannot be read on this node\n"

    @pytest.mark.parametrize("make", [whole, missing])
    def test_it_says_nothing_without_eessi(
        self, site: Site, desk: Desk, wrapper: Path, make: "Callable[[Site, Path], None]"
    ) -> None:
        run = site.run(*ON_N1, desk.task, environ={**PLAIN, **self.published(desk, site, make)})
        assert (run.status, run.output) == ("0", "")
        assert desk.tasks()[0][b"PLAIN"] == PLAIN[b"PLAIN"]

    def test_verbose_says_why_it_does_nothing(self, site: Site, desk: Desk, wrapper: Path) -> None:
        environ = {**PLAIN, **self.published(desk, site, whole), b"EESSI_ARCH_GUARD_VERBOSE": b"1"}
        run = site.run(*ON_N1, "-n2", "true", environ=environ)
        assert run.output == "eessi-arch-guard: nothing to do, EESSI is not loaded\n"

    @pytest.mark.parametrize("make", [whole, missing])
    @pytest.mark.parametrize("has_eessi", [True, False])
    def test_a_site_prolog_that_is_not_there_costs_no_task(
        self,
        site: Site,
        desk: Desk,
        start: Environ,
        wrapper: Path,
        make: "Callable[[Site, Path], None]",
        has_eessi: bool,
    ) -> None:
        self.with_site_prolog(site, wrapper, "")
        (site.folder / "site-prolog").unlink()
        environ = {**(start if has_eessi else PLAIN), **self.published(desk, site, make)}
        run = site.run(*ON_N1, desk.task, environ=environ)
        assert run.status == "0" and len(desk.tasks()) == 1
        assert (
            f"skipped, {'chained prolog ' if has_eessi and make is whole else ''}{site.folder}/site-prolog"
            in run.output
        )

    @pytest.mark.parametrize("make", [whole, missing, unreadable])
    @pytest.mark.parametrize("has_eessi", [True, False])
    def test_the_sites_own_prolog_is_run_in_any_case(
        self,
        site: Site,
        desk: Desk,
        start: Environ,
        wrapper: Path,
        make: "Callable[[Site, Path], None]",
        has_eessi: bool,
    ) -> None:
        self.with_site_prolog(site, wrapper, "echo export SITE=was here; echo print hello; echo unset GONE")
        environ = {**(start if has_eessi else PLAIN), **self.published(desk, site, make), b"GONE": b"not yet"}
        run = site.run(*ON_N1, desk.task, environ=environ)
        (task,) = desk.tasks()
        assert task[b"SITE"] == b"was here" and b"GONE" not in task
        assert run.output.count("hello\n") == 1
        assert (RELOADED in task) == (has_eessi and make is whole)
        assert ("cannot be read" in run.output) == (has_eessi and make is not whole)

    @pytest.mark.parametrize("make", [whole, missing])
    @pytest.mark.parametrize("has_eessi", [True, False])
    def test_the_sites_own_prolog_decides_whether_a_task_may_run(
        self,
        site: Site,
        desk: Desk,
        start: Environ,
        wrapper: Path,
        make: "Callable[[Site, Path], None]",
        has_eessi: bool,
    ) -> None:
        self.with_site_prolog(site, wrapper, "echo print no licence left; exit 3")
        environ = {**(start if has_eessi else PLAIN), **self.published(desk, site, make)}
        run = site.run(*ON_N1, desk.task, environ=environ)
        assert (run.status, len(desk.tasks())) == (("3", 0) if heeds_a_prologs_status() else ("0", 1))
        assert "no licence left" in run.output


class TestChainedWithAPrologOfTheSites:
    def chained(self, site: Site, text: str) -> None:
        own = site.script("site-prolog", text)
        site.prolog(site.script("chain", f'exec {site.pyz} --chain {own} "$@"'))

    def test_what_it_exports_unsets_and_prints_is_there_beside_the_reload(
        self, site: Site, desk: Desk, start: Environ
    ) -> None:
        text = "echo export SCRATCH=/scratch/$SLURM_JOB_ID; echo unset GONE; echo print hello; echo noise >&2"
        self.chained(site, text)
        run = site.run(*ON_N1, "-n2", desk.task, environ={**start, b"GONE": b"not yet"})
        for task in desk.tasks():
            scratch = b"/scratch/" + task[b"SLURM_JOB_ID"]
            assert differences(task, {**site.fresh(start, "n1"), b"SCRATCH": scratch}) == {}
        assert len(desk.tasks()) == 2
        assert run.output.count("hello") == 2 and run.output.count("reloaded") == 1 and "noise" not in run.output

    def test_the_guard_sees_what_it_exported(self, site: Site, desk: Desk, start: Environ) -> None:
        self.chained(site, "echo export EESSI_ARCH_GUARD=off")
        run = site.run(*ON_N1, desk.task, environ=start)
        assert differences(desk.tasks()[0], {**start, b"EESSI_ARCH_GUARD": b"off"}) == {}
        assert run.output == ""

    def test_its_failure_is_the_tasks(self, site: Site, desk: Desk, start: Environ) -> None:
        self.chained(site, "echo print no licence left; exit 3")
        run = site.run(*ON_N1, desk.task, environ=start)
        assert (run.status, len(desk.tasks())) == (("3", 0) if heeds_a_prologs_status() else ("0", 1))
        assert "no licence left" in run.output

    def test_one_that_is_not_there_costs_no_task(self, site: Site, desk: Desk, start: Environ) -> None:
        site.prolog(site.script("chain", f"exec {site.pyz} --chain /nowhere/prolog"))
        run = site.run(*ON_N1, desk.task, environ=start)
        assert run.status == "0" and len(desk.tasks()) == 1, run

    def test_it_is_run_without_eessi(self, site: Site, desk: Desk) -> None:
        self.chained(site, "echo export SITE=was here")
        site.run(*ON_N1, desk.task, environ=PLAIN)
        assert desk.tasks()[0][b"SITE"] == b"was here"

    def test_a_process_that_it_leaves_behind_holds_up_nothing(self, site: Site, desk: Desk, start: Environ) -> None:
        released = desk.folder / "released"
        self.chained(site, f"echo export SITE=was here\nsetsid sh -c 'until [ -e {released} ]; do sleep 0.1; done' &")
        run = site.run(*ON_N1, desk.task, environ=start)
        released.touch()
        assert run.status == "0"
        assert desk.tasks()[0][b"SITE"] == b"was here" and RELOADED in desk.tasks()[0]


class TestEvalInABatchScript:
    def eval(self, site: Site) -> str:
        return f'eval "$({site.pyz} --shell)"'

    def test_it_carries_what_no_prolog_can(self, site: Site, desk: Desk) -> None:
        lua = """execute { cmd = "export ODD=$'one\\\\nexport TWO=2'", modeA = { "load" } }\n"""
        for cpu in CPUS.values():
            site.tree.add(cpu, "Lines/1.0", lua="" if cpu == LOGIN_CPU else lua)
        environ = site.logged_in(site.tree, (eessi.EESSI, "App/1.0", "Lines/1.0"))
        script = f"{desk.task}\n{self.eval(site)}\n{desk.task}\napp\nsrun app"
        run = site.batch(script, "-w", "n1", environ=environ)
        before, after = sorted(desk.tasks(), key=lambda task: b"ODD" in task)
        assert before[FAILED].decode() == f"{LOGIN_CPU}->unsafe-environment"
        assert FAILED not in after and after[b"ODD"] == b"one\nexport TWO=2"
        assert differences(after, site.fresh({k: v for k, v in before.items() if k != FAILED}, "n1")) == {}
        assert run.output.splitlines().count(f"App for {CPUS['n1']}") == 2
        assert "eessi-arch-guard: reloaded 6 modules on n1" in run.output

    def test_it_has_nothing_to_do_where_the_prolog_has_done_it(self, site: Site, desk: Desk) -> None:
        script = f"{desk.task}\n{self.eval(site)}\n{desk.task}\nEESSI_ARCH_GUARD_VERBOSE=1 {site.pyz} --shell"
        run = site.batch(script, "-w", "n1")
        first, second = desk.tasks()
        assert differences(first, second) == {} and first[RELOADED] == second[RELOADED]
        assert run.output.count("eessi-arch-guard: reloaded") == 1
        assert run.output.endswith("eessi-arch-guard: nothing to do, target already matches this node\n")

    def test_it_reloads_where_there_is_no_task_prolog(self, site: Site, desk: Desk, start: Environ) -> None:
        site.prolog("/bin/true")
        run = site.batch(f"{self.eval(site)}\n{desk.task}", "-w", "n1", environ=start)
        (task,) = desk.tasks()
        assert differences(task, site.fresh(start, "n1")) == {}
        assert run.output.splitlines() == [f"eessi-arch-guard: reloaded 5 modules on n1: {LOGIN_CPU}->{CPUS['n1']}"]
