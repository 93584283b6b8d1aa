# SPDX-License-Identifier: GPL-2.0-or-later
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guard.base import message
from guard.report import duck, sql, tally
from tests.report.fleet import DAY_NS, START_NS, Fleet, written
from tests.scraper import records

ROOT = Path(__file__).parents[2]
BOTH = ("plain", "duckdb")


def counted(path: Path, engine: str, since_ns: int = 0, by: str = "target") -> "dict[str, Any]":
    if engine == "duckdb":
        return duck.result([str(path)], since_ns, by)
    counts = tally.Tally(since_ns, by)
    with open(path, "rb") as file:
        for line in file:
            counts.add(line)
    return counts.result()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Fleet, Path]":
    """1,000 nodes, 100,000 jobs."""
    fleet = Fleet(1000, 100_000, chatter=1)
    return fleet, written(fleet, tmp_path_factory.mktemp("large") / "fleet.ndjson")


@pytest.mark.parametrize("engine", BOTH)
def test_a_fleet_of_1000_nodes_and_100_000_jobs_is_counted_right(large: "tuple[Fleet, Path]", engine: str) -> None:
    fleet, path = large
    result = counted(path, engine)
    truth = fleet.truth("target")
    assert {name: result[name] for name in truth} == truth
    assert truth["jobs"]["reloaded"] > 5000 and truth["jobs"]["unended"] > 50 and len(truth["worst_nodes"]) == 10


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Fleet, Path]":
    fleet = Fleet(20, 3000, seed=2)
    return fleet, written(fleet, tmp_path_factory.mktemp("small") / "fleet.ndjson")


@pytest.mark.parametrize("by", tally.BY)
@pytest.mark.parametrize("engine", BOTH)
def test_every_grouping_is_right(small: "tuple[Fleet, Path]", engine: str, by: str) -> None:
    fleet, path = small
    result = counted(path, engine, by=by)
    truth = fleet.truth(by)
    assert {name: result[name] for name in truth} == truth


def test_both_engines_give_the_same_from_a_moment_on(small: "tuple[Fleet, Path]") -> None:
    since_ns = START_NS + 4 * DAY_NS
    plain, by_duckdb = (counted(small[1], engine, since_ns) for engine in BOTH)
    assert plain == by_duckdb
    assert plain["first_ns"] >= since_ns and plain["days"][0]["key"] == "2026-08-05"


def write(path: Path, *what: "dict[str, Any] | bytes") -> Path:
    lines = [fields if isinstance(fields, bytes) else json.dumps(fields).encode("utf-8") for fields in what]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def said(body: str, **more: Any) -> "dict[str, Any]":
    return records.log(body + "\n", **more)


ODD: "list[tuple[str, list[Any]]]" = [
    ("nothing", []),
    ("junk", [b"junk", b"{}", b"[1]", b'{"type":"log"}', b"", records.log("x\n"), b'{"v":1,"type":"lo']),
    ("an end before its start", [records.job("job_end"), records.job("job_start")]),
    ("an end of another run", [records.job("job_end", restart_count=1), records.job("job_start")]),
    ("a start twice", [records.job("job_start"), records.job("job_start"), records.job("job_end")]),
    ("an empty sluid", [records.log("x\n", sluid=""), records.log("y\n", sluid="")]),
    ("two newlines", [said(message.reloaded(1, "n", "a/b->c/d") + "\n")]),
    ("a carriage return", [said(message.reloaded(1, "n", "a/b->c/d") + "\r")]),
    ("no newline", [records.log(message.reloaded(1, "n", "a/b->c/d"))]),
    ("an empty loaded side", [said(message.reloaded(1, "n", "->c/d")), said(message.failed("n", "->timeout", "x"))]),
    ("arrows", [said(message.failed("n", "a->b: c->timeout", "x->y: z")), said(message.reloaded(1, "n", "a->b->c/d"))]),
    ("odd letters", [said(message.skipped("\u00e9'\"\\%")), said(message.failed("n", "\u00e9->timeout", "\u2192"))]),
    ("a new sentence", [said("eessi-arch-guard: something new")]),
    ("another user", [said(message.skipped("x"), user_name="o'hara \u00e9")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "what"), ODD, ids=[row[0] for row in ODD])
def test_both_engines_agree_on_odd_input(name: str, what: "list[Any]", tmp_path: Path) -> None:
    path = write(tmp_path / "x.ndjson", *what)
    for by in tally.BY:
        assert counted(path, "plain", by=by) == counted(path, "duckdb", by=by)


def test_the_guard_counts_once_a_job_whatever_the_number_of_its_steps(tmp_path: Path) -> None:
    body = message.reloaded(34, "n1", "x86_64/amd/zen4->x86_64/amd/zen3")
    path = write(tmp_path / "x", *(said(body, step_id=str(step)) for step in range(5)), said(body, sluid="sB"))
    (row,) = counted(path, "plain")["reloads"]
    assert row == {"was": "x86_64/amd/zen4", "now": "x86_64/amd/zen3", "lines": 6, "jobs": 2, "nodes": 1}


def test_the_node_is_the_records_and_not_the_one_that_the_line_claims(tmp_path: Path) -> None:
    path = write(tmp_path / "x", said(message.failed("claimed", "a/b->timeout", "x"), node="true"))
    assert [row["key"] for row in counted(path, "plain")["worst_nodes"]] == ["true"]


def test_a_line_in_the_middle_of_other_output_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "x", said("echo " + message.skipped("x")))
    assert counted(path, "plain")["skipped"] == []


MEMORY = """
import sys
from guard.report import gather, tally
counts = tally.Tally()
for line in gather.lines(sys.argv[1]):
    counts.add(line)
counts.result()
with open("/proc/self/status") as file:
    print([text.split()[1] for text in file if text.startswith("VmHWM")][0])
"""


def test_memory_grows_with_jobs_and_not_with_records(tmp_path: Path) -> None:
    def peak_kib(chatter: int) -> int:
        path = written(Fleet(50, 2000, chatter), tmp_path / f"{chatter}.ndjson")
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    assert peak_kib(60) - peak_kib(1) < 4096


def test_the_documentation_shows_the_sql_that_is_run() -> None:
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for name in ("RECORDS", "SAID", "TOTALS", "UNENDED", "LOSSES", "RELOADS", "FAILURES", "SKIPPED", "GROUPS"):
        assert getattr(sql, name).strip() in text, name
