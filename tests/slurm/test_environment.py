# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task has when the guard was its TaskProlog: what its user would have who typed purge and load on that node."""

import os

import pytest

from tests.eessi import tree as eessi
from tests.slurm import host
from tests.slurm.site import ALL, CPUS, LOGIN_CPU, MATCHING, OTHERS, Desk, Run, Site, differences

pytestmark = pytest.mark.xdist_group("slurm")

RELOADED = b"EESSI_ARCH_GUARD_RELOADED"
ON_N1 = ("srun", "-w", "n1")
FAILED = b"EESSI_ARCH_GUARD_FAILED"
# Slurm sets it from 23.02 on; the guard sees by it that lines of any length are read.
OLDER = "unset SLURM_JOB_START_TIME\n"


def test_each_task_of_a_step_over_all_kinds_of_nodes_has_its_nodes_environment(site: Site, desk: Desk) -> None:
    run = site.run("srun", ALL, "--ntasks-per-node=2", desk.task)
    assert run.status == "0", run
    tasks = desk.tasks()
    assert sorted(task[b"SLURMD_NODENAME"].decode() for task in tasks) == sorted([*CPUS, *CPUS])
    for task in tasks:
        node = task[b"SLURMD_NODENAME"].decode()
        if node == MATCHING:
            assert differences(task, site.at(node, site.login)) == {}
            assert RELOADED not in task
        else:
            assert differences(task, site.fresh(site.login, node)) == {}
            assert task[RELOADED].decode() == f"{LOGIN_CPU}->{CPUS[node]}"
        assert FAILED not in task


def test_the_message_shows_once_for_each_node_that_differs_and_not_for_one_that_matches(site: Site, desk: Desk) -> None:
    run = site.run("srun", ALL, "--ntasks-per-node=2", "true")
    lines = sorted(run.output.splitlines())
    assert lines == sorted(
        f"eessi-arch-guard: reloaded 5 modules on {node}: {LOGIN_CPU}->{CPUS[node]}" for node in OTHERS
    )


def test_a_program_without_a_path_is_the_one_of_the_nodes_target(site: Site) -> None:
    run = site.run("srun", ALL, "--ntasks-per-node=1", "--label", "app")
    said = sorted(line.partition(": ")[2] for line in run.output.splitlines() if "App" in line)
    assert said == sorted(f"App for {cpu}" for cpu in CPUS.values())


def test_module_list_and_a_further_load_work_in_the_task(site: Site) -> None:
    for cpu in CPUS.values():
        site.tree.add(cpu, "Later/2.0", ["zlib/1.2.13-GCCcore-12.3.0"])
    typed = 'module list 2>&1; module load Later/2.0; later; echo "$LOADEDMODULES"; module list'
    run = site.run("srun", "-w", "n1", "/bin/bash", "--noprofile", "-c", typed)
    assert run.status == "0"
    assert f"Later for {CPUS['n1']}" in run.output
    assert run.output.splitlines()[-1].endswith("libstdc++/12.3.0:App/1.0:Later/2.0")
    for name in ("EESSI/2023.06", "App/1.0", "zlib/1.2.13-GCCcore-12.3.0"):
        assert name in run.output and name in run.error
    assert "nactive" not in run.output + run.error  # Lmod's "Inactive Modules"


def test_a_user_who_types_module_load_and_srun_in_one_shell_gets_the_nodes_software(site: Site) -> None:
    typed = f". {eessi.lmod_init()}; module use {site.tree.root}/init/modules; module load EESSI/2023.06 App/1.0; app; "
    environ = {name: site.login[name] for name in (b"HOME", b"USER", b"EESSI_PROC_CPUINFO", b"EESSI_MACHINE_TYPE")}
    run = site.run("/bin/bash", "--noprofile", "-c", typed + "srun -w n2 app", environ=environ)
    assert [line for line in run.output.splitlines() if line.startswith("App")] == [
        f"App for {LOGIN_CPU}",
        f"App for {CPUS['n2']}",
    ]


