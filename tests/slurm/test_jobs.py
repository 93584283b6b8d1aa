# SPDX-License-Identifier: GPL-2.0-or-later
"""Every way in which Slurm starts a task: the guard has run before each, and each has its node's environment."""

import pytest

from tests.slurm import host
from tests.slurm.site import CPUS, LOGIN_CPU, Desk, Environ, Site, differences, is_batch

pytestmark = pytest.mark.xdist_group("slurm")

RELOADED = b"EESSI_ARCH_GUARD_RELOADED"


def wrong(site: Site, task: Environ, start: "Environ | None" = None) -> object:
    """Where a task that started from an environment, the login node's, differs from what its node's target needs."""
    node = task[b"SLURMD_NODENAME"].decode()
    return differences(task, site.fresh(site.login if start is None else start, node))


def test_a_batch_script_and_its_steps_of_1_2_and_64_tasks(site: Site, desk: Desk) -> None:
    counts = ((1, 1), (2, 2), (2, 64))
    steps = "\n".join(f"srun --overcommit -N{nodes} -n{tasks} {desk.task}" for nodes, tasks in counts)
    run = site.batch(f"{desk.task}\napp\n{steps}\nsrun app", "-N2", "--nodelist=n1,n2")
    assert run.status == "0:0"
    batch = [task for task in desk.tasks() if is_batch(task)]
    steps_of_tasks = [task for task in desk.tasks() if not is_batch(task)]
    assert len(batch) == 1 and wrong(site, batch[0]) == {}
    assert len(steps_of_tasks) == 67
    assert {task[b"SLURMD_NODENAME"] for task in steps_of_tasks} == {b"n1", b"n2"}
    for task in steps_of_tasks:
        assert wrong(site, task, batch[0]) == {}
    assert run.output.count(f"App for {CPUS['n1']}") == 2
    assert run.output.count(f"App for {CPUS['n2']}") == 1


def test_a_job_array(site: Site, desk: Desk) -> None:
    site.submit(str(desk.task), "--array=0-3", "--nodelist=n2")
    site.cluster.wait_for(lambda: len(desk.tasks()) == 4, "four tasks do not come")
    site.idle()
    assert sorted(task[b"SLURM_ARRAY_TASK_ID"] for task in desk.tasks()) == [b"0", b"1", b"2", b"3"]
    assert [wrong(site, task) for task in desk.tasks()] == [{}] * len(desk.tasks())


def test_a_het_job(site: Site, desk: Desk) -> None:
    run = site.run("srun", "-w", "n1,n2", "-n2", desk.task, ":", "-w", "n4", "-n3", desk.task)
    assert run.status == "0"
    tasks = desk.tasks()
    assert sorted(task[b"SLURMD_NODENAME"] for task in tasks) == [b"n1", b"n2", b"n4", b"n4", b"n4"]
    assert [wrong(site, task) for task in tasks] == [{}] * len(tasks)
    assert run.output.count("reloaded") == 3


class TestAJobWithATerminal:
    def test_srun_pty(self, site: Site, desk: Desk) -> None:
        said = site.typed(
            f"{desk.task}; app; exit\n", "srun", "--pty", "-w", "n1", "/bin/bash", "--noprofile", "--norc"
        )
        (task,) = desk.tasks()
        assert wrong(site, task) == {}
        assert f"App for {CPUS['n1']}" in said and "reloaded 5 modules on n1" in said

    def test_salloc_with_an_interactive_step(self, site: Site, desk: Desk) -> None:
        # salloc itself starts the step by `sh -c`, and Debian's sh passes no functions on.
        environ = {**site.login, b"SHELL": b"/bin/sh"}
        expected = {name: value for name, value in site.fresh(environ, "n1").items() if b"BASH_FUNC_" not in name}
        said = site.typed(f"{desk.task}; srun {desk.task}; srun app; exit\n", "salloc", "-w", "n1", environ=environ)
        assert len(desk.tasks()) == 2, said
        step, shell = sorted(desk.tasks(), key=lambda task: task[b"SLURM_STEP_ID"] != b"0")
        # The interactive step's own number (slurm.h), from 26.05 on with a sign (env.c, setup_env).
        number = b"-6" if host.slurm_version() >= (26, 5) else b"4294967290"
        assert shell[b"SLURM_STEP_ID"] == number and shell[b"SLURMD_NODENAME"] == b"n1"
        assert differences(shell, expected) == {}
        assert differences(step, expected) == {}
        assert f"App for {CPUS['n1']}" in said

    def test_salloc_with_a_command_on_the_login_node(self, site: Site, desk: Desk) -> None:
        run = site.run("salloc", "-w", "n1", "/bin/bash", "-c", f"{desk.task}; srun {desk.task}")
        assert run.status == "0"
        step = next(task for task in desk.tasks() if b"SLURM_STEP_ID" in task)
        login = next(task for task in desk.tasks() if b"SLURM_STEP_ID" not in task)
        assert RELOADED not in login
        assert wrong(site, step) == {}


