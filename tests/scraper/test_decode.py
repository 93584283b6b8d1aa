# SPDX-License-Identifier: GPL-2.0-or-later
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guard.base.faults import PeerFault
from guard.scraper import decode
from guard.scraper.reasons import REFUSALS
from tests.scraper import records

PARSERS = [decode.fast_loads, decode.standard_loads]

GOOD: "list[dict[str, Any]]" = [
    records.log("hello world\n"),
    records.log("", stream="stderr", partial=True),
    records.log("x" * 1024, unbuffered=True),
    records.log('\ufffd \\u0000 \x1b[1m \t / " \\ \u2028 \U0001f600\n', step_id="batch"),
    records.log("later Slurm\n", colour={"deep": [1, 2.5, None]}),
    records.step("step_start"),
    records.step("step_end", step_id="interactive"),
    records.job("job_start"),
    records.job("job_end", time=(1 << 63) - 1),
]


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize("fields", GOOD)
def test_a_record_comes_back_with_every_field(fields: "dict[str, Any]", loads: Any) -> None:
    assert decode.record(records.raw(fields), loads) == fields


@pytest.mark.parametrize("loads", PARSERS)
def test_nanoseconds_past_2_to_53_stay_exact(loads: Any) -> None:
    assert decode.record(records.raw(records.log("x")), loads)["time"] == 1786000818715000001


@pytest.mark.parametrize("loads", PARSERS)
def test_fields_that_come_from_the_credential_may_be_absent(loads: Any) -> None:
    fields = records.job("job_start")
    for name in ("user_name", "partition", "account", "sluid"):
        del fields["slurm"][name]
        assert decode.record(records.raw(fields), loads) == fields


@pytest.mark.parametrize("loads", PARSERS)
def test_blanks_around_the_object_are_no_fault(loads: Any) -> None:
    assert decode.record(b" \t" + records.raw(records.log("x")) + b"\r\n", loads)["body"] == "x"


def changed(fields: "dict[str, Any]", **more: Any) -> bytes:
    """fields with some replaced, in `slurm` where they are there; None takes one away."""
    whole: dict[str, Any] = json.loads(json.dumps(fields))
    for name, value in more.items():
        place = whole["slurm"] if name in whole["slurm"] else whole
        if value is None:
            del place[name]
        else:
            place[name] = value
    return records.raw(whole)


LOG = records.log("x")
BAD = [
    ("not-json", b""),
    ("not-json", b"junk"),
    ("not-json", b"{"),
    ("not-json", records.raw(LOG)[:-1]),
    ("not-json", records.raw(LOG) * 2),
    ("not-json", records.raw(LOG) + b"\0"),
    ("not-json", b"[" * 100_000),
    ("not-json", b'{"a":' * 100_000),
    ("not-json", b"\xef\xbb\xbf" + records.raw(LOG)),
    ("not-json", records.raw(LOG)[:-1] + b',"x":NaN}'),
    ("not-json", records.raw(LOG)[:-1] + b',"x":1e999}'),
    ("not-json", records.raw(LOG)[:-1] + b',"x":"\\ud800"}'),
    ("not-json", records.raw(LOG).replace(b'"x"', b'"a\nb"')),
    ("not-json", b"1"),
    ("not-json", b"null"),
    ("not-utf8", records.raw(LOG).replace(b'"x"', b'"\xff"')),
    ("not-utf8", records.raw(LOG).replace(b'"x"', b'"\xed\xa0\x80"')),
    ("unknown-version", changed(LOG, v=2)),
    ("unknown-version", changed(LOG, v="1")),
    ("unknown-version", changed(LOG, v=True)),
    ("unknown-version", changed(LOG, v=1.0)),
    ("unknown-version", changed(LOG, v=None)),
    ("unknown-type", changed(LOG, type="metric")),
    ("unknown-type", changed(LOG, type=None)),
    ("unknown-type", changed(LOG, type=["log"])),
    ("bad-field", changed(LOG, time=None)),
    ("bad-field", changed(LOG, time=1.5)),
    ("bad-field", changed(LOG, time=-1)),
    ("bad-field", changed(LOG, time=1 << 63)),
    ("bad-field", changed(LOG, time="1786000818715000001")),
    ("bad-field", changed(LOG, slurm=None)),
    ("bad-field", changed(LOG, job_id=None)),
    ("bad-field", changed(LOG, job_id=True)),
    ("bad-field", changed(LOG, job_id=1 << 32)),
    ("bad-field", changed(LOG, cluster=7)),
    ("bad-field", changed(LOG, node=None)),
    ("bad-field", changed(LOG, sluid=7)),
    ("bad-field", changed(LOG, step_id=0)),
    ("bad-field", changed(LOG, step_id=None)),
    ("bad-field", changed(LOG, task_id_global=None)),
    ("bad-field", changed(LOG, task_id_local="0")),
    ("bad-field", changed(LOG, stream="both")),
    ("bad-field", changed(LOG, stream=["stdout"])),
    ("bad-field", changed(LOG, body=None)),
    ("bad-field", changed(LOG, body=7)),
    ("bad-field", changed(LOG, partial=False)),
    ("bad-field", changed(records.log("x", partial=True), unbuffered=True)),
    ("bad-field", changed(LOG, unbuffered=1)),
    ("bad-field", changed(records.job("job_start"), restart_count="0")),
    ("bad-field", changed(records.step("step_end"), step_id=None)),
    ("reserved-field", changed(LOG, scraper={"received": 1})),
]


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize(("code", "raw"), BAD)
def test_what_is_no_record_of_version_1_is_refused_by_reason(code: str, raw: bytes, loads: Any) -> None:
    with pytest.raises(PeerFault) as caught:
        decode.record(raw, loads)
    assert caught.value.code == code


def outcome(raw: bytes, loads: Any) -> "tuple[str, Any]":
    try:
        return "record", decode.record(raw, loads)
    except PeerFault as fault:
        return "refused", fault.code


JUNK = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps(value).encode("utf-8")),
    # A record with one piece of it replaced by any bytes.
    st.tuples(st.integers(0, 300), st.integers(0, 9), st.binary(max_size=6)).map(
        lambda cut: records.raw(LOG)[: cut[0]] + cut[2] + records.raw(LOG)[cut[0] + cut[1] :]
    ),
)


@given(JUNK)
@example(b'{"v":1e400}')
@example(b'{"v":' + b"9" * 5000 + b"}")
@example(b'"\\ud83d\\ude00"')
def test_any_bytes_give_a_record_or_one_reason_the_same_from_both_parsers(raw: bytes) -> None:
    fast = outcome(raw, decode.fast_loads)
    assert fast == outcome(raw, decode.standard_loads)
    assert fast[0] == "record" or fast[1] in REFUSALS
