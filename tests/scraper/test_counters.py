# SPDX-License-Identifier: GPL-2.0-or-later
import os
import subprocess
from pathlib import Path

from guard.scraper.counters import Counters
from tests.conftest import need_program


def test_promtool_takes_the_text_file_without_a_remark() -> None:
    counters = Counters(["files", "loki-1"])
    counters.add("refused_records_total", 3, "not-utf8")
    counters.add("sink_delivered_lines_total", 1 << 40, sink="loki-1")
    done = subprocess.run(
        [need_program("promtool"), "check", "metrics"],
        input=counters.prometheus(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_row_for_each_reason_and_sink_from_the_start() -> None:
    text = Counters(["files"]).prometheus()
    assert 'eessi_relay_scrape_refused_records_total{reason="truncated"} 0\n' in text
    assert 'eessi_relay_scrape_sink_dropped_lines_total{sink="files",reason="spool-full"} 0\n' in text
    assert text.count("# TYPE eessi_relay_scrape_refused_records_total counter\n") == 1


def test_the_table_shows_what_is_not_zero() -> None:
    counters = Counters(["files"])
    counters.add("refused_records_total", 3, "not-utf8")
    assert counters.table() == 'refused_records_total{reason="not-utf8"}  3\n'


def test_a_child_counts_for_its_parent() -> None:
    counters = Counters([])
    pid = os.fork()
    if pid == 0:
        counters.add("lines_total", 5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert counters.get("lines_total") == 5


def test_every_counter_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scraper.md").read_text(encoding="utf-8")
    missing = {name for name, _ in Counters(["x"]).rows if f"`{name}`" not in text}
    assert missing == set()
