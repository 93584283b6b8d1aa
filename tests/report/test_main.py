# SPDX-License-Identifier: GPL-2.0-or-later
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guard.base.faults import SiteFault
from guard.report import main, reasons, table, tally
from tests.report.fleet import Fleet, written

ROOT = Path(__file__).parents[2]
DAY_NS = 86400 * 10**9


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(Fleet(20, 1500), tmp_path_factory.mktemp("fleet") / "fleet.ndjson")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> "tuple[int, str, str]":
    status = main.main(list(arguments), {})
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_holds_all_numbers_whatever_the_engine_and_the_form(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.ndjson.gz").write_bytes(gzip.compress(fleet.read_bytes()))
    answers = [
        run(capsys, str(fleet), "--json"),
        run(capsys, str(tmp_path / "fleet.ndjson.gz"), "--json"),
        run(capsys, str(fleet), "--json", "--engine", "duckdb"),
        run(capsys, str(tmp_path / "fleet.ndjson.gz"), "--json", "--engine", "duckdb"),
    ]
    assert len({answer[1] for answer in answers}) == 1
    assert json.loads(answers[0][1])["jobs"]["relayed"] == 1500


def test_several_files_are_one_fleet_in_any_order(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = fleet.read_bytes().splitlines(keepends=True)
    (tmp_path / "1").write_bytes(b"".join(lines[:2000]))
    (tmp_path / "2").write_bytes(b"".join(lines[2000:]))
    whole = run(capsys, str(fleet), "--json")
    for names in (("1", "2"), ("2", "1")):
        assert run(capsys, *(str(tmp_path / name) for name in names), "--json") == whole


def test_the_page_is_written_whole(fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(fleet), "--html", str(tmp_path / "r.html"))[:2] == (0, "")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").endswith("</html>\n")
    status, _, said = run(capsys, str(fleet), "--html", str(tmp_path / "no" / "r.html"))
    assert status == 1 and "cannot be written" in said


WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rich", "orjson", "duckdb", "zstandard"):
            raise ImportError(name)
sys.meta_path.insert(0, Finder())
from guard.report import main
sys.exit(main.main(sys.argv[1:], {}))
"""


def without_extras(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", WITHOUT, *arguments], env=environ, capture_output=True, text=True)


def test_without_any_extra_the_table_is_plain_and_the_numbers_are_the_same(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = without_extras(str(fleet))
    assert "Nodes with most failures" in done.stdout and done.stdout.startswith("1500 jobs on 20 nodes, ")
    assert without_extras(str(fleet), "--json").stdout == run(capsys, str(fleet), "--json")[1]


def test_a_missing_extra_is_named_with_what_to_install(fleet: Path, tmp_path: Path) -> None:
    done = without_extras(str(fleet), "--engine", "duckdb")
    assert (done.returncode, "pip install 'eessi-arch-guard[report]'" in done.stderr) == (1, True)
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    assert "needs the package zstandard" in without_extras(str(tmp_path / "x.zst")).stderr


def test_the_rich_table_shows_the_same_rows(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, str(fleet), "--by", "day")
    for part in ("Reloaded", "Not reloaded", "By day", "2026-08-03", "Nodes with most failures"):
        assert part in out


def test_the_table_says_how_much_it_leaves_out() -> None:
    counts = tally.Tally()
    for line in Fleet(20, 3000).lines():
        counts.add(line.encode("utf-8"))
    assert "Reloaded (first 15 of " in table.plain(counts.result())


@pytest.mark.parametrize(
    ("text", "first_ns"),
    [
        ("", 0),
        ("1970-01-03", 2 * DAY_NS),
        ("1970-01-03T06:00", 2 * DAY_NS + DAY_NS // 4),
        ("1970-01-03T06:00:00+06:00", 2 * DAY_NS),
        ("7d", 3 * DAY_NS),
        ("36h", 10 * DAY_NS - DAY_NS * 3 // 2),
    ],
)
def test_since(text: str, first_ns: int) -> None:
    assert main.since_ns(text, 10 * DAY_NS) == first_ns


@pytest.mark.parametrize("text", ["yesterday", "7", "d", "2026-13-01", "-1d"])
def test_since_that_is_none(text: str) -> None:
    with pytest.raises(SiteFault) as caught:
        main.since_ns(text, 0)
    assert reasons.sentence(caught.value).startswith("--since must be a date")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, ""),
        ([], 2, "required: FILE"),
        (["x", "--by", "colour"], 2, "invalid choice"),
        (["x", "--json", "--html", "y"], 2, "not allowed with"),
        (["/no/such/file"], 1, "cannot be read"),
        (["/no/such/file", "--engine", "duckdb"], 1, "DuckDB could not count"),
    ],
)
def test_wrong_use(arguments: "list[str]", status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, *arguments)
    assert answer[0] == status and said in answer[2]


def test_a_reader_that_has_seen_enough_is_no_error(fleet: Path) -> None:
    code = "import sys; from guard.report import main; sys.exit(main.main(sys.argv[1:], {}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(fleet), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(60) == 0 and process.stderr.read() == b""
    process.stderr.close()
