# SPDX-License-Identifier: GPL-2.0-or-later
"""How the .pyz is made: what is in it, that it is always the same, and that it says so when something is wrong."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "build"))
import pyz as maker

from tests.conftest import ROOT


def test_only_our_package_its_bytecode_and_shivs_record_are_in_it(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        names = archive.namelist()
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        assert {entry.date_time for entry in archive.infolist()} == {maker.DATE}
    assert "environment.json" in names
    assert all(maker.ALLOWED.fullmatch(name) for name in names)
    assert not [name for name in names if "test" in name or "direct_url" in name or "_bootstrap" in name]
    tracked = subprocess.run(["git", "ls-files", "guard"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split()
    assert {name for name in tracked if name.endswith(".py")} <= set(names)


def test_shiv_still_knows_it(pyz: Path) -> None:
    info = subprocess.run([str(Path(sys.executable).parent / "shiv-info"), str(pyz)], stdout=subprocess.PIPE, text=True)
    assert "entry_point: guard.__main__:start" in info.stdout


def test_the_bytecode_is_that_of_the_sources(pyz: Path) -> None:
    # A start from the archive finds the marked place: a source that is changed in a copy is not read.
    run = subprocess.run([str(pyz), "--version"], stdout=subprocess.PIPE, text=True)
    data = pyz.read_bytes()
    assert data.count(b'__version__ = "0.1.0"') == 1
    changed = data.replace(b'__version__ = "0.1.0"', b'__version__ = "9.9.9"')
    assert run.stdout == "eessi-arch-guard 0.1.0\n"
    copy = pyz.with_name("changed.pyz")
    try:
        copy.write_bytes(changed)
        assert (
            subprocess.run(["/bin/sh", str(copy), "--version"], stdout=subprocess.PIPE, text=True).stdout == run.stdout
        )
        # A Python with another magic number takes the sources.
        magic = maker.joined("0", [], {"cpython-311/hot": b"\1\2\3\4"})[0]
        assert b'"01020304"' in magic
        other = changed.replace(b'"a70d0d0a"', b'"ffffffff"')
        if other != changed:
            copy.write_bytes(other)
            again = subprocess.run(["/bin/sh", str(copy), "--version"], stdout=subprocess.PIPE, text=True)
            assert again.stdout == "eessi-arch-guard 9.9.9\n"
    finally:
        copy.unlink()


def build(folder: Path, **more: str) -> bytes:
    environ = {**os.environ, **more}
    subprocess.run(
        [sys.executable, str(folder / "build" / "pyz.py"), str(folder / "dist" / "x.pyz")],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environ,
        umask=int(more.get("UMASK", "22"), 8),
    )
    return (folder / "dist" / "x.pyz").read_bytes()


def clone(to: Path) -> Path:
    """The tracked files as they are in the working tree, in another folder that is a checkout as well."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    subprocess.run(["git", "init", "-q"], cwd=to, check=True)
    subprocess.run(["git", "add", "-A"], cwd=to, check=True)
    return to


def test_the_same_tree_gives_the_same_bytes_in_any_folder_time_zone_locale_and_umask(tmp_path: Path) -> None:
    one = build(clone(tmp_path / "one"))
    other = clone(tmp_path / "a much longer name of a folder")
    for path in other.rglob("*.py"):
        os.utime(path, (0, 0))
    (other / "guard" / "untracked.py").write_text("raise SystemExit('never')\n")
    two = build(other, TZ="Asia/Tokyo", LC_ALL="C", UMASK="77", HOME="/nonexistent", PYTHONHASHSEED="7")
    assert hashlib.sha256(one).hexdigest() == hashlib.sha256(two).hexdigest()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_gets_the_same_bytes() -> None:
    # Not tmp_path: pytest's own folder is closed to other users, and so may be the checkout and its .venv.
    with tempfile.TemporaryDirectory(prefix="guard-build-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        theirs = clone(folder / "theirs")
        mine = build(theirs)
        for path in [theirs, *theirs.rglob("*")]:
            os.chown(path, 40001, 40001)
        shutil.copytree(next(Path(path) for path in sys.path if path.endswith("site-packages")), folder / "packages")
        (folder / "bin").mkdir()
        (folder / "bin" / "shiv").write_text(
            f'#!/bin/sh\nPYTHONPATH={folder}/packages exec /usr/bin/python3 -m shiv.cli "$@"\n'
        )
        (folder / "bin" / "shiv").chmod(0o755)
        (folder / "bin" / "python3").symlink_to("/usr/bin/python3")
        subprocess.run(
            [str(folder / "bin" / "python3"), str(theirs / "build" / "pyz.py"), str(theirs / "dist" / "y.pyz")],
            check=True,
            stdout=subprocess.DEVNULL,
            user=40001,
            group=40001,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        )
        assert (theirs / "dist" / "y.pyz").read_bytes() == mine


def test_an_unexpected_member_is_refused() -> None:
    for name in ("tests/x.py", "direct_url.json", "guard/x.so", "../x.py"):
        with pytest.raises(SystemExit, match="unexpected"):
            maker.check(maker.archive({name: b""}))


def test_the_folder_that_it_was_built_in_is_refused() -> None:
    with pytest.raises(SystemExit, match="names the folder"):
        maker.check(maker.archive({"guard/x.py": os.fsencode(ROOT) + b"/guard"}))


@pytest.mark.parametrize("python", ["relative", "/a b", "/a'", "/$(id)", "/a\n"])
def test_a_sites_interpreter_is_a_plain_absolute_path(python: str) -> None:
    with pytest.raises(SystemExit, match="absolute path"):
        maker.header("0", "0", [python], {})


def test_a_sites_interpreter_is_tried_first(tmp_path: Path) -> None:
    mine = tmp_path / "python-of-the-site"
    mine.write_text('#!/bin/sh\necho "site python: $1 $2"\n')
    mine.chmod(0o755)
    data, _ = maker.joined("0", [str(mine)], {})
    (tmp_path / "x.pyz").write_bytes(data)
    run = subprocess.run(["/bin/sh", str(tmp_path / "x.pyz"), "--version"], stdout=subprocess.PIPE, text=True)
    assert run.stdout == "site python: -I -S\n"


def test_the_places_of_the_bytecode_are_right(pyz: Path) -> None:
    data = pyz.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if name.endswith("/hot"):
                member = archive.read(name)
                tag = name.partition("/")[0]
                at = data.index(f'"{tag}": ('.encode())
                offset, size = (int(part) for part in data[at:].split(b"(")[1].split(b",")[:2])
                assert data[offset : offset + size] == member[4:]
