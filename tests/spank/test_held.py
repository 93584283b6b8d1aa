# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a job is held by a daemon or worker that hangs: its prolog a second, a step two in all, its epilog one."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.rig import Rig
from tests.spank.site import Relayed
from tests.spank.standin import standin

pytestmark = pytest.mark.xdist_group("spank-slurm")

NODE = "n2"
# What a busy machine may add, in s: srun alone waits for the next look of the scheduler, perhaps.
_SLACK_S = 4.0
_WRITTEN = b"".join(b"%09d\n" % number for number in range(150_000))


@pytest.fixture
def rig(relayed: Relayed) -> "Iterator[Rig]":
    """The node's relay, which a test may hang; afterwards it is as it was."""
    made = relayed.rigs[NODE]
    yield made
    assert made.node
    if made.node.poll() is None:
        made.node.send_signal(signal.SIGCONT)
        made.stop_node()
    made.start_node()


@pytest.fixture
def written(relayed: Relayed) -> Path:
    """A file that a step may write: more than all buffers together."""
    path = relayed.folder() / "written"
    path.write_bytes(_WRITTEN)
    return path


def _timed(relayed: Relayed, wish: str, written: Path) -> "tuple[float, float, str]":
    """How long srun took, how long its node was busy after that, in s, and its job's id."""
    begun_s = time.monotonic()
    command = ("sh", "-c", f"echo $SLURM_JOB_ID >id; cat {written}")
    ran = relayed.run("srun", f"-w{NODE}", f"--relay-io={wish}", "-o", "f.%t", *command)
    ended_s = time.monotonic()
    relayed.cluster.wait_idle(NODE)
    assert (ran.status, ran.files["f.0"]) == ("0", _WRITTEN)
    return ended_s - begun_s, time.monotonic() - ended_s, ran.job_id


def test_a_stopped_daemon_holds_prolog_step_and_epilog_a_second_each(relayed: Relayed, rig: Rig, written: Path) -> None:
    usual_s, usual_after_s, _ = _timed(relayed, "no", written)
    assert rig.node
    os.kill(rig.node.pid, signal.SIGSTOP)
    took_s, after_s, job_id = _timed(relayed, "yes", written)
    assert took_s - usual_s < 1.0 + 1.0 + _SLACK_S
    assert after_s - usual_after_s < 1.0 + _SLACK_S
    log = relayed.log(NODE)
    assert f"[{job_id}.0] relay: the node daemon does not take the step, it is not relayed" in log
    for event in ("start", "end"):
        assert re.search(f"relay: the node daemon does not answer at .*, the job's {event} is not told", log)


def test_a_worker_that_hangs_from_the_beginning_holds_a_step_two_seconds(
    relayed: Relayed, rig: Rig, written: Path
) -> None:
    rig.stop_node()
    with standin(rig.folder / "control.sock", lambda _: None) as relay:
        usual_s, _, _ = _timed(relayed, "no", written)
        took_s, _, job_id = _timed(relayed, "yes", written)
        data = relay.data()
    assert took_s - usual_s < 2.0 + _SLACK_S
    assert _WRITTEN.startswith(data) and len(data) < len(_WRITTEN)
    assert f"[{job_id}.0] relay lost {len(_WRITTEN) - len(data)} bytes of task 0 stdout" in relayed.log(NODE)
