# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster itself: several on one machine, and each ends what it started and nothing else."""

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.host import commands, is_running, reachable_folder
from tests.slurm.site import USER, Site

pytestmark = pytest.mark.xdist_group("slurm")


def test_a_second_cluster_runs_beside_the_first_and_ends_alone(site: Site) -> None:
    with reachable_folder() as folder:
        with Cluster(folder, node_count=1) as second:
            daemons = second.pids()
            assert len(daemons) == 3 and all(is_running(pid) for pid in daemons)
            assert second.run_as(USER, "srun", "printenv", "SLURMD_NODENAME").stdout == b"n1\n"
            # One that is still running when the cluster ends is ended too.
            left = second.popen_as(USER, "srun", "sh", "-c", "echo $$; exec sleep 600")
            assert left.stdout
            task = int(left.stdout.readline())
            assert is_running(task)
        assert left.wait(120) != 0
        left.communicate()
        assert not is_running(task) and not any(is_running(pid) for pid in daemons)
    assert all(is_running(pid) for pid in site.cluster.pids())
    assert site.run("srun", "-w", "n1", "true").status == "0"


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(site: Site) -> None:
    with reachable_folder() as folder:
        broken = Cluster(folder, ["ThisIsNoOption=1"], node_count=1)
        with pytest.raises(RuntimeError, match="ThisIsNoOption"), broken:
            pass
        assert broken.pids() == []
        assert [command for command in commands() if bytes(folder) in command] == []
