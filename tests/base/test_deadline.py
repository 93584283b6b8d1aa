# SPDX-License-Identifier: GPL-2.0-or-later
from guard.base.deadline import Deadline


def test_what_is_left_never_grows_and_never_falls_below_zero() -> None:
    deadline = Deadline(100)
    first, second = deadline.left_s(), deadline.left_s()
    assert 0 < second <= first <= 100
    assert Deadline(-5).left_s() == 0
