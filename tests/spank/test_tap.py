# SPDX-License-Identifier: GPL-2.0-or-later
"""A job on a node with the tap: its output is where it was, and in the records."""

import pytest

from tests.spank.site import Relayed, kinds, output

pytestmark = pytest.mark.xdist_group("spank-slurm")


def test_a_batch_job_and_its_step_are_relayed_and_their_bytes_and_status_are_what_they_were(relayed: Relayed) -> None:
    text = "echo one; echo two >&2; srun -n1 sh -c 'echo three; exit 3'; echo four; exit 5"
    plain = relayed.batch(text, "-wn1")
    tapped = relayed.batch(text, "-wn1", "--relay-io=yes")
    assert tapped.status == plain.status == "5:0"
    assert tapped.files.keys() == plain.files.keys()
    hidden = [line for line in tapped.output.splitlines() if not line.startswith(b"srun: error")]
    assert sorted(hidden) == [b"four", b"one", b"three", b"two"]
    records = relayed.records(tapped.job_id)
    assert kinds(records)[0] == "job_start" and kinds(records)[-1] == "job_end"
    assert sorted({one["type"] for one in records}) == ["job_end", "job_start", "log", "step_end", "step_start"]
    assert output(records, step_id="0") == b"three\n"
    assert output(records) == b"one\nthree\nfour\n"
    assert output(records, "stderr").startswith(b"two\nsrun: error")
    assert relayed.is_silent(plain.job_id)