def test_tmpdir_is_the_folder_that_slurm_made(site: Site, desk: Desk) -> None:
    for cpu in CPUS.values():
        site.tree.add(cpu, "Scratch/1.0", lua="" if cpu == LOGIN_CPU else 'setenv("TMPDIR", "/elsewhere")\n')
    folder = desk.folder / "job-tmp"
    environ = site.logged_in(site.tree, (eessi.EESSI, "App/1.0", "Scratch/1.0"), {b"TMPDIR": os.fsencode(folder)})
    run = site.run("srun", "-w", "n1", "sh", "-c", f"{desk.task}; ls -ld $TMPDIR", environ=environ)
    assert desk.tasks()[0][b"TMPDIR"] == os.fsencode(folder)
    assert RELOADED in desk.tasks()[0]
    assert run.output.splitlines()[-1].startswith("drwx------")


def test_an_environment_that_is_not_utf_8_passes_through(site: Site, desk: Desk) -> None:
    environ = {**site.login, b"LATIN": b"caf\xe9 $HOME `id` 'q' \"q\" \\ \t end "}
    environ[b"PATH"] += b":/opt/caf\xe9"
    site.run("srun", "-w", "n1", desk.task, environ=environ)
    (task,) = desk.tasks()
    assert RELOADED in task
    assert differences(task, site.fresh(environ, "n1")) == {}


@pytest.mark.parametrize("there", ["login node", "compute node"])
def test_an_accelerator_on_one_side_only(site: Site, desk: Desk, there: str) -> None:
    site.prolog(site.pyz)
    tree = site.miniature(f"accelerator-{there[:5]}")
    tree.add(f"{LOGIN_CPU}/{eessi.CC80}", "CUDA/12.1.1")
    tree.node(LOGIN_CPU, "8.0" if there == "login node" else None)
    environ = site.logged_in(tree)
    tree.node(LOGIN_CPU, None if there == "login node" else "8.9")
    run = site.run(*ON_N1, desk.task, environ=environ)
    (task,) = desk.tasks()
    assert differences(task, tree.fresh(environ)) == {}
    sides = [f"{LOGIN_CPU} no accel", f"{LOGIN_CPU} {eessi.CC80}"]
    if there == "login node":
        sides.reverse()
        assert b"EESSI_ACCELERATOR_TARGET" in environ and b"EESSI_ACCELERATOR_TARGET" not in task
    else:
        assert task[b"EESSI_ACCELERATOR_TARGET"].decode() == eessi.CC80
    assert task[RELOADED].decode() == "->".join(sides)
    assert run.output == f"eessi-arch-guard: reloaded 5 modules on n1: {'->'.join(sides)}\n"


def test_sixty_four_tasks_make_one_decision(site: Site, desk: Desk) -> None:
    def decisions(node: str, count: int) -> int:
        before = site.tree.decisions()
        run = site.run("srun", "-w", node, f"-n{count}", "--overcommit", desk.task)
        assert run.status == "0"
        return site.tree.decisions() - before

    assert [decisions(MATCHING, 64), decisions("n1", 64)] == [1, 1]
    assert len(desk.tasks()) == 128


def test_no_cache_file_survives_clean_in_the_epilog(site: Site, desk: Desk) -> None:
    seen = desk.folder / "seen"
    look = f"srun -N4 ls -A /tmp >>{seen}; ls -A /tmp >>{seen}"
    run = site.batch(f"srun -n8 true; {look}", ALL)
    step = "-5" if host.slurm_version() >= (26, 5) else "batch"  # SLURM_STEP_ID in a batch script (env.c, setup_env)
    assert f".{run.job_id}.{step}.prolog." in seen.read_text()
    site.idle()
    assert site.cache_files(run.job_id) == []


