# SPDX-License-Identifier: GPL-2.0-or-later
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base import message

LINES = [
    (message.reloaded(34, "n1", "a->b"), "eessi-arch-guard: reloaded 34 modules on n1: a->b"),
    (message.failed("n1", "a->timeout", "why"), "eessi-arch-guard: NOT reloaded on n1: a->timeout: why"),
    (message.skipped("ValueError: x"), "eessi-arch-guard: skipped, ValueError: x"),
    (message.nothing("target matches"), "eessi-arch-guard: nothing to do, target matches"),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_the_grammar(line: str, expected: str) -> None:
    assert line == expected


@given(st.text(), st.text(), st.text())
def test_a_line_is_one_line_and_no_directive(node: str, marker: str, text: str) -> None:
    for line in (
        message.reloaded(1, node, marker),
        message.failed(node, marker, text),
        message.skipped(text),
        message.nothing(text),
    ):
        assert line.isprintable()
        assert not line.startswith(("print", "export", "unset"))
