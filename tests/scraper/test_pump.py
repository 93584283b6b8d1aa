# SPDX-License-Identifier: GPL-2.0-or-later
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base.faults import NodeFault
from guard.scraper import spool
from guard.scraper.limits import ALL_REFUSED_S
from guard.scraper.sinks.verdict import Verdict
from tests.scraper.lines import Bench, many


class Scripted:
    """A sink that gives what is in its script, then takes everything. taken: bodies, in order."""

    lines_max = 8
    bytes_max = 1 << 20

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.taken: list[str] = []
        self.ids: list[str] = []
        self.tries: list[int] = []

    def send(self, items: "list[tuple[str, bytes]]") -> Verdict:
        self.tries.append(len(items))
        step = self.script.pop(0) if self.script else Verdict()
        if callable(step):
            step = step(items)
        if isinstance(step, Exception):
            raise step
        if not step.split:
            for index, (item_id, line) in enumerate(items):
                if index not in step.refused and index not in step.retry:
                    self.taken.append(json.loads(line)["body"])
                    self.ids.append(item_id)
        return step

    def reopen(self) -> None: ...
    def idle(self) -> None: ...
    def close(self) -> None: ...


DOWN = NodeFault("sink-failed", "nobody there")


def bodies(count: int) -> "list[str]":
    return [f"line {number}\n" for number in range(count)]


def test_everything_arrives_in_order_with_its_own_id(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(), many(30))
    bench.run()
    assert sink.taken == bodies(30)
    assert sink.ids == [f"{bench.name}-{number}" for number in range(30)]
    assert bench.delivered() == 30


def test_a_sink_that_is_down_gets_the_same_again_with_the_same_ids(tmp_path: Path) -> None:
    ids: list[list[str]] = []

    def note(items: "list[tuple[str, bytes]]") -> NodeFault:
        ids.append([item_id for item_id, _ in items])
        return DOWN

    bench = Bench(tmp_path, sink := Scripted(note, note, note), many(8))
    bench.run()
    assert sink.taken == bodies(8)
    assert ids == [sink.ids] * 3
    assert bench.counters.get("sink_failures_total", sink="s") == 3
    assert bench.counters.get("sink_retried_lines_total", sink="s") == 24
    assert bench.told == ["sink s is down: nobody there", "sink s is well again"]


def test_the_wait_doubles_up_to_its_bound_and_begins_anew_once_the_sink_is_well(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted(*[DOWN] * 10, Verdict(), DOWN), many(16))
    bench.run()
    assert bench.waited_s == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 0.25]


def test_a_part_of_the_wait_is_random(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted(DOWN), many(1))
    bench.pump._jitter = lambda: 0.0
    bench.run()
    assert bench.waited_s == [0.125]


def test_what_the_peer_asks_to_wait_is_waited_and_bounded(tmp_path: Path) -> None:
    again = [0, 1]
    bench = Bench(tmp_path, Scripted(Verdict(retry=again, wait_s=7.0), Verdict(retry=again, wait_s=9999.0)), many(2))
    bench.run()
    assert bench.waited_s == [7.25, 300.5]


def test_one_refused_line_is_kept_aside_and_the_others_arrive(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(Verdict(refused={3: "no such field"})), many(8))
    bench.run()
    assert sink.taken == [body for body in bodies(8) if body != "line 3\n"]
    assert (bench.delivered(), bench.dropped("refused")) == (7, 1)
    entry = json.loads(Path(bench.folder, "refused.s.ndjson").read_bytes())
    assert (entry["reason"], entry["why"], entry["id"]) == ("refused", "no such field", f"{bench.name}-3")
    assert json.loads(entry["raw"])["body"] == "line 3\n"


def test_of_a_batch_that_is_refused_as_a_whole_only_the_guilty_line_is_lost(tmp_path: Path) -> None:
    def judge(items: "list[tuple[str, bytes]]") -> Verdict:
        guilty = any(b"line 5" in line for _, line in items)
        return Verdict(split="too-large", why="HTTP 413") if guilty else Verdict()

    bench = Bench(tmp_path, sink := Scripted(*[judge] * 20), many(8))
    bench.run()
    assert sink.taken == [body for body in bodies(8) if body != "line 5\n"]
    assert sink.tries == [8, 4, 4, 2, 1, 1, 2]
    assert (bench.delivered(), bench.dropped("too-large")) == (7, 1)


REFUSED = Verdict(split="refused", why="HTTP 400 json isn't supported")


def test_a_sink_that_refuses_every_line_is_set_up_wrongly_and_loses_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(*[REFUSED] * 45, Verdict()), many(8))
    bench.run()
    assert sink.taken == bodies(8)
    assert bench.dropped("refused") == 0
    assert bench.counters.get("sink_retried_lines_total", sink="s") == 24
    assert bench.waited_s == [0.25, 0.5, 1.0]
    assert bench.told == [
        "sink s is down: it refuses every line: HTTP 400 json isn't supported",
        "sink s is well again",
    ]


def test_after_a_day_of_that_its_lines_are_set_aside(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted(*[REFUSED] * 100_000), many(20))
    bench.run()
    assert (bench.delivered(), bench.dropped("refused")) == (0, 20)
    assert ALL_REFUSED_S <= sum(bench.waited_s) < ALL_REFUSED_S + 30


