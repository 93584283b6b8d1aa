# SPDX-License-Identifier: GPL-2.0-or-later
from pathlib import Path

import pytest

from guard.base.faults import NodeFault, SiteFault
from guard.relay import event, frames, jobs

EVERY = {
    b"SLURM_JOB_ID": b"174", b"SLURM_JOB_UID": b"1000", b"SLURM_JOB_GID": b"1000", b"SLURM_JOB_USER": b"alice",
    b"SLURM_CLUSTER_NAME": b"slurm", b"SLURMD_NODENAME": b"node1", b"SLURM_JOB_PARTITION": b"batch",
    b"SPANK_SLURM_JOB_ACCOUNT": b"forged", b"SLURM_SCRIPT_CONTEXT": b"prolog_slurmd",
}  # fmt: skip
FROM_22_05 = {**EVERY, b"SLURM_JOB_ACCOUNT": b"physics", b"SLURM_JOB_RESTART_COUNT": b"0"}
FROM_25_11 = {**FROM_22_05, b"SLURM_JOB_SLUID": b"sA0SM5EFW65700"}
IDENTITY = {"cluster": "slurm", "node": "node1", "job_id": 174}
SLUID, USER, COUNT = {"sluid": "sA0SM5EFW65700"}, {"user_name": "alice"}, {"restart_count": 0}
WHERE, WHO = {"partition": "batch"}, {"account": "physics"}


@pytest.mark.parametrize(
    ("environ", "slurm"),
    [
        (EVERY, {**IDENTITY, **USER, **WHERE}),
        (FROM_22_05, {**IDENTITY, **USER, **COUNT, **WHERE, **WHO}),
        (FROM_25_11, {**IDENTITY, **SLUID, **USER, **COUNT, **WHERE, **WHO}),
        ({**FROM_22_05, b"SLURM_JOB_USER": b"", b"SLURM_JOB_ACCOUNT": b""}, {**IDENTITY, **COUNT, **WHERE}),
        ({**EVERY, b"SLURM_JOB_USER": b"m\xfcller"}, {**IDENTITY, "user_name": "m\ufffdller", **WHERE}),
    ],
    ids=["20.11 and 21.08", "22.05 to 25.05", "25.11", "empty ones are absent", "any bytes"],
)  # fmt: skip
def test_a_jobs_identity_is_what_slurmd_tells_in_that_version(
    environ: "dict[bytes, bytes]", slurm: "dict[str, object]"
) -> None:
    job, wish = jobs.asked(event.payload("job_start", "default", environ))
    assert (list(job.slurm.items()), job.uid, wish) == (list(slurm.items()), 1000, "default")


@pytest.mark.parametrize("missing", [b"SLURM_JOB_ID", b"SLURM_JOB_UID"])
def test_an_environment_without_a_job_is_refused(missing: bytes) -> None:
    with pytest.raises(SiteFault) as caught:
        event.payload("job_end", "default", {name: value for name, value in EVERY.items() if name != missing})
    assert caught.value.code == "no-environment"


@pytest.mark.parametrize(
    ("name", "value"),
    [(b"SLURM_JOB_ID", b"x"), (b"SLURM_JOB_ID", b"0"), (b"SLURM_JOB_UID", b"-1"), (b"SLURM_JOB_RESTART_COUNT", b"one")],
)
def test_ids_that_are_no_numbers_are_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(Exception, match="is not a number"):
        jobs.asked(event.payload("job_start", "yes", {**FROM_25_11, name: value}))


def test_a_step_has_the_identity_without_the_jobs_own_fields() -> None:
    job, _ = jobs.asked(event.payload("job_start", "default", FROM_25_11))
    assert job.step_slurm("batch") == {**IDENTITY, "sluid": "sA0SM5EFW65700", "user_name": "alice", "step_id": "batch"}


def test_no_daemon_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NodeFault) as caught:
        event.tell(str(tmp_path / "none"), frames.fields_payload({"event": b"job_end"}))
    assert caught.value.code == "no-daemon"
