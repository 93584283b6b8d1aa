# SPDX-License-Identifier: GPL-2.0-or-later
import errno

import pytest

from guard.arch import decide
from guard.arch.detect import Survey
from guard.arch.request import Target
from guard.arch.walk import Walked
from guard.base.faults import SiteFault

ZEN4, ZEN2 = b"x86_64/amd/zen4", b"x86_64/amd/zen2"
CC80 = b"accel/nvidia/cc80"


def survey(target: "Target | None", sick: "tuple[bytes, int] | None" = None) -> Survey:
    return Survey(Walked(target, [(b"/p/software/linux/x/software", False)], sick), [ZEN4], None, "")


CASES = [
    (Target(ZEN4, None), Target(ZEN4, None), None),
    (Target(ZEN4, CC80), Target(ZEN4, CC80), None),
    (Target(ZEN4, None), Target(ZEN2, None), Target(ZEN2, None)),
    (Target(ZEN4, None), Target(ZEN4, CC80), Target(ZEN4, CC80)),
    (Target(ZEN4, CC80), Target(ZEN4, None), Target(ZEN4, None)),
    (Target(ZEN4, CC80), Target(ZEN2, CC80), Target(ZEN2, CC80)),
]


@pytest.mark.parametrize(("loaded", "here", "wanted"), CASES)
def test_a_reload_is_for_this_nodes_target_and_only_when_it_differs(
    loaded: Target, here: Target, wanted: "Target | None"
) -> None:
    assert decide.choose(loaded, survey(here)) == wanted


def test_no_folder_and_a_sick_folder_are_told_apart_by_their_detail() -> None:
    with pytest.raises(SiteFault) as caught:
        decide.choose(Target(ZEN4, None), survey(None))
    assert (caught.value.code, caught.value.detail) == ("no-software-dir", "tried /p/software/linux/x/software")
    with pytest.raises(SiteFault) as caught:
        decide.choose(Target(ZEN4, None), survey(None, (b"/p/x", errno.EIO)))
    assert (caught.value.code, caught.value.detail) == ("no-software-dir", "/p/x: Input/output error")


LABELS = [
    (Target(ZEN4, None), Target(ZEN2, None), b"x86_64/amd/zen4->x86_64/amd/zen2"),
    (Target(ZEN4, CC80), Target(ZEN2, CC80), b"x86_64/amd/zen4->x86_64/amd/zen2"),
    (Target(ZEN4, None), Target(ZEN2, CC80), b"x86_64/amd/zen4 no accel->x86_64/amd/zen2 accel/nvidia/cc80"),
    (Target(ZEN4, CC80), Target(ZEN4, None), b"x86_64/amd/zen4 accel/nvidia/cc80->x86_64/amd/zen4 no accel"),
    (Target(ZEN4, CC80), b"timeout", b"x86_64/amd/zen4->timeout"),
    (Target(b"a\nexport X=1\xff", None), b"timeout", b"a?export X=1?->timeout"),
]


@pytest.mark.parametrize(("was", "now", "label"), LABELS)
def test_the_markers_text(was: Target, now: "Target | bytes", label: bytes) -> None:
    assert decide.label(was, now) == label
