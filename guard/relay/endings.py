# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs whose end was told: job_end comes after the last record of their workers, or in time without. World room.

A worker that can be reached is told and closes the connection at its end; one that drains, or that a daemon before
this one has told, is known by the lock on its tally. Of one that died nobody else can speak any more.
"""

import os
import time

from guard.relay import handover, jobs, limits, record, tally
from guard.relay.jobs import Job
from guard.relay.ring import Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_NEVER = float("inf")


class _Ending:
    """workers: connections that close when they have finished."""

    __slots__ = ("end_ms", "job", "workers")

    def __init__(self, job: Job, workers: "list[socket.socket]", end_ms: int) -> None:
        self.job = job
        self.workers = workers
        self.end_ms = end_ms


class Endings:
    """All of a node. Takes: ring - for the records; log - a line for the daemon's log. The clock is an argument."""

    def __init__(self, ring: Ring, log: "Callable[[str], None]") -> None:
        self._ring = ring
        self._log = log
        self._endings: "list[_Ending]" = []

    def begin(self, job: Job, now_ms: int) -> None:
        """This job has ended: its workers are told."""
        try:
            workers = handover.living(job)
        except OSError:
            workers = []
        told = [worker for worker in workers if handover.tell_end(worker)]
        self._endings.append(_Ending(job, told, now_ms + int(limits.JOB_END_WAIT_S * 1000)))

    def finish(self, job_id: int) -> None:
        """Earlier runs of this job end now."""
        for ending in [one for one in self._endings if one.job.job_id == job_id]:
            self._end(ending)

    def fds(self) -> "list[int]":
        """What becomes readable when a worker has finished."""
        return [worker.fileno() for ending in self._endings for worker in ending.workers]

    def next_ms(self, now_ms: int) -> float:
        """When look() is due even if nothing becomes readable."""
        if any(not ending.workers for ending in self._endings):
            return now_ms + limits.JOB_END_LOOK_MS  # nothing tells when a lock is free
        return min((ending.end_ms for ending in self._endings), default=_NEVER)

    def look(self, now_ms: int) -> None:
        """Ends the jobs whose workers have finished, or have had their time."""
        for ending in list(self._endings):
            for worker in [worker for worker in ending.workers if _has_finished(worker)]:
                worker.close()
                ending.workers.remove(worker)
            if ending.end_ms <= now_ms or not (ending.workers or tally.are_living(ending.job.folder)):
                self._end(ending)

    def _end(self, ending: _Ending) -> None:
        self._endings.remove(ending)
        for worker in ending.workers:
            worker.close()
        job = ending.job
        for step_id, lost_count in tally.of_dead(job.folder):
            self._speak_for_dead(job, step_id, lost_count)
        if job.is_relayed:
            self._ring.push([record.event("job_end", time.time_ns(), job.slurm)])
        jobs.remove(job)

    def _speak_for_dead(self, job: Job, step_id: str, lost_count: int) -> None:
        """What the last worker of a step did not say, because it was killed and no tap asked for another."""
        if lost_count:
            place = f"[{job.job_id}.{step_id}]"
            self._log(f"{place} relay dropped {lost_count} records in total, a worker held them when it died")
        try:
            os.unlink(f"{job.folder}/{step_id}.started")
        except OSError:
            return  # its step_end is out, or counted, or was just said for another worker of this step
        self._ring.push([record.event("step_end", time.time_ns(), job.step_slurm(step_id))])


def _has_finished(worker: "socket.socket") -> bool:
    try:
        return not worker.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
