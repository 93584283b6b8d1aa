# SPDX-License-Identifier: GPL-2.0-or-later
"""Datagrams through all that lies between socket and spool. FUZZ_CASES=100000 makes the last test the long one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.scraper import config, drops, losses, receive, receiver, rejoin, spool
from guard.scraper.counters import Counters
from tests.scraper import records
from tests.scraper.test_decode import JUNK
from tests.scraper.test_rejoin import RECORDS

CASES = int(os.environ.get("FUZZ_CASES", "60"))


class Bench:
    """A Room on a spool of its own."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = str(folder / "spool")
        tables = {"socket": "/s", "spool": self.folder, "sink": [{"kind": "journald"}], **more}
        self.config = config.parse(tables)
        spool.prepare(self.folder)
        self.counters = Counters(["journald"])
        self.writer = spool.Writer(self.folder)
        self.chains = rejoin.Rejoin(self.config.join_unbuffered)
        self.room = receiver.Room(self.config, self.chains, self.counters, self.writer, lambda: False)

    def take(self, *raws: bytes, refused: "tuple[tuple[str, bytes, int], ...]" = (), pid: int = 7) -> None:
        batch = receive.Batch()
        batch.datagrams = [(raw, 1000 + number, pid) for number, raw in enumerate(raws)]
        batch.refused = list(refused)
        self.room.take(batch)

    def lines(self) -> "list[dict[str, Any]]":
        piece = spool.Reader(self.folder, None).read(1 << 20, 1 << 30)
        return [json.loads(text) for text in piece.lines] if piece else []

    def quarantined(self) -> "list[str]":
        path = Path(self.folder, "quarantine.ndjson")
        return [json.loads(text)["reason"] for text in path.read_bytes().splitlines()] if path.exists() else []


def test_one_bad_record_costs_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.take(records.raw(records.log("a\n")), b"junk", b"\xff", records.raw(records.log("b\n")))
    assert [text["body"] for text in bench.lines()] == ["a\n", "b\n"]
    assert bench.quarantined() == ["not-json", "not-utf8"]
    assert bench.counters.get("received_records_total") == 4


def test_a_truncated_datagram_is_kept_as_its_head_and_marks_what_its_sender_has_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.take(records.raw(records.log("a", partial=True)))
    bench.take(refused=(("truncated", b'{"v":1', 7),))
    bench.take(records.raw(records.log("b\n")))
    assert bench.lines()[0]["scraper"]["doubtful"] is True
    assert bench.quarantined() == ["truncated"]
    assert bench.counters.get("refused_records_total", "truncated") == 1


def test_a_nul_stays_the_text_that_relay_io_made_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.take(records.raw(records.log("a\\u0000b\n")))
    assert bench.lines()[0]["body"] == "a\\u0000b\n"


def test_a_drop_report_of_slurmd_itself_is_a_line_without_a_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = tmp_path / "slurmd.log"
    log.write_bytes(b"")
    follower = losses.Losses(str(log), str(tmp_path))
    bench.take(records.raw(records.job("job_start")))
    log.write_bytes(b"[/s] the relay is not draining fast enough\nnothing of note\n")
    bench.room.look(follower, 1.0)
    loss = bench.lines()[-1]
    assert (loss["type"], loss["slurm"]) == ("loss", {"cluster": "slurm", "node": "node1"})
    assert drops.parse(loss["scraper"]["reported"].encode()) is not None


def test_counters_go_on_where_the_process_before_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counters.set("joined_lines_total", 5, "line")
    again = receiver.Room(bench.config, bench.chains, bench.counters, bench.writer, lambda: False)
    again.look(None, 0.0)
    assert bench.counters.get("joined_lines_total", "line") == 5


@settings(max_examples=CASES)
@given(
    st.lists(st.one_of(RECORDS.map(lambda some: [*map(records.raw, some)]), JUNK.map(lambda raw: [raw])), max_size=12)
)
def test_any_bytes_in_any_order_are_lines_or_counted_refusals(
    tmp_path_factory: pytest.TempPathFactory, heaps: "list[list[bytes]]"
) -> None:
    bench = Bench(tmp_path_factory.mktemp("room"))
    for heap in heaps:
        bench.take(*heap)
    received = sum(map(len, heaps))
    bench.room.look(None, 0.0)
    get = bench.counters.get
    assert get("received_records_total") == received
    passed = get("lines_total") - bench.counters.total("joined_lines_total")
    assert passed + get("joined_records_total") + bench.counters.total("refused_records_total") == received
    assert get("lines_total") == len(bench.lines())
    assert get("open_chain_bytes") <= 8 << 20
