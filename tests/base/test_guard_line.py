# SPDX-License-Identifier: GPL-2.0-or-later
"""The grammar both ways: what guard.base.message writes is what guard_line reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base import faults, guard_line, message

NODES = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_.", min_size=1, max_size=40)
NAMES = "abcdefghijklmnopqrstuvwxyz0123456789_.+-"
TARGETS = st.lists(st.text(alphabet=NAMES, min_size=1, max_size=12), min_size=2, max_size=4).map("/".join)
ACCELS = st.sampled_from(["no accel", "accel/nvidia/cc80", "accel/amd/gfx90a"])
SIDES = st.one_of(
    st.tuples(TARGETS, TARGETS),
    st.tuples(TARGETS, ACCELS, TARGETS, ACCELS).map(lambda four: (f"{four[0]} {four[1]}", f"{four[2]} {four[3]}")),
)
CODES = st.sampled_from(sorted(faults.SENTENCES))
ENDS = st.sampled_from(["", "\n"])


@given(st.integers(0, 500), NODES, SIDES, ENDS)
def test_a_reload_comes_back(count: int, node: str, sides: "tuple[str, str]", end: str) -> None:
    said = guard_line.parse(message.reloaded(count, node, "->".join(sides)) + end)
    assert said is not None
    assert (said.kind, said.count, said.node, said.was, said.now, said.reason) == ("reloaded", count, node, *sides, "")


@given(NODES, SIDES, CODES, st.text(max_size=60), ENDS)
def test_a_failure_comes_back(node: str, sides: "tuple[str, str]", code: str, detail: str, end: str) -> None:
    was, now = sides
    now = now if code == "modules-missing" else code
    sentence = faults.Fault(code, detail).sentence()
    said = guard_line.parse(message.failed(node, f"{was}->{now}", sentence) + end)
    assert said is not None
    assert (said.kind, said.node, said.was, said.now, said.reason) == ("failed", node, was, now, code)
    assert said.sentence == message.one_line(sentence)


@given(st.text(), ENDS)
def test_a_skip_and_a_no_come_back(reason: str, end: str) -> None:
    for render, kind in ((message.skipped, "skipped"), (message.nothing, "nothing")):
        said = guard_line.parse(render(reason) + end)
        assert said is not None and (said.kind, said.reason) == (kind, message.one_line(reason))


def test_a_loaded_side_may_hold_anything_printable() -> None:
    said = guard_line.parse(message.reloaded(1, "n1", "evil->x: y->x86_64/amd/zen3"))
    assert said is not None and (said.was, said.now) == ("evil->x: y", "x86_64/amd/zen3")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        " eessi-arch-guard: reloaded 3 modules on n1: a/b->c/d",
        "say eessi-arch-guard: reloaded 3 modules on n1: a/b->c/d",
        "eessi-arch-guard: reloaded x modules on n1: a/b->c/d",
        "eessi-arch-guard: reloaded 3 modules on n1: a/b",
        "eessi-arch-guard: NOT reloaded on n1: a/b->timeout",
        "eessi-arch-guard: reloaded 3 modules on n1: a/b->c/d\nmore\n",
        "eessi-arch-guard: something new",
    ],
)
def test_other_lines_are_none(body: str) -> None:
    assert guard_line.parse(body) is None


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    for start in ("", message.PREFIX, message.PREFIX + "reloaded ", message.PREFIX + "NOT reloaded on "):
        guard_line.parse(start + text)
