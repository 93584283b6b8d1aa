# SPDX-License-Identifier: GPL-2.0-or-later
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.relay import lines, record
from tests.relay import reference

# The seed's own examples, "Record format".
JOB = {
    "cluster": "slurm", "node": "node1", "job_id": 174, "sluid": "sA0SM5EFW65700", "user_name": "alice",
    "restart_count": 0, "partition": "batch", "account": "physics",
}  # fmt: skip
STEP = {
    "cluster": "slurm", "node": "node1", "job_id": 174, "sluid": "sA0SM5EFW65700", "user_name": "alice",
    "step_id": "0", "task_id_global": 0, "task_id_local": 0,
}  # fmt: skip


def test_a_job_start_is_the_seeds_example() -> None:
    got = record.event("job_start", 1786000818402000000, JOB)
    assert got.decode() == json.dumps(
        {"v": 1, "type": "job_start", "time": 1786000818402000000, "slurm": JOB}, separators=(",", ":")
    )


def test_a_log_record_is_the_seeds_example() -> None:
    place = record.log_place(STEP, 1)
    assert [got.decode() for got in record.logs([(lines.LINES, b"hello world\n")], 1786000818715000000, place)] == [
        '{"v":1,"type":"log","time":1786000818715000000,"slurm":{"cluster":"slurm","node":"node1","job_id":174,'
        '"sluid":"sA0SM5EFW65700","user_name":"alice","step_id":"0","task_id_global":0,"task_id_local":0},'
        '"stream":"stdout","body":"hello world\\n"}'
    ]


@pytest.mark.parametrize(
    ("piece", "marks"),
    [
        ((lines.LINES, b"a\n"), {}),
        ((lines.PARTIAL, b"a"), {"partial": True}),
        ((lines.UNBUFFERED, b"a\nb"), {"unbuffered": True}),
    ],
)
def test_only_what_is_true_is_marked(piece: "tuple[int, bytes]", marks: "dict[str, bool]") -> None:
    (got,) = record.logs([piece], 5, record.log_place(STEP, 2))
    assert json.loads(got) == {
        "v": 1, "type": "log", "time": 5, "slurm": STEP, "stream": "stderr", "body": piece[1].decode(), **marks,
    }  # fmt: skip


def test_every_control_character_quote_and_backslash_comes_back() -> None:
    body = bytes(range(1, 128)).replace(b"\n", b"") + b'\\"\\n\\\\\n'
    (got,) = record.logs([(lines.LINES, body)], 5, record.log_place(STEP, 1))
    assert json.loads(got)["body"] == body.decode()
    assert b"\n" not in got


@given(st.lists(st.binary(max_size=200), max_size=4), st.integers(0, 2**63 - 1))
def test_any_output_parses_and_comes_back_as_the_reference_says(reads: "list[bytes]", time_ns: int) -> None:
    stream = lines.Stream(16)
    place = record.log_place({**STEP, "user_name": 'al"i\\ce é'}, 1)
    got = [
        json.loads(datagram.decode("utf-8", "strict"))
        for pieces in [*map(stream.feed, reads), stream.end()]
        for datagram in record.logs(pieces, time_ns, place)
    ]
    bodies = [(one["body"].encode(), one.get("partial", False)) for one in got]
    assert bodies == reference.bodies(b"".join(reads), 16)
    assert all(one["time"] == time_ns and type(one["time"]) is int for one in got)
    assert not any(reference.is_rejected(ord(character)) for one in got for character in one["body"])


SLURM_VALUE = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**63 - 1))


@given(
    st.dictionaries(st.sampled_from([*JOB, *STEP]), SLURM_VALUE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n")),
    st.sampled_from([lines.LINES, lines.PARTIAL, lines.UNBUFFERED]),
    st.integers(0, 2**63 - 1),
    st.sampled_from([1, 2]),
)
def test_each_record_is_what_a_json_library_would_have_written(
    slurm: "dict[str, object]", text: str, kind: int, time_ns: int, stream: int
) -> None:
    """Equal once parsed, by the standard library and by a fast one, in the order of the keys too."""
    body = text + "\n" if kind == lines.LINES else text
    expected: "dict[str, object]" = {
        "v": 1, "type": "log", "time": time_ns, "slurm": slurm, "stream": record.STREAM_NAMES[stream], "body": body,
    }  # fmt: skip
    if kind != lines.LINES:
        expected["partial" if kind == lines.PARTIAL else "unbuffered"] = True
    (log,) = record.logs([(kind, body.encode())], time_ns, record.log_place(slurm, stream))
    start = record.event("job_start", time_ns, slurm)
    for got, wanted in (
        (log, expected),
        (start, {"v": 1, "type": "job_start", "time": time_ns, "slurm": slurm}),
    ):
        assert json.loads(got) == orjson.loads(got) == wanted
        # Written again: 1 is not true, and the keys keep their order.
        assert orjson.dumps(json.loads(got)) == orjson.dumps(orjson.loads(got)) == orjson.dumps(wanted)
        assert b"\n" not in got


@pytest.mark.parametrize("cap_kbytes", [1, 4, 32, 64])
def test_the_worst_record_is_six_times_the_cap_and_about_250_bytes(cap_kbytes: int) -> None:
    """Seed: with the default of 4 KiB "the record reaches about 25KB"."""
    stream = lines.Stream(cap_kbytes * 1024)
    pieces = stream.feed(b"\x01" * cap_kbytes * 1024)
    (got,) = record.logs(pieces, 2**63, record.log_place(STEP, 1))
    assert 6 * cap_kbytes * 1024 < len(got) < 6 * cap_kbytes * 1024 + 300
