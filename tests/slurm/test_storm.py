# SPDX-License-Identifier: GPL-2.0-or-later
"""Many steps of one job at once: their caches, locks and messages do not get in each other's way."""

import pytest

from tests.slurm.site import ALL, CPUS, Desk, Site, differences, is_batch

pytestmark = pytest.mark.xdist_group("slurm")

STEPS_COUNT = 40
TASKS_COUNT = 8


def test_forty_steps_of_eight_tasks_at_once_have_each_the_right_environment(site: Site, desk: Desk) -> None:
    nodes = list(CPUS)
    steps = (f"srun --overlap -w {nodes[i % len(nodes)]} -N1 -n{TASKS_COUNT} {desk.task} &" for i in range(STEPS_COUNT))
    before = site.tree.decisions()
    script = f"{desk.task}\n" + "\n".join(steps) + "\nwait\n"
    run = site.batch(script, ALL, "--ntasks-per-node=8")
    decisions = site.tree.decisions() - before
    assert run.status == "0:0"
    (batch,) = [task for task in desk.tasks() if is_batch(task)]
    tasks = [task for task in desk.tasks() if not is_batch(task)]
    assert len(tasks) == STEPS_COUNT * TASKS_COUNT
    assert len({task[b"SLURM_STEP_ID"] for task in tasks}) == STEPS_COUNT
    wrong = [differences(task, site.fresh(batch, task[b"SLURMD_NODENAME"].decode())) for task in tasks]
    assert wrong == [{}] * len(tasks)
    # The batch script's own, and one for each step; a message for each on a node that differs from the batch script's.
    assert decisions == 1 + STEPS_COUNT
    assert run.output.count("eessi-arch-guard: reloaded") == 1 + STEPS_COUNT * (len(nodes) - 1) // len(nodes)
