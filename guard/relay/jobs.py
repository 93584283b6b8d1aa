# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's job table: what it knows of each job, kept as files so that a restarted daemon knows it too. World room.

    <folder>/jobs/<job_id>-<start in ns>/job.json       one run of a job, from its job_start on
    <folder>/jobs/<job_id>-<start in ns>/ended          the same once job_end was told and its workers still finish
    <folder>/jobs/<job_id>-<start in ns>/<step>.sock    where the worker of this step listens; dead if nobody does
    <folder>/jobs/<job_id>-<start in ns>/<step>.started step_start is out and step_end is not
    <folder>/jobs/<job_id>-<start in ns>/*.tally        what of a worker outlives it: tally.py

A requeued job is another run and another folder: a worker of the run before keeps its own names.
"""

import json
import os

from guard.base.faults import PeerFault
from guard.relay import limits
from guard.relay.frames import fields_of, number
from guard.relay.settle import DEFAULT, NO, YES

# The record's fields of a job that come as text, in the seed's order; restart_count is put between them.
_TEXTS_BEFORE = ("sluid", "user_name")
_TEXTS_AFTER = ("partition", "account")


class Job:
    """One run of one job on this node. uid: whose taps may speak for it; slurm: the identity in its records;
    is_relayed: what was settled at its start; has_ended: job_end was told."""

    __slots__ = ("folder", "has_ended", "is_relayed", "job_id", "slurm", "uid", "worker_count")

    def __init__(self, job_id: int, uid: int, slurm: "dict[str, object]") -> None:
        self.job_id = job_id
        self.uid = uid
        self.slurm = slurm
        self.is_relayed = False
        self.has_ended = False
        self.folder = ""
        self.worker_count = 0

    def step_slurm(self, step_id: str) -> "dict[str, object]":
        """The identity in the records of one of its steps."""
        slurm = {
            name: value for name, value in self.slurm.items() if name not in ("restart_count", "partition", "account")
        }
        slurm["step_id"] = step_id
        return slurm

    def is_same_run(self, other: "Job") -> bool:
        """Whether other is this run, told once more."""
        return not self.has_ended and (self.uid, self.slurm) == (other.uid, other.slurm)


def asked(payload: bytes) -> "tuple[Job, str]":
    """The job of a job_start's payload, and its wish (settle.YES, NO, DEFAULT).

    Raises: PeerFault(bad-fields).
    """
    fields = fields_of(payload)
    wish = fields.get("relay_io", DEFAULT.encode()).decode("utf-8", "replace")
    if wish not in (YES, NO, DEFAULT):
        raise PeerFault("bad-fields", "relay_io is yes, no or default")
    slurm: "dict[str, object]" = {}
    for name in ("cluster", "node"):
        slurm[name] = _text(fields.get(name, b""))
    slurm["job_id"] = number(fields, "job_id", limits.ID_MOST, 1)
    slurm.update({name: _text(fields[name]) for name in _TEXTS_BEFORE if fields.get(name)})
    if "restart_count" in fields:
        slurm["restart_count"] = number(fields, "restart_count", limits.ID_MOST)
    slurm.update({name: _text(fields[name]) for name in _TEXTS_AFTER if fields.get(name)})
    return Job(number(fields, "job_id", limits.ID_MOST, 1), number(fields, "uid", limits.ID_MOST), slurm), wish


def step_text(step: int) -> str:
    """A step as records name it (seed, "Record format"). Raises: PeerFault(bad-fields) - no step that has output."""
    if step == limits.STEP_BATCH:
        return "batch"
    if step == limits.STEP_INTERACTIVE:
        return "interactive"
    if step >= limits.STEP_SPECIAL_LEAST:
        raise PeerFault("bad-fields", f"step {step} has no output")
    return str(step)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def add(root: str, job: Job, start_ns: int) -> None:
    """Writes the job down. Raises: OSError."""
    job.folder = f"{root}/{job.job_id}-{start_ns}"
    os.mkdir(job.folder, 0o700)
    _write(job)


def end(job: Job) -> None:
    """Notes that job_end was told. Raises: OSError."""
    job.has_ended = True
    os.rename(f"{job.folder}/job.json", f"{job.folder}/ended")


def remove(job: Job) -> None:
    """Takes the job's files away; what cannot be removed stays."""
    try:
        for name in os.listdir(job.folder):
            os.unlink(f"{job.folder}/{name}")
        os.rmdir(job.folder)
    except OSError:
        pass


def load(root: str) -> "list[Job]":
    """Every job that was written down. What is not a whole job (a crash in between) is removed.

    Raises: OSError - root cannot be read.
    """
    found = []
    for name in sorted(os.listdir(root)):
        job = Job(0, 0, {})
        job.folder = f"{root}/{name}"
        for file_name, has_ended in (("job.json", False), ("ended", True)):
            try:
                with open(f"{job.folder}/{file_name}", "rb") as file:
                    job.job_id, job.uid, job.is_relayed, job.slurm = json.load(file)
            except (OSError, ValueError):
                continue
            job.has_ended = has_ended
            found.append(job)
            break
        else:
            remove(job)
    return found


def _write(job: Job) -> None:
    text = json.dumps([job.job_id, job.uid, job.is_relayed, job.slurm])
    with open(f"{job.folder}/new", "x", encoding="ascii") as file:
        file.write(text)
    # A rename, so that a crash leaves a whole file or none. No fsync: the folder is in /run, gone with the node.
    os.rename(f"{job.folder}/new", f"{job.folder}/job.json")
