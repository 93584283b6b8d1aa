# SPDX-License-Identifier: GPL-2.0-or-later
"""A line of slurmd's log -> the drop report that it is, if it is one. Pure.

relay_io tells of drops there and nowhere else (seed relay_io "How output becomes records", "Delivery"): slurmstepd's
lines begin with `[jobid.stepid]`, and all that concern drops have the word relay in them.
"""

import re

# "relay lost": our own producer's, of bytes that were lost before they were records (guard/relay/step.py); "left": of
# those that a hung worker has, and that are lost unless it goes on (build/spank/copier.c).
_REPORT = re.compile(
    rb"relay dropped (\d+) records?|the relay is not draining fast enough|relay.{0,80}?dropped (\d+)"
    rb"|relay (?:lost|left) \d+ bytes"
)
_STEP = re.compile(rb"\[(\d{1,10})\.([0-9a-z_+]{1,40})\]")


class Report:
    """job_id, step_id: of the step that lost records, None for slurmd's own job events; count: of records, as the
    report says it, None when it gives none (running totals, so never summed by us); text: the line."""

    __slots__ = ("count", "job_id", "step_id", "text")

    def __init__(self, job_id: "int | None", step_id: "str | None", count: "int | None", text: str) -> None:
        self.job_id = job_id
        self.step_id = step_id
        self.count = count
        self.text = text


def parse(line: bytes) -> "Report | None":
    """The report in a line of the log, None for any other line."""
    found = _REPORT.search(line)
    if not found:
        return None
    count = found.group(1) or found.group(2)
    text = line.decode("utf-8", "replace").strip()
    # Only what precedes the report: a path in it could hold anything.
    step = _STEP.search(line, 0, found.start())
    if not step:
        return Report(None, None, int(count) if count else None, text)
    return Report(int(step.group(1)), step.group(2).decode("ascii"), int(count) if count else None, text)
