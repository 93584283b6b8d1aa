# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task has when the guard was its TaskProlog: what its user would have who typed purge and load on that node."""

import pytest

from tests.slurm.site import CPUS, LOGIN_CPU, MATCHING, OTHERS, Desk, Site, differences

pytestmark = pytest.mark.xdist_group("slurm")


def test_each_task_of_a_step_over_all_kinds_of_nodes_has_its_nodes_environment(site: Site, desk: Desk) -> None:
    run = site.run("srun", "-N4", "--ntasks-per-node=2", desk.task)
    assert run.status == "0", run
    tasks = desk.tasks()
    assert sorted(task[b"SLURMD_NODENAME"].decode() for task in tasks) == sorted([*CPUS, *CPUS])
    for task in tasks:
        node = task[b"SLURMD_NODENAME"].decode()
        expected = site.login if node == MATCHING else site.fresh(site.login, node)
        found = differences(task, expected)
        found.pop(b"EESSI_PROC_CPUINFO", None)
        assert found == {}
        if node != MATCHING:
            assert task[b"EESSI_ARCH_GUARD_RELOADED"].decode() == f"{LOGIN_CPU}->{CPUS[node]}"
    for node in OTHERS:
        assert run.output.count(f"reloaded 5 modules on {node}:") == 1
    assert run.output.count("eessi-arch-guard") == 3