class TestExport:
    def test_none_leaves_nothing_to_do(self, site: Site, desk: Desk) -> None:
        run = site.run("srun", "-w", "n1", "--export=NONE", desk.task)
        (task,) = desk.tasks()
        assert b"LOADEDMODULES" not in task and RELOADED not in task
        assert run.output == ""

    def test_none_for_a_batch_script_that_loads_modules_itself(self, site: Site, desk: Desk) -> None:
        typed = (
            f". $LMOD_PKG/init/bash; module use {site.tree.root}/init/modules; module load EESSI/2023.06 App/1.0 2>&1"
        )
        typed = typed.replace("$LMOD_PKG", site.login[b"LMOD_PKG"].decode())
        script = f"unset SLURM_EXPORT_ENV; export EESSI_MACHINE_TYPE=x86_64; {typed}; app; srun -N2 app"
        run = site.batch(f"exec bash -c '{script}'", "-N2", "--nodelist=n1,n2", "--export=NONE")
        said = [line for line in run.output.splitlines() if line.startswith("App")]
        assert said[0] == f"App for {CPUS['n1']}"
        assert sorted(said[1:]) == sorted(f"App for {CPUS[node]}" for node in ("n1", "n2"))

    def test_a_variable_beside_all_is_there_with_the_nodes_environment(self, site: Site, desk: Desk) -> None:
        site.run("srun", "-w", "n1", "--export=ALL,X=y", desk.task)
        (task,) = desk.tasks()
        assert task[b"X"] == b"y"
        assert wrong(site, task, {**site.login, b"X": b"y"}) == {}

    def test_a_variable_of_a_loaded_module_is_what_the_module_says_here(self, site: Site, desk: Desk) -> None:
        site.run("srun", "-w", "n1", "--export=ALL,EBROOTAPP=/mine", desk.task)
        (task,) = desk.tasks()
        assert task[b"EBROOTAPP"] == site.fresh(site.login, "n1")[b"EBROOTAPP"]

    def test_the_guard_is_switched_off_from_where_the_job_is_submitted(self, site: Site, desk: Desk) -> None:
        run = site.run("srun", "-w", "n1", "--export=ALL,EESSI_ARCH_GUARD=off", desk.task)
        (task,) = desk.tasks()
        assert run.output == ""
        assert differences(task, site.at("n1", {**site.login, b"EESSI_ARCH_GUARD": b"off"})) == {}


def test_a_users_own_task_prolog_comes_after_ours_and_wins(site: Site, desk: Desk) -> None:
    text = 'echo "export SEEN=$EBROOTAPP"; echo export EBROOTAPP=/mine; echo unset EESSI_ARCH_GUARD_RELOADED'
    run = site.run("srun", "-w", "n1", f"--task-prolog={site.script('users-prolog', text)}", desk.task)
    assert run.status == "0"
    (task,) = desk.tasks()
    expected = site.fresh(site.login, "n1")
    assert task.pop(b"SEEN") == expected[b"EBROOTAPP"]
    assert differences(task, {**expected, b"EBROOTAPP": b"/mine"}) == {}
    assert RELOADED not in task


def test_multi_prog(site: Site, desk: Desk) -> None:
    programs = desk.folder / "programs"
    programs.write_text(f"0-1 {desk.task}\n2 /bin/sh -c app\n")
    run = site.run("srun", "-w", "n1", "-n3", "--multi-prog", programs)
    assert run.status == "0"
    assert len(desk.tasks()) == 2 and [wrong(site, task) for task in desk.tasks()] == [{}] * len(desk.tasks())
    assert f"App for {CPUS['n1']}" in run.output


def test_a_requeued_job_is_right_on_the_node_where_it_runs_again(site: Site, desk: Desk) -> None:
    here = desk.folder / "runs-on-n1"
    text = f"{desk.task}\n[ $SLURMD_NODENAME = n2 ] && exit\ntouch {here}\nsleep 60"
    job_id = site.submit(text, "--requeue", "--nodelist=n1")
    site.cluster.wait_for(here.exists, "the job does not run")
    site.cluster.command("scontrol", "requeuehold", job_id)
    site.cluster.wait_job(job_id, "PENDING")
    # Now: of itself it would wait until its old credential has expired.
    site.cluster.command("scontrol", "update", f"JobId={job_id}", "ReqNodeList=n2", "StartTime=now")
    site.cluster.command("scontrol", "release", job_id)
    run = site.ended(job_id)
    assert run.status == "0:0"
    first, second = sorted(desk.tasks(), key=lambda task: task[b"SLURMD_NODENAME"])
    assert second[b"SLURM_RESTART_COUNT"] == b"1"
    assert wrong(site, first) == wrong(site, second) == {}
    assert f"reloaded 5 modules on n2: {LOGIN_CPU}->{CPUS['n2']}" in run.output
