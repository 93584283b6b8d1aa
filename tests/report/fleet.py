# SPDX-License-Identifier: GPL-2.0-or-later
"""A made fleet: its records as the scraper writes them, and the truth about it, kept apart as plain rows."""

import collections
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.base import faults, message

DAY_NS = 86_400 * 10**9
START_NS = 1_785_542_400 * 10**9  # 2026-08-01T00:00 UTC
_TARGETS = ("x86_64/amd/zen4", "x86_64/amd/zen3", "x86_64/amd/zen2", "x86_64/intel/icelake", "aarch64/nvidia/grace")
_ACCELERATORS = ("no accel", "accel/nvidia/cc80", "accel/nvidia/cc90")
_TOKENS = ("timeout", "no-software-dir", "lmod-unavailable", "unsafe-environment")
_LOG = (
    '{"v":1,"type":"log","time":%d,"slurm":{"cluster":"%s","node":"%s","job_id":%d,%s"user_name":"%s","step_id":"0",'
    '"task_id_global":0,"task_id_local":0},"stream":"%s","body":%s,"scraper":{"received":1}}\n'
)
_JOB = (
    '{"v":1,"type":"%s","time":%d,"slurm":{"cluster":"%s","node":"%s","job_id":%d,%s"user_name":"%s",'
    '"restart_count":%d,"partition":"batch","account":"physics"},"scraper":{"received":1}}\n'
)