def test_no_cache_file_of_a_het_job_survives_clean_in_the_epilog(site: Site, desk: Desk) -> None:
    seen = desk.folder / "seen"
    typed = f"srun --het-group=0,1 true; ls -A /tmp >>{seen}; echo $SLURM_JOB_ID"
    run = site.run("salloc", "-w", "n1", ":", "-w", "n2", "sh", "-c", typed)
    assert run.status == "0", run
    assert ".n1." in seen.read_text() and ".n2." in seen.read_text()
    site.idle()
    left = site.cache_files(run.output.split()[-1])
    if host.slurm_version() >= (21, 8):
        assert left == []
    else:
        # There an Epilog is told no SLURM_HET_JOB_ID (req.c, _rpc_terminate_job), which is in these names.
        assert left and all(".n2." in name for name in left)


def test_no_cache_file_in_tmpdir_survives_clean_in_the_task_epilog(site: Site, desk: Desk) -> None:
    folder = desk.folder / "tmpdir"
    folder.mkdir()
    folder.chmod(0o1777)
    seen = desk.folder / "seen"
    epilog = site.script("task-epilog", f"exec {site.pyz} --clean")
    environ = {**site.login, b"TMPDIR": os.fsencode(folder)}
    option = f"--task-epilog={epilog}"
    site.run("srun", "-w", "n1", "-n2", option, "sh", "-c", f"ls -A {folder} >>{seen}", environ=environ)
    assert ".prolog." in seen.read_text()
    assert os.listdir(folder) == []


@pytest.fixture(scope="module")
def large(shared_site: Site) -> "dict[bytes, bytes]":
    """120 modules, values of over 12 kB, as OpenFOAM's or Bioconductor's. Slurm up to 22.05.0 cannot carry them."""
    names = [f"Library{number:03d}-with-a-long-name/1.2.{number}-GCCcore-12.3.0" for number in range(116)]
    for cpu in CPUS.values():
        for name in names:
            shared_site.tree.add(cpu, name)
    environ = shared_site.logged_in(shared_site.tree, (eessi.EESSI, "App/1.0", *names))
    assert environ[b"LOADEDMODULES"].count(b":") == 120
    assert max(map(len, environ.values())) > 12000
    return environ


class TestAnEnvironmentOf120Modules:
    def test_it_is_refused_whole_under_the_rule_of_4094_bytes(
        self, site: Site, desk: Desk, large: "dict[bytes, bytes]"
    ) -> None:
        site.prolog(site.wrapper("older", f"{OLDER}exec {site.pyz}"))
        run = site.run("srun", "-w", "n1", desk.task, environ=large)
        self.is_refused(site, desk, large, run)
        expected = site.fresh(large, "n1")
        changed = [name for name, value in expected.items() if large.get(name) != value]
        longest = max(changed, key=lambda name: len(name) + len(expected[name]))
        assert f"({longest.decode()} is the longest of" in run.output
        assert "--prolog-line-max" in run.output and 'eval "$(eessi-arch-guard --shell)"' in run.output

    def is_refused(self, site: Site, desk: Desk, large: "dict[bytes, bytes]", run: Run) -> None:
        (task,) = desk.tasks()
        assert task.pop(FAILED).decode() == f"{LOGIN_CPU}->unsafe-environment"
        assert differences(task, site.at("n1", large)) == {}
        assert run.output.count("\n") == 1

    @pytest.mark.parametrize("how", ["option", "variable"])
    def test_it_goes_through_where_slurm_is_known_to_read_long_lines_and_does(
        self, site: Site, desk: Desk, large: "dict[bytes, bytes]", how: str
    ) -> None:
        environ = large
        if how == "option":
            site.prolog(site.wrapper("long", f"{OLDER}exec {site.pyz} --prolog-line-max 131072"))
        elif host.slurm_version() < (23, 2):
            environ = {**large, b"SLURM_JOB_START_TIME": b"1"}
        run = site.run("srun", "-w", "n1", desk.task, environ=environ)
        if host.reads_lines():
            self.is_refused(site, desk, environ, run)
            return
        (task,) = desk.tasks()
        assert differences(task, site.fresh(large, "n1")) == {}
        assert "reloaded 121 modules" in run.output
