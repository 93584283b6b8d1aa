# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkouts to publish from: this tree's files as two tagged versions, each with its .pyz built."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.publish.stand import Publisher

ROOT = Path(__file__).resolve().parent.parent.parent
OLD, NEW = "1.0.0", "1.1.0"


@pytest.fixture(scope="session")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Path]":
    """A checkout for each of the two versions. Tests do not change them; they copy."""
    base = tmp_path_factory.mktemp("checkouts")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "guard", "build", "cvmfs-publish.sh", ".gitignore"], cwd=ROOT, capture_output=True
    )
    made = {}
    for version in (OLD, NEW):
        top = base / version
        for name in filter(None, listed.stdout.decode().split("\0")):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, top / name)
        # Of another size as well: what one version says about places in the file must not fit the other.
        padding = "x" * (5000 if version == NEW else 0)
        (top / "guard" / "__init__.py").write_text(f'__version__ = "{version}"\nPADDING = "{padding}"\n')
        git(top, "init", "-q")
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", version)
        git(top, "tag", f"v{version}")
        (top / ".venv").symlink_to(sys.prefix)
        subprocess.run([top / ".venv/bin/python", "build/pyz.py", "dist/eessi-arch-guard.pyz"], cwd=top, check=True)
        made[version] = top
    return made


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    """An empty publisher."""
    folder = tmp_path / "publisher"
    folder.mkdir()
    return Publisher(folder).make()


def git(top: Path, *arguments: str) -> None:
    """Runs git in top, as nobody in particular."""
    who = ["-c", "user.name=Nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=top, check=True)
