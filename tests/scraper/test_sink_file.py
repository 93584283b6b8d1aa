# SPDX-License-Identifier: GPL-2.0-or-later
import contextlib
import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from guard.base.faults import NodeFault
from guard.scraper import spool
from guard.scraper.sinks.file import FileSink
from tests.conftest import need_program
from tests.scraper import records
from tests.scraper.lines import Bench, items, many

DAY_NS = 86400 * 10**9


def sink(folder: Path, **more: Any) -> FileSink:
    options: dict[str, Any] = {
        "per": "day",
        "max_bytes": 1 << 30,
        "max_age_s": 1e9,
        "keep_days": 0,
        "mode": 0o640,
        "keep": lambda _: None,
        "kept": {},
        **more,
    }
    return FileSink(str(folder), **options)


def names(folder: Path) -> "list[str]":
    return sorted(path.name for path in folder.iterdir())


def bodies(folder: Path) -> "list[str]":
    """The bodies in all files, each file's in its order, files in the order of their age."""
    found = []
    for path in sorted(folder.glob("*.ndjson"), key=lambda path: path.stat().st_mtime_ns):
        found += [json.loads(line)["body"] for line in path.read_bytes().splitlines()]
    return found


def opened_count(folder: Path) -> int:
    """How many files below folder this process has open; threads of other tests may open and close what they like."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
    return count


LINES = [f"line {number}\n" for number in range(20)]


def test_a_file_a_day_by_the_records_own_time(tmp_path: Path) -> None:
    sink(tmp_path / "out").send(items([records.log("a", DAY_NS - 1), records.log("b", DAY_NS)]))
    assert names(tmp_path / "out") == ["1970-01-01.ndjson", "1970-01-02.ndjson"]
    assert (tmp_path / "out" / "1970-01-01.ndjson").stat().st_mode & 0o777 == 0o640


def test_a_file_a_job(tmp_path: Path) -> None:
    what = [records.log("a"), records.job("job_end"), records.log("b", job_id=175, sluid="sB"), records.log("c")]
    sink(tmp_path / "out", per="job").send(items(what))
    assert names(tmp_path / "out") == ["slurm.174.sA0SM5EFW65700.ndjson", "slurm.175.sB.ndjson"]


def test_a_record_cannot_choose_a_path(tmp_path: Path) -> None:
    hostile = [records.log("a", cluster="../../etc"), records.log("b", sluid="x/../../y"), records.log("c", cluster="")]
    hostile += [records.log("d", sluid="s" * 5000), records.log("e", cluster="..")]
    sink(tmp_path / "out", per="job").send(items(hostile))
    assert names(tmp_path) == ["out"]
    assert len(names(tmp_path / "out")) == 5
    assert all(len(name) < 255 and not name.startswith(".") for name in names(tmp_path / "out"))


def test_jq_reads_every_line_and_the_exact_time(tmp_path: Path) -> None:
    jq = need_program("jq")
    what = [records.log('a\u2028\u00e9\U0001f600 \x1b \\u0000 " \\\n'), records.job("job_start"), *many(5)]
    sink(tmp_path / "out").send(items(what))
    files = [str(path) for path in (tmp_path / "out").iterdir()]
    done = subprocess.run([jq, "-c", "[.type, (.body // null)]", *files], capture_output=True, text=True, check=True)
    read = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert read == [[fields["type"], fields.get("body")] for fields in what]


def test_a_full_file_is_renamed_and_the_next_one_begun(tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = sink(out, max_bytes=1000)
    for number in range(20):
        to.send(items(many(1, number)))
    assert len(names(out)) > 3
    assert sorted(bodies(out)) == sorted(LINES)
    assert max(path.stat().st_size for path in out.iterdir()) < 1000 + 400


def test_a_reader_of_a_renamed_file_sees_no_byte_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = sink(out, max_bytes=1000)
    to.send(items(many(3)))
    with open(out / names(out)[0], "rb") as reader:
        before = reader.read()
        for number in range(20):
            to.send(items(many(1, number)))
        reader.seek(0)
        assert reader.read().startswith(before)


def test_an_old_file_is_renamed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = sink(out, max_age_s=0.0)
    to.send(items(many(1)))
    to.send(items(many(1, 1)))
    assert len(names(out)) == 2
    to.idle()
    assert all("T" in name for name in names(out))


def test_files_older_than_the_days_to_keep_are_removed_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = sink(out, keep_days=3)
    to.send(items(many(1)))
    for name, days in (("2020-01-01.ndjson", 4), ("2020-01-02.ndjson", 2), ("notes.txt", 9)):
        (out / name).write_bytes(b"")
        os.utime(out / name, (time.time() - days * 86400,) * 2)
    to.idle()
    assert names(out) == ["2020-01-02.ndjson", "2026-08-06.ndjson", "notes.txt"]


def test_a_file_that_somebody_moved_away_is_begun_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    to = sink(out)
    to.send(items(many(1)))
    name = names(out)[0]
    (out / name).rename(out / "moved")
    to.send(items(many(1, 1)))
    assert names(out) == [name, "moved"]
    assert (out / name).read_bytes().count(b"\n") == (out / "moved").read_bytes().count(b"\n") == 1


def test_sighup_closes_what_is_open(tmp_path: Path) -> None:
    to = sink(tmp_path / "out")
    to.send(items(many(1)))
    assert opened_count(tmp_path) == 1
    to.reopen()
    assert opened_count(tmp_path) == 0
    to.send(items(many(1, 1)))
    to.close()
    assert bodies(tmp_path / "out") == LINES[:2]


def test_open_files_are_bounded_and_none_is_lost_for_it(tmp_path: Path) -> None:
    to = sink(tmp_path / "out", per="job", open_max_count=5)
    for round_number in range(3):
        for job_id in range(30):
            to.send(items([records.log(f"{round_number}\n", job_id=job_id)]))
            assert opened_count(tmp_path) <= 5
    assert len(names(tmp_path / "out")) == 30
    for path in (tmp_path / "out").iterdir():
        assert [json.loads(line)["body"] for line in path.read_bytes().splitlines()] == ["0\n", "1\n", "2\n"]


def test_a_full_disk_is_survived_and_leaves_only_whole_lines(tmp_path: Path) -> None:
    out = tmp_path / "out"
    bench = Bench(tmp_path, sink(out), many(5))
    bench.run()
    size = os.path.getsize(out / names(out)[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    bench.add(many(15, 5))
    seen: list[bytes] = []

    def wait(_seconds: float) -> None:
        """While the disk is full only what was whole is there; then somebody makes room."""
        seen.append((out / names(out)[0]).read_bytes())
        if len(seen) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    bench.pump._wait = wait
    # Like a disk with 700 bytes left: the kernel takes a part of the batch, then refuses.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, hard))
    try:
        bench.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(len(text) == size and text.endswith(b"\n") for text in seen)
    assert bodies(out) == LINES
    assert bench.counters.get("sink_failures_total", sink="s") == 3


def test_a_scraper_killed_between_writing_and_its_cursor_doubles_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    bench = Bench(tmp_path, None, many(5))

    def keep(note: "dict[str, object]") -> None:
        spool.save_cursor(bench.folder, bench.name, "s", bench.reader.cursor, note)

    bench.pump._sink = sink(out, keep=keep)
    bench.run()
    bench.add(many(15, 5))
    piece = bench.reader.read(100, 1 << 20)
    assert piece is not None
    # Written, and then no cursor: as after kill -9.
    bench.pump._sink.send([("x", line) for line in piece.lines])
    assert bodies(out) == LINES
    cursor, kept = spool.load_cursor(bench.folder, bench.name, "s")
    assert cursor is not None and cursor.number == 5
    again = Bench(tmp_path, sink(out, kept=kept), [])
    assert bodies(out) == LINES[:5]
    again.run()
    assert bodies(out) == LINES


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").write_text("mine")
    os.symlink(tmp_path / "victim", tmp_path / "out" / "2026-08-06.ndjson")
    with pytest.raises(NodeFault):
        sink(tmp_path / "out").send(items(many(1)))
    assert (tmp_path / "victim").read_text() == "mine"
