# SPDX-License-Identifier: GPL-2.0-or-later
import json
import os
from pathlib import Path

from guard.scraper.quarantine import Quarantine


def test_an_entry_tells_reason_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "q"
    assert Quarantine(str(path)).keep(5, "not-utf8", b"a\xff\n", pid=7)
    assert json.loads(path.read_bytes()) == {"time": 5, "reason": "not-utf8", "pid": 7, "raw": "a\\xff\n"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_never_holds_more_than_twice_its_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "q"
    quarantine = Quarantine(str(path), 1000)
    for number in range(200):
        assert quarantine.keep(number, "not-json", b"x" * 50)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    assert json.loads(path.read_bytes().splitlines()[-1])["time"] == 199


def test_what_is_longer_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    assert not Quarantine(str(tmp_path / "q"), 1000).keep(1, "not-json", b"x" * 2000)


def test_a_link_is_not_followed_and_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", tmp_path / "q")
    assert not Quarantine(str(tmp_path / "q")).keep(1, "not-json", b"x")
    assert not Quarantine(str(tmp_path / "no" / "q")).keep(1, "not-json", b"x")
    assert not (tmp_path / "elsewhere").exists()