def test_a_refused_line_at_the_head_waits_for_others_and_is_then_set_aside(tmp_path: Path) -> None:
    def judge(items: "list[tuple[str, bytes]]") -> Verdict:
        return Verdict(refused={index: "odd" for index, (_, line) in enumerate(items) if b"line 0" in line})

    bench = Bench(tmp_path, sink := Scripted(*[judge] * 20), many(1))
    assert not bench.pump.step(lambda: True)
    assert bench.dropped("refused") == 0
    bench.add(many(1, 1))
    bench.run()
    assert sink.taken == ["line 1\n"]
    assert bench.dropped("refused") == 1
    assert bench.told[1:] == ["sink s is well again", "sink s does not get a line, refused, more are only counted: odd"]


def test_a_line_that_the_disk_has_damaged_is_set_aside_and_holds_nothing_up(tmp_path: Path) -> None:
    def parse(items: "list[tuple[str, bytes]]") -> Verdict:
        for _, line in items:
            json.loads(line)
        return Verdict()

    bench = Bench(tmp_path, sink := Scripted(*[parse] * 9), many(8))
    (segment,) = Path(bench.folder).glob("*.ndjson")
    data = bytearray(segment.read_bytes())
    second = data.index(b"\n") + 1
    data[second : second + 9] = bytes(9)
    segment.write_bytes(data)
    bench.run()
    assert sink.taken == [body for body in bodies(8) if body != "line 1\n"]
    assert (bench.delivered(), bench.dropped("damaged")) == (7, 1)
    entry = json.loads(Path(bench.folder, "refused.s.ndjson").read_bytes())
    assert (entry["reason"], entry["id"]) == ("damaged", f"{bench.name}-1")


def test_a_refused_line_that_comes_alone_to_a_sink_that_takes_lines_is_set_aside_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(Verdict(), REFUSED), many(8))
    bench.run()
    bench.add(many(1, 8))
    assert bench.pump.step(lambda: True)
    assert (sink.tries, bench.dropped("refused"), bench.waited_s) == ([8, 1], 1, [])


def test_lines_that_were_refused_without_a_name_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted(Verdict(unnamed_count=2, why="odd")), many(8))
    bench.run()
    assert (bench.delivered(), bench.dropped("refused")) == (6, 2)


def test_without_patience_a_sink_that_is_down_is_tried_once_and_its_place_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(Verdict(), DOWN, DOWN), many(16))
    assert bench.pump.step(lambda: False)
    assert not bench.pump.step(lambda: False)
    assert (sink.tries, bench.waited_s) == ([8, 8], [])
    again = Bench(tmp_path, later := Scripted(), [])
    again.run()
    assert later.taken == bodies(16)[8:]


def test_a_killed_sink_begins_again_at_its_last_whole_batch_with_the_same_ids(tmp_path: Path) -> None:
    bench = Bench(tmp_path, first := Scripted(Verdict(), Verdict(retry=[5])), many(16))
    bench.pump.step(lambda: True)
    bench.pump.step(lambda: False)
    again = Bench(tmp_path, second := Scripted(), [])
    again.run()
    assert set(first.ids) | set(second.ids) == {f"{bench.name}-{number}" for number in range(16)}
    assert second.ids == [f"{bench.name}-{number}" for number in range(8, 16)]


def test_a_driven_hour_of_silence_loses_only_what_the_spool_could_not_hold_and_counts_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sink := Scripted(), [])
    bench.writer = spool.Writer(bench.folder, 0, 4000)
    passed_s = 0.0
    written = 0

    def wait(seconds: float) -> None:
        """An hour in which ten lines come each second and the keeper sweeps."""
        nonlocal passed_s, written
        for _ in range(int(seconds)):
            bench.add(many(10, written))
            written += 10
            spool.sweep(bench.folder, [bench.reader.cursor], 40_000)
        passed_s += seconds

    def down(_items: object) -> Any:
        return DOWN if passed_s < 3600 else Verdict()

    bench.pump._wait = wait
    sink.script = [down] * 500
    bench.add(many(10))
    written = 10
    bench.run()
    lost = bench.dropped("spool-full")
    assert len(sink.taken) + lost == written > 30_000
    assert lost > 0
    assert sink.taken[-1] == f"line {written - 1}\n"
    assert [int(body.split()[1]) for body in sink.taken] == sorted({int(body.split()[1]) for body in sink.taken})
    assert f"sink s: {lost} lines were thrown away unread, the spool was full" in bench.told


@given(st.lists(st.sampled_from(["down", "half", "refuse", "split", "well"]), max_size=30))
def test_whatever_a_sink_does_each_line_is_delivered_once_or_counted(
    tmp_path_factory: pytest.TempPathFactory, moods: "list[str]"
) -> None:
    def acted(mood: str) -> Any:
        def act(items: "list[tuple[str, bytes]]") -> Any:
            if mood == "down":
                return DOWN
            if mood == "half":
                return Verdict(retry=list(range(0, len(items), 2)))
            if mood == "refuse":
                return Verdict(refused={len(items) - 1: "no"})
            return Verdict(split="refused") if mood == "split" else Verdict()

        return act

    bench = Bench(tmp_path_factory.mktemp("pump"), sink := Scripted(*map(acted, moods)), many(20))
    bench.run()
    assert len(sink.taken) == len(set(sink.taken)) == bench.delivered()
    assert len(sink.taken) + bench.dropped("refused") == 20
    assert bench.reader.cursor.number == 20
