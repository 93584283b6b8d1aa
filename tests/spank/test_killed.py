# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks that the kernel kills while they write, as its OOM killer does: no word to Slurm, no last words of theirs."""

import os
import signal
from pathlib import Path

import pytest

from tests.relay.rig import LONG_S, eventually
from tests.spank.site import Relayed, md5, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

# Writes to both streams in turn, faster than it can be relayed: its pipes are full when it is killed. 400 MB at most,
# should nobody kill it.
_WRITER = """
import os
with open("id", "w") as file:
    file.write(os.environ["SLURM_JOB_ID"])
with open("pid", "w") as file:
    file.write(str(os.getpid()))
number = 0
while number < 4_000_000:
    lines = b"".join(b"%099d\\n" % (number + at) for at in range(40))
    for fd in (1, 2):
        os.write(fd, lines)
    number += 40
"""


@pytest.fixture
def writer(relayed: Relayed) -> Path:
    path = relayed.folder() / "writer.py"
    path.write_text(_WRITER)
    return path


def _kill(folder: Path, file: str) -> None:
    """Kills the task once it has written more than all buffers hold."""
    eventually(lambda: (folder / file).exists() and (folder / file).stat().st_size > 500_000)
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def _is_beginning(data: bytes) -> bool:
    """Whether this is what such a stream begins with."""
    return b"".join(b"%099d\n" % number for number in range(len(data) // 100 + 1)).startswith(data)


def test_a_task_that_is_killed_while_it_writes(relayed: Relayed, writer: Path) -> None:
    """Its stdout goes to srun, its stderr to a file on the node."""
    for wish in ("no", "yes"):
        folder = relayed.folder()
        step = ("-wn1", f"--relay-io={wish}", "-e", f"{folder}/f.%t", "-D", folder, "/usr/bin/python3", writer)
        srun = relayed.cluster.popen_as("root", "sh", "-c", 'exec srun "$@" >$0/out 2>$0/said', folder, *step)
        _kill(folder, "f.0")
        assert srun.wait(LONG_S) == 137
        assert b"srun: error: n1: task 0: Killed\n" in (folder / "said").read_bytes()
        assert _is_beginning((folder / "f.0").read_bytes())
    records = relayed.records((folder / "id").read_text().strip())
    assert md5(output(records, "stderr", step_id="0")) == md5((folder / "f.0").read_bytes())
    # srun takes no more once it knows that its task was killed, with and without the relay.
    stdout = output(records, step_id="0")
    assert _is_beginning(stdout) and stdout.startswith((folder / "out").read_bytes())


def test_a_batch_script_that_is_killed_while_it_writes(relayed: Relayed, writer: Path) -> None:
    for wish in ("no", "yes"):
        job_id, folder = relayed.submit(f"exec /usr/bin/python3 {writer}", "-wn1", f"--relay-io={wish}", "--error=err")
        _kill(folder, "err")
        ran = relayed.ended(job_id, folder)
        assert ran.status == "0:9"
        assert _is_beginning(ran.output) and _is_beginning(ran.files["err"])
    records = relayed.records(job_id)
    assert md5(output(records, "stderr")) == md5(ran.files["err"])
    assert md5(output(records)) == md5(ran.output)
