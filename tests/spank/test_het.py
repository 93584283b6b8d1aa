# SPDX-License-Identifier: GPL-2.0-or-later
"""Heterogeneous jobs and steps: each component has nodes of its own, and all tasks have numbers of their own."""

import pytest

from tests.spank.site import Ran, Relayed, kinds, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

NODES = ("n1", "n2")
_SHORT = "echo $SLURM_PROCID; echo err $SLURM_PROCID >&2"
# Begins when a short component has ended, in the middle of a line, and is two seconds more.
_LATE = "sleep 2; printf 'half '; sleep 0.5; seq -f $SLURM_PROCID.%0200.0f 2000; sleep 1.5; " + _SHORT
# What each task writes, by its place in the whole step: one task in the first component, two in the second.
_LATE_LINES = "half " + "{task}." + "\n{task}.".join(f"{number:0200}" for number in range(1, 2001)) + "\n{task}\n"
_COMPONENTS = {
    "of one length": ((_SHORT, "{task}\n"), (_SHORT, "{task}\n")),
    "the second late": ((_SHORT, "{task}\n"), (_LATE, _LATE_LINES)),
    "the first late": ((_LATE, _LATE_LINES), (_SHORT, "{task}\n")),
}


def _check(ran: Ran, relayed: Relayed, jobs: "tuple[str, str]", texts: "tuple[str, str]") -> None:
    """The local output is the step's, with the labels of its tasks; each node's records hold what ran there."""
    whole = ((jobs[0], NODES[0], 0, texts[0]), (jobs[1], NODES[1], 1, texts[1]), (jobs[1], NODES[1], 2, texts[1]))
    lines = ran.output.splitlines(keepends=True)
    for job_id, node, task, text in whole:
        said = text.format(task=task).encode()
        label = b"%d: " % task
        assert b"".join(line[len(label) :] for line in lines if line.startswith(label)) == said
        records = relayed.records(job_id, node)
        assert output(records, task=task, step_id="0") == said
        assert output(records, "stderr", task, "0") == b"err %d\n" % task
        of_step = [one for one in records if one["slurm"].get("step_id") == "0"]
        assert kinds(of_step) == ["step_start 0", "log 0", "step_end 0"]
        ids = {(one["slurm"]["task_id_global"], one["slurm"]["task_id_local"]) for one in of_step[1:-1]}
        assert ids == ({(0, 0)} if node == NODES[0] else {(1, 0), (2, 1)})


@pytest.mark.parametrize("name", _COMPONENTS)
def test_the_components_of_a_step_are_relayed_each_on_its_nodes(relayed: Relayed, name: str) -> None:
    (first, first_text), (second, second_text) = _COMPONENTS[name]
    step = 'srun --label -n1 sh -c "$FIRST" : -n2 sh -c "$SECOND"'
    text = f"FIRST={_quoted(first)} SECOND={_quoted(second)}; {step}"
    ran = relayed.batch(text, "-N2", "-wn1,n2", "--ntasks-per-node=2", "--relay-io=yes", "--error=err")
    assert ran.status == "0:0", ran.files
    _check(ran, relayed, (ran.job_id, ran.job_id), (first_text, second_text))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.parametrize("name", _COMPONENTS)
def test_the_components_of_a_job_are_relayed_as_jobs(relayed: Relayed, name: str) -> None:
    (first, first_text), (second, second_text) = _COMPONENTS[name]
    text = (
        "#SBATCH -n1 -w n1 --relay-io=yes\n#SBATCH hetjob\n#SBATCH -n2 -w n2 --relay-io=yes\n"
        f"export FIRST={_quoted(first)} SECOND={_quoted(second)}\n"
        """srun --label --het-group=0,1 sh -c 'if [ $SLURM_PROCID = 0 ]; then eval "$FIRST"; else eval "$SECOND"; fi'"""
    )
    ran = relayed.batch(text, "--error=err")
    assert ran.status == "0:0", ran.files
    # Each component is a job of its own to slurmd.
    _check(ran, relayed, (ran.job_id, str(int(ran.job_id) + 1)), (first_text, second_text))


def test_components_that_srun_makes_jobs_of_are_relayed_as_jobs(relayed: Relayed) -> None:
    part = ("-n1", "--relay-io=yes")
    ran = relayed.run(
        *("srun", "--label", *part, "-wn1", "sh", "-c", f"echo $SLURM_JOB_ID >id; {_SHORT}"),
        *(":", "-n2", "--relay-io=yes", "-wn2", "sh", "-c", _SHORT),
    )
    assert ran.status == "0", ran.error
    _check(ran, relayed, (ran.job_id, str(int(ran.job_id) + 1)), ("{task}\n", "{task}\n"))


def test_slurm_puts_no_two_components_on_one_node(relayed: Relayed) -> None:
    """So a step has one slurmstepd on a node."""
    for wish in ("no", "yes"):
        ran = relayed.batch("srun -n1 echo a : -n1 echo b", "-wn1", "-n4", f"--relay-io={wish}")
        assert ran.status == "1:0"
        assert ran.output == (
            b"srun: error: Allocation failure of 1 nodes: job size of 1,"
            b" already allocated 1 nodes to previous components.\n"
        )
    with pytest.raises(RuntimeError, match="Invalid node name specified"):
        relayed.submit("#SBATCH -n1 -w n1\n#SBATCH hetjob\n#SBATCH -n1 -w n1\ntrue")
