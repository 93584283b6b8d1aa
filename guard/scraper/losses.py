# SPDX-License-Identifier: GPL-2.0-or-later
"""slurmd's log and a file in the spool -> the drop reports that are new, those of the time between two processes too.

Producers drop while nobody reads, so their reports stand in the log before the next process looks. World room.
"""

import json
import os

from guard.scraper import drops, spool, tail
from guard.scraper.limits import LOG_KEEP_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_FILE = "losses.json"


class Losses:
    """Takes: log_path - SlurmdLogFile; folder - of the spool. steps: (job_id, step_id) of those that had lost records
    when the process before this one kept them."""

    def __init__(self, log_path: str, folder: str) -> None:
        self._kept_path = os.path.join(folder, _FILE)
        self.steps, place = _taken_up(self._kept_path)
        self._tail = tail.Tail(log_path, place)
        self._kept_place = place
        self._kept_s = 0.0

    def new(self) -> "list[drops.Report]":
        """The reports that came since the last look."""
        return [report for report in map(drops.parse, self._tail.lines()) if report]

    def keep(self, steps: "Iterable[tuple[int, str]]", now_s: float, is_now: bool) -> None:
        """Keeps the place in the log and the steps for the next process; every few seconds, or now. Call it once the
        reports are in the spool: after a kill -9 a report is told twice rather than never. Raises: OSError."""
        place = self._tail.place()
        if is_now or (place != self._kept_place and now_s - self._kept_s >= LOG_KEEP_S):
            self._kept_s = now_s
            spool.replace(self._kept_path, json.dumps({"place": place, "steps": list(steps)}).encode("ascii"))
            self._kept_place = place


def _taken_up(path: str) -> "tuple[list[tuple[int, str]], tuple[int, int, int] | None]":
    """What was kept; nothing when it cannot be read: then the log is followed from its present end on."""
    try:
        with open(path, "rb") as file:
            kept = json.loads(file.read())
        device, inode, offset = map(int, kept["place"])
        return [(int(job_id), str(step_id)) for job_id, step_id in kept["steps"]], (device, inode, offset)
    except (OSError, KeyError, TypeError, ValueError):
        return [], None
