# SPDX-License-Identifier: GPL-2.0-or-later
import pytest

from guard.relay import settle


@pytest.mark.parametrize(
    ("field", "submit", "modify_of_yes", "modify_of_no"),
    [
        (0, "no", "no", "no"),
        (1, "yes", "yes", "yes"),
        (2, "yes", "yes", "yes"),
        (0xFFFD, "yes", "yes", "yes"),
        (0xFFFE, "default", "yes", "no"),  # NO_VAL16
        (0xFFFF, "default", "default", "default"),  # INFINITE16
    ],
)
def test_the_field_of_job_submit_means(field: int, submit: str, modify_of_yes: str, modify_of_no: str) -> None:
    assert settle.wish_at_submit(field) == submit
    assert settle.wish_at_modify(field, "yes") == modify_of_yes
    assert settle.wish_at_modify(field, "no") == modify_of_no


@pytest.mark.parametrize(
    ("wish", "has_plugin", "is_default", "relayed"),
    [
        ("yes", True, False, True),
        ("yes", True, True, True),
        ("no", True, True, False),
        ("no", True, False, False),
        ("default", True, True, True),
        ("default", True, False, False),
        ("yes", False, True, False),
        ("default", False, True, False),
    ],
)
def test_a_job_is_relayed_when(wish: str, has_plugin: bool, is_default: bool, relayed: bool) -> None:
    assert settle.settle(wish, has_plugin, is_default) is relayed
