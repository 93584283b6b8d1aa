# SPDX-License-Identifier: GPL-2.0-or-later
"""Many steps of one job at once: their caches, locks and messages do not get in each other's way."""

import pytest

from tests.slurm.site import ALL, CPUS, Desk, Site, differences

pytestmark = pytest.mark.xdist_group("slurm")

STEPS_COUNT = 40
TASKS_COUNT = 8


def test_forty_steps_of_eight_tasks_at_once_have_each_the_right_environment(site: Site, desk: Desk) -> None:
    nodes = list(CPUS)
    steps = (f"srun --overlap -w {nodes[i % len(nodes)]} -N1 -n{TASKS_COUNT} {desk.task} &" for i in range(STEPS_COUNT))
    # The first step on each node, alone, tells how often the detector is asked: by the guard, and by EESSI's module.
    alone = "\n".join(f"srun -w {node} -N1 -n1 true; echo decisions $(wc -l <{site.detector_log})" for node in nodes)
    script = f"{desk.task}\necho decisions $(wc -l <{site.detector_log})\n{alone}\n" + "\n".join(steps) + "\nwait\n"
    run = site.batch(script, ALL, "--ntasks-per-node=8", timeout_s=120)
    assert run.status == "0:0"
    counts = [int(line.split()[1]) for line in run.output.splitlines() if line.startswith("decisions")]
    a_round = counts[-1] - counts[0]
    in_the_storm = len(site.detector_log.read_text().splitlines()) - counts[-1]
    (batch,) = [task for task in desk.tasks() if b"SLURM_STEP_ID" not in task]
    tasks = [task for task in desk.tasks() if b"SLURM_STEP_ID" in task]
    assert len(tasks) == STEPS_COUNT * TASKS_COUNT
    assert len({task[b"SLURM_STEP_ID"] for task in tasks}) == STEPS_COUNT
    wrong = [differences(task, site.fresh(batch, task[b"SLURMD_NODENAME"].decode())) for task in tasks]
    assert wrong == [{}] * len(tasks)
    # One decision for each step, and one message for each step on a node that differs from the batch script's.
    assert in_the_storm == a_round * STEPS_COUNT // len(nodes)
    differing = STEPS_COUNT * (len(nodes) - 1) // len(nodes)
    assert run.output.count("eessi-arch-guard: reloaded") == 1 + len(nodes) - 1 + differing
