# SPDX-License-Identifier: GPL-2.0-or-later
"""Records -> the numbers of the report, in one pass, in memory that grows with jobs and not with records. Pure.

A Tally's result is plain JSON, the same from the DuckDB engine (tests hold it); docs/report.md says what each number
is. Jobs are kept as 64-bit hashes: of a million jobs two share one with a chance of 3 in 100 million.
"""

import time

from guard.base import guard_line
from guard.report.limits import WORST_COUNT
from guard.scraper import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NS = 1_000_000_000
BY = ("target", "reason", "node", "user", "day")
UNKNOWN = "unknown"


class _Group:
    """What is counted of one key: lines, jobs, nodes."""

    __slots__ = ("jobs", "lines", "nodes")

    def __init__(self) -> None:
        self.lines = 0
        self.jobs: set[int] = set()
        self.nodes: set[str] = set()

    def add(self, job: int, node: str) -> None:
        self.lines += 1
        self.jobs.add(job)
        self.nodes.add(node)

    def counts(self) -> "dict[str, int]":
        return {"lines": self.lines, "jobs": len(self.jobs), "nodes": len(self.nodes)}


class Tally:
    """Counts what it is fed. since_ns: older records are left out; by: a value of BY."""

    def __init__(self, since_ns: int = 0, by: str = "target") -> None:
        self._since_ns = since_ns
        self._by = by
        self._records = 0
        self._bad = 0
        self._doubtful = 0
        self._first_ns = 0
        self._last_ns = 0
        self._jobs: set[int] = set()
        self._nodes: set[str] = set()
        self._reloads: dict[tuple[str, ...], _Group] = {}
        self._failures: dict[tuple[str, ...], _Group] = {}
        self._skipped: dict[tuple[str, ...], _Group] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._days: dict[tuple[str, str], _Group] = {}
        self._by_node: dict[tuple[str, str], _Group] = {}
        # job_start counts up, job_end down: files may come in any order, and what is even is forgotten.
        self._open: dict[tuple[int, str], int] = {}
        self._losses: dict[str, list[int]] = {}

    def add(self, line: bytes) -> None:
        """Takes one line of NDJSON; an empty one is none."""
        if not line.strip():
            return
        try:
            fields = decode.quick_loads(line)
            kind, time_ns, slurm = fields["type"], fields["time"], fields["slurm"]
            node = slurm["node"]
        except (ValueError, KeyError, TypeError):
            self._bad += 1
            return
        if time_ns < self._since_ns:
            return
        self._records += 1
        if not self._first_ns or time_ns < self._first_ns:
            self._first_ns = time_ns
        if time_ns > self._last_ns:
            self._last_ns = time_ns
        if kind == "loss":
            self._add_loss(node, fields)
            return
        job = hash((slurm["cluster"], slurm.get("sluid") or slurm["job_id"]))
        self._jobs.add(job)
        self._nodes.add(node)
        if kind == "log":
            if fields.get("scraper", {}).get("doubtful"):
                self._doubtful += 1
            said = guard_line.parse(fields["body"]) if fields["body"].startswith("eessi-arch-guard: ") else None
            if said and said.kind != "nothing":
                self._add_said(said, job, time_ns, slurm)
        elif kind in ("job_start", "job_end"):
            run = (hash((job, slurm.get("restart_count", 0))), node)
            balance = self._open.pop(run, 0) + (1 if kind == "job_start" else -1)
            if balance:
                self._open[run] = balance

    def _add_said(self, said: guard_line.Said, job: int, time_ns: int, slurm: "dict[str, Any]") -> None:
        # The record's node, not the line's: the scraper vouches for the one, the job's output for the other.
        node = slurm["node"]
        if said.kind == "reloaded":
            self._count(self._reloads, (said.was, said.now), job, node)
        elif said.kind == "failed":
            self._count(self._failures, (said.was, said.reason), job, node)
        else:
            self._count(self._skipped, (said.reason,), job, node)
        day = time.strftime("%Y-%m-%d", time.gmtime(time_ns // _NS))
        keys = {
            "target": f"{said.was}->{said.now}" if said.was else UNKNOWN,
            "reason": said.reason or "reloaded",
            "node": node,
            "user": slurm.get("user_name", UNKNOWN),
            "day": day,
        }
        for groups, key in ((self._groups, keys[self._by]), (self._days, day), (self._by_node, node)):
            self._count(groups, (key, said.kind), job, node)

    def _add_loss(self, node: str, fields: "dict[str, Any]") -> None:
        loss = self._losses.setdefault(node, [0, 0])
        loss[0] += 1
        # slurmd's totals run on, so the largest of a node is at least lost there, and the sum would be too much.
        loss[1] = max(loss[1], fields.get("scraper", {}).get("dropped", 0))

    @staticmethod
    def _count(groups: "dict[Any, _Group]", key: "tuple[str, ...]", job: int, node: str) -> None:
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group()
        group.add(job, node)

    def result(self) -> "dict[str, Any]":
        """All numbers. Rows are ordered by jobs, then lines, most first, then by name."""
        reloaded = _union(self._reloads)
        failed = _union(self._failures)
        return {
            "records": self._records,
            "bad_lines": self._bad,
            "first_ns": self._first_ns,
            "last_ns": self._last_ns,
            "by": self._by,
            "jobs": {
                "relayed": len(self._jobs),
                "nodes": len(self._nodes),
                "reloaded": len(reloaded),
                "failed": len(failed),
                "affected": len(reloaded | failed),
                "share": share(len(reloaded | failed), len(self._jobs)),
                "unended": sum(1 for balance in self._open.values() if balance > 0),
            },
            "reloads": _rows(self._reloads, ("was", "now")),
            "failures": _rows(self._failures, ("was", "reason")),
            "skipped": _rows(self._skipped, ("reason",)),
            "groups": _kinds(self._groups),
            "days": sorted(_kinds(self._days), key=lambda row: str(row["key"])),
            "worst_nodes": worst(_kinds(self._by_node)),
            "losses": {
                "reports": sum(reports for reports, _ in self._losses.values()),
                "nodes": len(self._losses),
                "records_at_least": sum(dropped for _, dropped in self._losses.values()),
                "doubtful_lines": self._doubtful,
            },
        }


def share(part: int, whole: int) -> float:
    """part of whole, 0 to 1, four digits."""
    return round(part / whole, 4) if whole else 0.0


def worst(rows: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """The nodes with most failures, then most reloads."""
    order = sorted(rows, key=lambda row: (-row["failed_jobs"], -row["reloaded_jobs"], row["key"]))
    return order[:WORST_COUNT]


def _union(groups: "dict[Any, _Group]") -> "set[int]":
    jobs: set[int] = set()
    for group in groups.values():
        jobs |= group.jobs
    return jobs


def _rows(groups: "dict[tuple[str, ...], _Group]", names: "tuple[str, ...]") -> "list[dict[str, Any]]":
    rows = [{**dict(zip(names, key)), **group.counts()} for key, group in groups.items()]
    return sorted(rows, key=lambda row: (-row["jobs"], -row["lines"], *(row[name] for name in names)))


def _kinds(groups: "dict[tuple[str, str], _Group]") -> "list[dict[str, Any]]":
    """One row for each key, with a column for each kind."""
    rows: dict[str, dict[str, Any]] = {}
    for (key, kind), group in groups.items():
        row = rows.setdefault(key, {"key": key, "reloaded_jobs": 0, "failed_jobs": 0, "skipped_jobs": 0, "lines": 0})
        row[f"{kind}_jobs"] = len(group.jobs)
        row["lines"] += group.lines
    return sorted(rows.values(), key=lambda row: (-row["failed_jobs"], -row["reloaded_jobs"], row["key"]))