class Fleet:
    """jobs on nodes over some days. said: a row for each line of the guard that counts: (job, node, user, day, kind,
    was, now, reason)."""

    def __init__(self, nodes: int, jobs: int, chatter: int = 3, seed: int = 1) -> None:
        self.nodes = nodes
        self.jobs = jobs
        self.chatter = chatter
        self.seed = seed
        self.said: list[tuple[str, str, str, str, str, str, str, str]] = []
        self.started: collections.Counter[tuple[str, str, int]] = collections.Counter()
        self.seen_jobs: set[str] = set()
        self.seen_nodes: set[str] = set()
        self.lost: dict[str, list[int]] = {}
        self.records = 0
        self.doubtful = 0

    def lines(self) -> "Iterator[str]":
        """Every record, and the truth as it goes."""
        dice = random.Random(self.seed)
        for number in range(self.jobs):
            for line in self._job(dice, number):
                self.records += 1
                yield line

    def _job(self, dice: random.Random, number: int) -> "Iterator[str]":
        job_id = 1000 + number
        has_sluid = number % 5 != 0
        sluid = f'"sluid":"s{number:013d}",' if has_sluid else ""
        job = f"slurm s{number:013d}" if has_sluid else f"slurm {job_id}"
        user = f"user{dice.randrange(200)}"
        time_ns = START_NS + dice.randrange(10 * DAY_NS)
        restarts = 1 if number % 97 == 0 else 0
        self.seen_jobs.add(job)
        for node_number in dice.sample(range(self.nodes), dice.choice((1, 1, 1, 2, 4))):
            node = f"n{node_number:04d}"
            self.seen_nodes.add(node)
            for run in range(restarts + 1):
                self.started[job, node, run] += 1
                yield _JOB % ("job_start", time_ns, "slurm", node, job_id, sluid, user, run)
            for text, doubtful in self._bodies(dice, job, node, user, time_ns):
                line = _LOG % (time_ns, "slurm", node, job_id, sluid, user, dice.choice(("stdout", "stderr")), text)
                if doubtful:
                    self.doubtful += 1
                    line = line.replace('"received":1', '"received":1,"doubtful":true')
                yield line
            for run in range(restarts + 1):
                if dice.random() < 0.999:
                    self.started[job, node, run] -= 1
                    yield _JOB % ("job_end", time_ns + 9, "slurm", node, job_id, sluid, user, run)
            if dice.random() < 0.001:
                dropped = dice.randrange(1, 500)
                self.lost.setdefault(node, []).append(dropped)
                yield json.dumps(
                    {"v": 1, "type": "loss", "time": time_ns, "slurm": {"cluster": "slurm", "node": node},
                     "scraper": {"reported": "relay dropped", "dropped": dropped}}
                ) + "\n"  # fmt: skip

    def _bodies(
        self, dice: random.Random, job: str, node: str, user: str, time_ns: int
    ) -> "Iterator[tuple[str, bool]]":
        for number in range(self.chatter):
            yield f'"iteration {number} of \\u00e9 eessi-arch-guard: reloaded 3 modules\\n"', dice.random() < 0.01
        day = f"2026-08-{1 + (time_ns - START_NS) // DAY_NS:02d}"
        fate = dice.random()
        was, now = dice.sample(_TARGETS, 2)
        if dice.random() < 0.2:
            was, now = (f"{side} {dice.choice(_ACCELERATORS)}" for side in (was, now))
        if fate < 0.05:
            body = message.reloaded(dice.randrange(1, 99), node, f"{was}->{now}")
            self.said.append((job, node, user, day, "reloaded", was, now, ""))
        elif fate < 0.07:
            now = dice.choice(_TOKENS)
            body = message.failed(node, f"{was}->{now}", faults.SENTENCES[now])
            self.said.append((job, node, user, day, "failed", was, now, now))
        elif fate < 0.08:
            body = message.failed(node, f"{was}->{now}", faults.SENTENCES["modules-missing"] + " (a->b: c)")
            self.said.append((job, node, user, day, "failed", was, now, "modules-missing"))
        elif fate < 0.085:
            body = message.skipped("ValueError: x")
            self.said.append((job, node, user, day, "skipped", "", "", "ValueError: x"))
        elif fate < 0.1:
            body = message.nothing("target already matches this node")
        else:
            return
        yield json.dumps(body + "\n"), False
        if dice.random() < 0.2:
            # The next step of the job says it again.
            yield json.dumps(body + "\n"), False
            if "nothing to do" not in body:
                self.said.append(self.said[-1])

    def truth(self, by: str) -> "dict[str, Any]":
        """What a report must say, counted the slow way from the truth."""
        said = self.said
        reloaded = {row[0] for row in said if row[4] == "reloaded"}
        failed = {row[0] for row in said if row[4] == "failed"}
        relayed = len(self.seen_jobs)

        def rows(kind: str, names: "tuple[str, ...]", places: "tuple[int, ...]") -> "list[dict[str, Any]]":
            found = []
            for key in {tuple(row[place] for place in places) for row in said if row[4] == kind}:
                mine = [row for row in said if row[4] == kind and tuple(row[place] for place in places) == key]
                found.append(
                    {
                        **dict(zip(names, key)),
                        "lines": len(mine),
                        "jobs": len({row[0] for row in mine}),
                        "nodes": len({row[1] for row in mine}),
                    }
                )
            return sorted(found, key=lambda row: (-row["jobs"], -row["lines"], *(row[name] for name in names)))

        def key_of(row: "tuple[str, ...]", what: str) -> str:
            if what == "target":
                return f"{row[5]}->{row[6]}" if row[5] else "unknown"
            return {"reason": row[7] or "reloaded", "node": row[1], "user": row[2], "day": row[3]}[what]

        def groups(what: str) -> "list[dict[str, Any]]":
            heaps: dict[str, list[tuple[str, ...]]] = {}
            for row in said:
                heaps.setdefault(key_of(row, what), []).append(row)
            found = [
                {
                    "key": key,
                    **{
                        f"{kind}_jobs": len({row[0] for row in heap if row[4] == kind})
                        for kind in ("reloaded", "failed", "skipped")
                    },
                    "lines": len(heap),
                }
                for key, heap in heaps.items()
            ]
            return sorted(found, key=lambda row: (-row["failed_jobs"], -row["reloaded_jobs"], row["key"]))

        return {
            "records": self.records,
            "by": by,
            "jobs": {
                "relayed": relayed,
                "nodes": len(self.seen_nodes),
                "reloaded": len(reloaded),
                "failed": len(failed),
                "affected": len(reloaded | failed),
                "share": round(len(reloaded | failed) / relayed, 4),
                "unended": sum(1 for left in self.started.values() if left > 0),
            },
            "reloads": rows("reloaded", ("was", "now"), (5, 6)),
            "failures": rows("failed", ("was", "reason"), (5, 7)),
            "skipped": rows("skipped", ("reason",), (7,)),
            "groups": groups(by),
            "days": sorted(groups("day"), key=lambda row: row["key"]),
            "worst_nodes": groups("node")[:10],
            "losses": {
                "reports": sum(map(len, self.lost.values())),
                "nodes": len(self.lost),
                "records_at_least": sum(map(max, self.lost.values())),
                "doubtful_lines": self.doubtful,
            },
        }


def written(fleet: Fleet, path: Path) -> Path:
    """The fleet's records as a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(fleet.lines())
    return path
