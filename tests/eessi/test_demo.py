# SPDX-License-Identifier: GPL-2.0-or-later
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, need
from tests.eessi.tree import lmod_init


def test_the_demo_shows_a_reload_and_a_no_op(pyz: Path) -> None:
    need("Lmod", lmod_init())
    demo = ROOT / "tests" / "eessi" / "demo.py"
    run = subprocess.run([sys.executable, str(demo), str(pyz)], stdout=subprocess.PIPE, text=True)
    assert run.returncode == 0
    assert "App for x86_64/amd/zen4" in run.stdout
    assert "App for x86_64/amd/zen2" in run.stdout
    assert "reloaded 5 modules on" in run.stdout
    assert "b''; with EESSI_ARCH_GUARD_VERBOSE=1: print eessi-arch-guard: nothing to do" in run.stdout
