# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever fails, the task runs, with the environment it came with and a marker; and nothing of the guard stays behind.

The .pyz is the TaskProlog itself here.
"""

import os
import signal
from collections.abc import Callable

import pytest

from guard.base.faults import SENTENCES
from tests.eessi import tree as eessi
from tests.slurm.host import is_running
from tests.slurm.site import CPUS, LOGIN_CPU, USER, Desk, Environ, Site, differences, is_batch

pytestmark = pytest.mark.xdist_group("slurm")

FAILED = b"EESSI_ARCH_GUARD_FAILED"


@pytest.fixture(autouse=True)
def _guard_itself(site: Site) -> None:
    site.prolog(site.pyz)


def no_software_dir(site: Site, desk: Desk) -> Environ:
    return {b"EESSI_PREFIX": b"/nowhere"}


def archdetect_failed(site: Site, desk: Desk) -> Environ:
    return {b"EESSI_PROC_CPUINFO": b"/dev/null"}


def unsafe_module_name(site: Site, desk: Desk) -> Environ:
    return {b"LOADEDMODULES": site.login[b"LOADEDMODULES"] + b":$(id)"}


def unsafe_environment(site: Site, desk: Desk) -> Environ:
    lua = """execute { cmd = "export ODD=$'one\\\\nexport TWO=2'", modeA = { "load" } }\n"""
    for cpu in CPUS.values():
        site.tree.add(cpu, "Odd/1.0", lua="" if cpu == LOGIN_CPU else lua)
    return site.at("n1", site.logged_in(site.tree, (eessi.EESSI, "Odd/1.0")))


def lmod_unavailable(site: Site, desk: Desk) -> Environ:
    return {b"LMOD_CMD": b"/nowhere/lmod"}


def restore_failed(site: Site, desk: Desk) -> Environ:
    return {b"LMOD_CMD": os.fsencode(site.script("not-lmod", "echo exit 3"))}


def modules_missing(site: Site, desk: Desk) -> Environ:
    site.tree.add(LOGIN_CPU, "OnlyThere/1.0")
    return site.at("n1", site.logged_in(site.tree, (eessi.EESSI, "App/1.0", "OnlyThere/1.0")))


def timeout(site: Site, desk: Desk) -> Environ:
    return {**site.hanging(desk), b"EESSI_ARCH_GUARD_TIMEOUT": b"1"}


@pytest.mark.parametrize(
    "case",
    [
        no_software_dir,
        archdetect_failed,
        unsafe_module_name,
        unsafe_environment,
        lmod_unavailable,
        restore_failed,
        modules_missing,
        timeout,
    ],
)
def test_a_failure_leaves_the_task_with_its_environment(
    site: Site, desk: Desk, case: "Callable[[Site, Desk], Environ]"
) -> None:
    environ = {**site.at("n1", site.login), **case(site, desk)}
    run = site.run("srun", "-w", "n1", "-n3", "/bin/bash", "-c", f"{desk.task}; exit 7", environ=environ)
    code = case.__name__.replace("_", "-")
    # 7: the program has run, and its status is the step's.
    assert run.status == "7"
    token = CPUS["n1"] if code == "modules-missing" else code
    assert len(desk.tasks()) == 3
    for task in desk.tasks():
        assert task.pop(FAILED).decode() == f"{LOGIN_CPU}->{token}"
        assert differences(task, environ) == {}
    assert run.output.startswith(f"eessi-arch-guard: NOT reloaded on n1: {LOGIN_CPU}->{token}: {SENTENCES[code]}")
    assert run.output.count("\n") == 1


def test_a_guard_that_is_told_to_stop_leaves_the_task_with_its_environment(site: Site, desk: Desk) -> None:
    environ = site.at("n1", {**site.login, **site.hanging(desk)})
    command = ("srun", "-w", "n1", "/bin/bash", "-c", f"{desk.task}; exit 7")
    with site.cluster.popen_as(USER, *command, environ=environ) as process:
        detector, guard = site.hung(desk)
        os.kill(guard, signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 7
    (task,) = desk.tasks()
    assert task.pop(FAILED).decode() == f"{LOGIN_CPU}->terminated"
    assert differences(task, environ) == {}
    assert SENTENCES["terminated"] in output.decode()
    assert not is_running(detector) and not is_running(guard)


def test_the_next_step_decides_again_after_a_passing_failure(site: Site, desk: Desk) -> None:
    site.prolog(site.by_node)
    init = site.hanging(desk)
    passed = f"export EESSI_INIT_PREFIX={site.tree.init}; export EESSI_ARCH_GUARD_TIMEOUT=600"
    script = f"{desk.task}; {passed}; srun app; srun {desk.task}"
    run = site.batch(script, "-w", "n1", environ={**site.login, **init, b"EESSI_ARCH_GUARD_TIMEOUT": b"1"})
    step, batch = sorted(desk.tasks(), key=is_batch)
    assert batch[FAILED].decode() == f"{LOGIN_CPU}->timeout"
    assert FAILED not in step  # a reload that succeeds takes it away
    assert f"App for {CPUS['n1']}" in run.output


@pytest.mark.parametrize("kind", ["batch", "step"])
def test_a_job_that_is_cancelled_while_the_guard_runs_ends_without_a_trace(site: Site, desk: Desk, kind: str) -> None:
    environ = site.at("n1", {**site.login, **site.hanging(desk), b"EESSI_ARCH_GUARD_TIMEOUT": b"600"})
    environ[b"EESSI_ARCH_GUARD"] = b"on" if kind == "batch" else b"off"
    job_id = site.submit("EESSI_ARCH_GUARD=on srun true", "-w", "n1", environ=environ)
    detector, guard = site.hung(desk)
    site.cluster.command("scancel", job_id)
    site.cluster.wait_job(job_id, "CANCELLED")
    site.idle()
    assert not is_running(detector) and not is_running(guard)
    assert site.cache_files(job_id) == []


class TestAProcessThatIsLeftBehind:
    """Slurm reads a TaskProlog's output until nobody has the pipe open any more (run_command.c)."""

    def test_slurm_waits_for_one_that_holds_the_pipe(self, site: Site, desk: Desk) -> None:
        ended = desk.folder / "ended"
        site.prolog(site.script("leaves-a-child", f"setsid sh -c 'sleep 1; touch {ended}' &"))
        run = site.run("srun", "-w", "n1", "ls", ended)
        assert run.status == "0"

    def test_a_detector_that_daemonises_holds_up_nothing(self, site: Site, desk: Desk) -> None:
        pid, released = desk.folder / "pid", desk.folder / "released"
        # The daemon has all that the detector has open, and goes once the task has run: a task that waited would never.
        wait = f"echo $$ >{pid}; until [ -e {released} ]; do sleep 0.1; done"
        real = site.tree.init / "eessi_archdetect.sh"
        text = f'[ -e {pid} ] || setsid sh -c "{wait}" &\nexec /bin/bash {real} "$@"'.replace("$$", "\\$\\$")
        init = site.detector(desk, text)
        site.prolog(site.by_node)
        command = ("srun", "-w", "n1", "/bin/bash", "-c", f"{desk.task}; app")
        run = site.run(*command, environ={**site.login, **init})
        site.cluster.wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"), "no daemon")
        daemon = int(pid.read_text())
        try:
            assert is_running(daemon)
        finally:
            released.touch()
        assert run.output.splitlines()[-1] == f"App for {CPUS['n1']}"
