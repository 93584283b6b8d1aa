# SPDX-License-Identifier: GPL-2.0-or-later
import pytest

from guard.scraper.blame import Blame
from guard.scraper.limits import ALL_REFUSED_S, PLAIN_LINE_BYTES

LONG = PLAIN_LINE_BYTES + 1


@pytest.mark.parametrize(
    ("delivered_count", "refused_bytes", "expected"),
    [
        (1, [100], True),
        (1, [100] * 500, True),
        (0, [100], False),  # of a sink that has taken nothing yet
        (0, [100] * 500, False),
        (0, [LONG], True),
        (0, [LONG] * 4, True),
        (0, [LONG, PLAIN_LINE_BYTES], False),
    ],
)
def test_the_first_batch(delivered_count: int, refused_bytes: "list[int]", expected: bool) -> None:
    assert Blame().are_lines(delivered_count, refused_bytes) == expected


def test_one_that_came_alone_is_set_aside_but_not_two_in_turn() -> None:
    blame = Blame()
    blame.are_lines(5, [])
    assert [blame.are_lines(0, [100]) for _ in range(3)] == [True, False, False]
    assert [blame.are_lines(count, [100]) for count in (1, 0, 0)] == [True, True, False]


def test_a_sink_has_a_day_each_time_that_it_begins_to_refuse() -> None:
    blame = Blame()
    for _ in range(2):
        blame.are_lines(1, [])
        blame.hold(ALL_REFUSED_S - 1)
        assert not blame.are_lines(0, [100] * 2)
        blame.hold(1)
        assert blame.are_lines(0, [100] * 2)
        assert blame.are_lines(0, [100] * 2)
