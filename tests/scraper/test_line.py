# SPDX-License-Identifier: GPL-2.0-or-later
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from guard.scraper import decode, line
from tests.scraper import records


def test_a_line_is_the_record_byte_for_byte_and_its_receive_time() -> None:
    raw = records.raw(records.log("a/b\n"))
    assert line.stamped(raw, 17) == raw[:-1] + b',"scraper":{"received":17}}\n'


@given(st.sampled_from([None, 1, 4]), st.text(), st.text(alphabet=" \t\r\n"), st.dictionaries(st.text(), st.text()))
@example(None, "", "", {"partial": "", "unbuffered": "", "scraper": ""})
def test_whatever_blanks_a_record_has_it_becomes_one_line_with_the_same_fields(
    indent: "int | None", body: str, blanks: str, more: "dict[str, Any]"
) -> None:
    fields = {**more, **records.log(body)}
    for name in ("scraper", "partial", "unbuffered"):
        fields.pop(name, None)  # those have a meaning; hypothesis takes words from the code that it tests
    raw = (blanks + json.dumps(fields, indent=indent, ensure_ascii=False) + blanks).encode("utf-8", "replace")
    stamped = line.stamped(raw, 17)
    assert stamped.count(b"\n") == 1 and stamped.endswith(b"\n")
    assert json.loads(stamped) == {**decode.record(raw), "scraper": {"received": 17}}


def test_a_joined_line_keeps_unknown_fields_even_integers_past_64_bits() -> None:
    raw = records.raw(records.log("a", partial=True, later=1 << 80))
    fields = json.loads(line.joined(raw, "ab\n", False, {"pieces": 2}))
    assert fields == {**records.log("ab\n", later=1 << 80), "scraper": {"pieces": 2}}


def test_a_joined_line_that_ends_elsewhere_says_so() -> None:
    raw = records.raw(records.log("a", partial=True))
    assert json.loads(line.joined(raw, "ab", True, {}))["partial"] is True


def test_a_loss_names_only_what_is_known() -> None:
    whole = json.loads(line.loss(5, "c", "n", 174, "0", {"dropped": 3}))
    assert whole["slurm"] == {"cluster": "c", "node": "n", "job_id": 174, "step_id": "0"}
    assert json.loads(line.loss(5, "c", "n", None, None, {}))["slurm"] == {"cluster": "c", "node": "n"}
