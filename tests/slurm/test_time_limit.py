# SPDX-License-Identifier: GPL-2.0-or-later
"""A job's time limit while the guard runs: Slurm ends both."""

import pytest

from tests.slurm.host import is_running
from tests.slurm.site import Overdue, Site

pytestmark = pytest.mark.xdist_group("slurm")


def test_a_job_whose_time_is_over_while_the_guard_runs_ends_without_a_trace(site: Site, overdue: Overdue) -> None:
    site.cluster.wait_job(overdue.job_id, "TIMEOUT")
    site.cluster.wait_idle()
    assert not is_running(overdue.detector) and not is_running(overdue.guard)
    assert site.cache_files(overdue.job_id) == []
