# SPDX-License-Identifier: GPL-2.0-or-later
import re
from pathlib import Path

from guard.base.faults import PeerFault, SiteFault
from guard.scraper import reasons

SOURCES = (Path(__file__).parents[2] / "guard" / "scraper").rglob("*.py")


def test_every_code_that_is_raised_has_a_sentence_and_every_sentence_a_code() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "reasons.py")
    raised = set(re.findall(r'(?:Site|Node|Peer)Fault\("([a-z0-9-]+)"', text))
    raised |= set(re.findall(r'\("(foreign-uid|truncated)"', text))
    raised |= set(re.findall(r'"(spool-full|too-large|refused|damaged)"', text))
    assert raised == {*reasons.SENTENCES, *reasons.REFUSALS, *reasons.DROPS}


def test_a_sentence_ends_with_the_detail() -> None:
    assert reasons.sentence(SiteFault("no-such-user", "bob")) == "there is no such user on this node: bob"
    assert reasons.sentence(PeerFault("not-utf8")).startswith("not UTF-8")
