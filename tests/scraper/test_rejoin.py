# SPDX-License-Identifier: GPL-2.0-or-later
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.scraper import decode, rejoin
from tests.scraper import records


def fed(what: "list[dict[str, Any]]", chains: "rejoin.Rejoin | None" = None, **how: Any) -> "list[dict[str, Any]]":
    """The lines that come of some records, pushed a second apart."""
    chains = chains or rejoin.Rejoin(**how)
    lines: list[bytes] = []
    for number, fields in enumerate(what):
        raw = records.raw(fields)
        chains.push(decode.record(raw), raw, 1000 + number, 77, float(number), lines)
    return [json.loads(text) for text in lines]


def logs(lines: "list[dict[str, Any]]") -> "list[tuple[str, str]]":
    """(body, what ended it) of the log lines; `-` for one that was not joined."""
    return [(text["body"], text["scraper"].get("ended", "-")) for text in lines if text["type"] == "log"]


def P(body: str, **more: Any) -> "dict[str, Any]":
    return records.log(body, partial=True, **more)


def U(body: str, **more: Any) -> "dict[str, Any]":
    return records.log(body, unbuffered=True, **more)


L = records.log
START, END = records.step("step_start"), records.step("step_end")

TABLE: "list[tuple[str, list[dict[str, Any]], list[tuple[str, str]]]]" = [
    ("a whole line passes", [L("a\n")], [("a\n", "-")]),
    ("pieces are joined with nothing between", [P("a"), P("b"), L("c\n")], [("abc\n", "line")]),
    ("the next line is its own", [P("a"), L("b\n"), L("c\n")], [("ab\n", "line"), ("c\n", "-")]),
    ("stdout and stderr are two", [P("o"), L("e\n", stream="stderr"), L("O\n")], [("e\n", "-"), ("oO\n", "line")]),
    ("tasks are two", [P("a"), P("b", task=1), L("A\n"), L("B\n", task=1)], [("aA\n", "line"), ("bB\n", "line")]),
    ("steps are two", [P("a"), L("b\n", step_id="1"), L("A\n")], [("b\n", "-"), ("aA\n", "line")]),
    ("nodes are two", [P("a"), L("b\n", node="n2"), L("A\n")], [("b\n", "-"), ("aA\n", "line")]),
    ("clusters are two", [P("a"), L("b\n", cluster="c2"), L("A\n")], [("b\n", "-"), ("aA\n", "line")]),
    ("jobs are two", [P("a"), L("b\n", job_id=9), L("A\n")], [("b\n", "-"), ("aA\n", "line")]),
    ("runs are two", [P("a"), L("b\n", sluid="sOTHER"), L("A\n")], [("b\n", "-"), ("aA\n", "line")]),
    ("echo -n fuga; exit", [START, P("fuga"), END], [("fuga", "step-end")]),
    ("another step's end ends nothing", [P("a"), records.step("step_end", step_id="1"), L("b\n")], [("ab\n", "line")]),
    ("another node's end ends nothing", [P("a"), records.step("step_end", node="n2"), L("b\n")], [("ab\n", "line")]),
    ("a step's end ends all its streams", [P("a"), P("b", stream="stderr"), P("c", task=1), END],
     [("a", "step-end"), ("b", "step-end"), ("c", "step-end")]),
    ("a job's end", [P("a"), P("b", step_id="batch"), records.job("job_end")], [("a", "job-end"), ("b", "job-end")]),
    ("a new run of the same id", [P("a"), records.job("job_start", sluid="sNEW", restart_count=1)], [("a", "new-run")]),
    ("another run's step end", [P("a"), records.step("step_end", sluid="sNEW")], [("a", "new-run")]),
    ("a step that starts again", [P("a"), START], [("a", "new-run")]),
    ("an unbuffered step under the same name", [P("a"), U("b\nc"), L("d\n")],
     [("a", "new-run"), ("b\nc", "-"), ("d\n", "-")]),
    ("unbuffered passes when not asked for", [U("ab"), U("c\n")], [("ab", "-"), ("c\n", "-")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "what", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_chains(name: str, what: "list[dict[str, Any]]", expected: "list[tuple[str, str]]") -> None:
    assert logs(fed(what)) == expected


def test_the_end_of_a_step_follows_the_lines_that_it_ended() -> None:
    assert [text["type"] for text in fed([P("a"), END])] == ["log", "step_end"]


def test_a_chain_ended_without_its_line_stays_partial_and_a_whole_one_does_not() -> None:
    assert "partial" in fed([P("a"), END])[0]
    assert "partial" not in fed([P("a"), L("b\n")])[0]


def test_a_joined_line_tells_its_first_and_last_times_and_pieces() -> None:
    (text,) = fed([P("a", time=100), P("b", time=200), L("c\n", time=300)])
    assert text["time"] == 100
    note = {"received": 1000, "received_last": 1002, "time_last": 300, "pieces": 3, "ended": "line"}
    assert text["scraper"] == note


def test_runs_without_a_sluid_are_told_apart_by_their_start() -> None:
    old, start, new = P("old"), records.job("job_start", restart_count=1), L("new\n")
    for fields in (old, start, new):
        del fields["slurm"]["sluid"]
    assert logs(fed([old, start, new])) == [("old", "new-run"), ("new\n", "-")]


def test_a_quiet_chain_ends_by_age_and_a_busy_one_does_not() -> None:
    chains = rejoin.Rejoin(age_s=60)
    assert fed([P("old"), P("busy", task=1)], chains) == []
    lines: list[bytes] = []
    raw = records.raw(P("!", task=1))
    chains.push(decode.record(raw), raw, 2000, 77, 50.0, lines)
    chains.expire(61.0, lines)
    assert logs([json.loads(text) for text in lines]) == [("old", "age")]
    chains.expire(111.0, lines)
    assert logs([json.loads(text) for text in lines]) == [("old", "age"), ("busy!", "age")]
    assert (chains.count(), chains.size_bytes) == (0, 0)


def test_a_line_longer_than_the_bound_is_given_in_parts_and_loses_nothing() -> None:
    given_ = logs(fed([P("x" * 400) for _ in range(5)] + [L("end\n")], chain_max_bytes=1000))
    assert [ended for _, ended in given_] == ["chain-full", "chain-full", "line"]
    assert "".join(body for body, _ in given_) == "x" * 2000 + "end\n"


def test_past_the_total_the_chain_that_was_quiet_longest_is_given() -> None:
    what = [P("a" * 400), P("b" * 400, task=1), P("A" * 400), P("c" * 4000, task=2)]
    assert logs(fed(what, chains_max_bytes=6000))[0] == ("b" * 400, "chains-full")


def test_a_last_piece_past_the_total_ends_its_own_line_and_no_more() -> None:
    assert logs(fed([P("a" * 400), L("b" * 9000), L("c\n")], chains_max_bytes=6000)) == [
        ("a" * 400 + "b" * 9000, "chains-full"),
        ("c\n", "-"),
    ]


def test_buffered_after_unbuffered_under_the_same_name_are_two() -> None:
    what = [U("a"), L("b\n"), P("c"), U("d\n")]
    assert logs(fed(what, join_unbuffered=True)) == [("a", "new-run"), ("b\n", "-"), ("c", "new-run"), ("d\n", "line")]


def test_past_the_count_the_chain_that_was_quiet_longest_is_given() -> None:
    assert logs(fed([P(str(task), task=task) for task in range(5)], chains_max_count=3)) == [
        ("0", "chains-full"),
        ("1", "chains-full"),
    ]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (["ab", "c\n"], ["abc\n"]),
        (["a\nb\nc", "d\n"], ["a\n", "b\n", "cd\n"]),
        (["\n", "\n"], ["\n", "\n"]),
        (["a\r", "b\rc\n"], ["a\rb\rc\n"]),
        (["open"], ["open"]),
    ],
)
def test_unbuffered_chunks_become_lines_when_asked_for(chunks: "list[str]", expected: "list[str]") -> None:
    lines = fed([U(chunk) for chunk in chunks] + [END], join_unbuffered=True)
    assert [body for body, _ in logs(lines)] == expected
    assert all("partial" not in text for text in lines)


def test_lines_of_one_unbuffered_chunk_have_its_time() -> None:
    first, second = fed([U("a", time=100), U("b\nc\n", time=200)], join_unbuffered=True)
    assert (first["time"], first["scraper"]["pieces"]) == (100, 2)
    assert (second["time"], second["scraper"]["pieces"], second["scraper"]["received"]) == (200, 1, 1001)


def test_a_drop_report_marks_what_is_open_of_its_step_and_what_is_still_to_come_of_it() -> None:
    chains = rejoin.Rejoin()
    fed([P("open"), P("other", step_id="1")], chains)
    chains.note_loss(174, "0")
    lines = fed([L("!\n"), L("!\n", step_id="1"), P("later"), L("!\n"), END, P("next step"), END], chains)
    doubtful = {text["body"]: text["scraper"].get("doubtful", False) for text in lines if "body" in text}
    assert doubtful == {"open!\n": True, "other!\n": False, "later!\n": True, "next step": False}
    assert chains.counts["doubtful"] == 2


def test_a_line_without_a_chain_may_be_the_end_of_a_lost_one() -> None:
    chains = rejoin.Rejoin()
    chains.note_loss(174, "0")
    lines = fed([L("tail\n"), L("other\n", step_id="1"), END, L("next step\n")], chains)
    assert [text["body"] for text in lines if text["scraper"].get("doubtful")] == ["tail\n"]


def test_a_datagram_that_could_not_be_read_marks_what_its_sender_has_open() -> None:
    chains = rejoin.Rejoin()
    fed([P("a")], chains)
    chains.note_broken(78)
    chains.note_broken(77)
    assert fed([L("b\n")], chains)[0]["scraper"]["doubtful"] is True


def test_steps_that_lost_records_are_remembered_in_bounded_number() -> None:
    chains = rejoin.Rejoin()
    for job_id in range(3000):
        chains.note_loss(job_id, "0")
    assert len(chains._lossy) <= 1024


def test_what_was_open_goes_on_in_the_next_process() -> None:
    before, after = rejoin.Rejoin(), rejoin.Rejoin()
    fed([P("a\u00e9"), P("b")], before)
    before.note_loss(174, "0")
    after.restore(json.loads(json.dumps(list(before.state()))), 0.0)
    assert after.size_bytes == before.size_bytes
    (text,) = fed([L("c\n", time=300)], after)
    assert text["body"] == "a\u00e9bc\n"
    assert text["scraper"] == {
        "received": 1000,
        "received_last": 1000,
        "time_last": 300,
        "pieces": 3,
        "ended": "line",
        "doubtful": True,
    }


RECORDS = st.lists(
    st.one_of(
        st.builds(
            records.log,
            st.text(alphabet="ab\n\u00e9\U0001f600", max_size=8),
            task=st.integers(0, 1),
            stream=st.sampled_from(["stdout", "stderr"]),
            step_id=st.sampled_from(["0", "batch"]),
        ).flatmap(
            lambda fields: st.sampled_from([fields, {**fields, "partial": True}, {**fields, "unbuffered": True}])
        ),
        st.builds(records.step, st.sampled_from(["step_start", "step_end"]), step_id=st.sampled_from(["0", "batch"])),
        st.builds(records.job, st.sampled_from(["job_start", "job_end"]), sluid=st.sampled_from(["s1", "s2"])),
    ),
    max_size=40,
)


@settings(max_examples=int(os.environ.get("FUZZ_CASES", "400")))
@given(RECORDS, st.booleans(), st.integers(1, 400), st.integers(250, 2000), st.integers(1, 4))
def test_no_order_of_records_loses_or_doubles_a_byte_of_any_stream(
    what: "list[dict[str, Any]]",
    join_unbuffered: bool,
    chain_max_bytes: int,
    chains_max_bytes: int,
    chains_max_count: int,
) -> None:
    chains = rejoin.Rejoin(join_unbuffered, 60.0, chain_max_bytes, chains_max_bytes, chains_max_count)
    lines: list[bytes] = []
    for number, fields in enumerate(what):
        raw = records.raw(fields)
        chains.push(decode.record(raw), raw, number, 77, float(number), lines)
        assert chains.count() <= chains_max_count
        assert chains.size_bytes <= chains_max_bytes
    chains.expire(1e9, lines)
    assert (chains.count(), chains.size_bytes, chains._jobs) == (0, 0, {})
    given_ = [json.loads(text) for text in lines]

    def streams(all_: "list[dict[str, Any]]") -> "dict[Any, str]":
        found: dict[Any, str] = {}
        for fields in all_:
            if fields["type"] == "log":
                slurm = fields["slurm"]
                key = (slurm["step_id"], slurm["task_id_global"], fields["stream"])
                found[key] = found.get(key, "") + fields["body"]
        return found

    assert streams(given_) == streams(what)
    events = [fields["type"] for fields in what if fields["type"] != "log"]
    assert [fields["type"] for fields in given_ if fields["type"] != "log"] == events
