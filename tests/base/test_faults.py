# SPDX-License-Identifier: GPL-2.0-or-later
import re
from pathlib import Path

import pytest

from guard.base import faults

ROOT = Path(__file__).parent.parent.parent


def test_each_code_that_the_guard_raises_has_a_sentence() -> None:
    sources = [*(ROOT / "guard" / "arch").glob("*.py"), *(ROOT / "guard" / "base").glob("*.py")]
    raised = {
        code
        for path in sources
        for code in re.findall(r'(?:Job|Site|Node|Peer)Fault\(\s*"([a-z-]+)"', path.read_text())
    }
    assert raised
    assert raised <= faults.SENTENCES.keys()


def test_the_codes_are_the_tokens_of_the_seed_and_one_more() -> None:
    seed = "no-software-dir archdetect-failed unsafe-module-name unsafe-environment lmod-unavailable restore-failed"
    assert set(faults.SENTENCES) == {*seed.split(), "timeout", "terminated", "modules-missing"}


@pytest.mark.parametrize("code", faults.SENTENCES)
def test_a_sentence_is_one_line_that_takes_a_detail(code: str) -> None:
    sentence = faults.NodeFault(code, "detail").sentence()
    assert sentence.endswith(" (detail)")
    assert sentence.isprintable()
    assert faults.NodeFault(code).sentence() == faults.SENTENCES[code]
