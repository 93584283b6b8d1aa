# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests share: the built .pyz, a miniature EESSI, and the rule that CI may not skip for want of a program."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from guard.arch import cache
from guard.base import files
from tests.eessi.tree import Tree, lmod_init

# A fake file system (pyfakefs) stands behind os; these take the same functions from posix, where os has them from.
files.os = cache.os = os  # type: ignore[attr-defined]

# How long an example takes tells of the machine only; the rest is hypothesis's own profile, which CI has another of.
settings.register_profile(
    "any machine", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Who starts the tests in the background, or by nohup, ignores these for all that comes after.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

ROOT = Path(__file__).parent.parent
PYZ = Path(os.environ.get("EESSI_ARCH_GUARD_PYZ") or ROOT / "dist" / "eessi-arch-guard.pyz")


def need(what: str, is_there: object) -> None:
    """Skips without `what`; in CI, which installs it, that is a failure."""
    if not is_there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{what} is not installed")


def need_program(name: str) -> str:
    """The path of a program that the test needs."""
    path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
    need(name, path)
    return str(path)


@pytest.fixture(scope="session")
def pyz() -> Path:
    """The .pyz of this tree; `make test` has built it, a bare pytest builds it here."""
    if not PYZ.exists():
        subprocess.run([sys.executable, str(ROOT / "build" / "pyz.py"), str(PYZ)], check=True)
    return PYZ


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A miniature EESSI of one's own, with Lmod to use it."""
    need("Lmod", lmod_init())
    return Tree(tmp_path / "eessi")
