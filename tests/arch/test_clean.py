# SPDX-License-Identifier: GPL-2.0-or-later
import os
import time
from pathlib import Path

import pytest

from guard.arch import cache, clean
from guard.base.limits import CACHE_AGE_MAX_S, SWEEP_FILES_MAX_COUNT

UID = os.getuid()
JOB = {b"SLURM_JOB_ID": b"42", b"SLURMD_NODENAME": b"n1"}


def put(folder: Path, name: str, age_s: float = 0) -> Path:
    path = folder / name
    path.touch(mode=0o600)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "dict[bytes, bytes]":
    (tmp_path / "fallback").mkdir()
    (tmp_path / "tmpdir").mkdir()
    monkeypatch.setattr(cache, "FALLBACK_FOLDER", os.fsencode(tmp_path / "fallback"))
    return {**JOB, b"TMPDIR": os.fsencode(tmp_path / "tmpdir")}


def names(folder: Path) -> "list[str]":
    return sorted(os.listdir(folder))


KEPT = [
    f".eessi-arch-guard.{UID}.n1.421.0.prolog.0123456789abcdef",
    f".eessi-arch-guard.{UID}.n2.42.0.prolog.0123456789abcdef",
    f".eessi-arch-guard.{UID + 1}.n1.42.0.prolog.0123456789abcdef",
    f".eessi-arch-guardX.{UID}.n1.42.0.prolog.0123456789abcdef",
    f".eessi-arch-guard.{UID}.n1.42",
    "somebody.else",
]
GONE = [
    f".eessi-arch-guard.{UID}.n1.42.0.prolog.0123456789abcdef",
    f".eessi-arch-guard.{UID}.n1.42.0.prolog.0123456789abcdef.lock",
    f".eessi-arch-guard.{UID}.n1.42.0.prolog.0123456789abcdef.0011223344556677",
    f".eessi-arch-guard.{UID}.n1.42.batch.shell.fedcba9876543210",
]


def test_only_this_jobs_files_of_this_node_and_user_go_from_both_folders(
    environ: "dict[bytes, bytes]", tmp_path: Path
) -> None:
    for folder in (tmp_path / "fallback", tmp_path / "tmpdir"):
        for name in (*KEPT, *GONE):
            put(folder, name)
    assert clean.main(environ) == 0
    assert names(tmp_path / "fallback") == names(tmp_path / "tmpdir") == sorted(KEPT)


@pytest.mark.parametrize("address", [b"n1", b"s0.s[1-2].n1"])
def test_a_task_epilog_before_21_08_3_knows_its_node_by_its_place_in_the_topology(
    environ: "dict[bytes, bytes]", tmp_path: Path, address: bytes
) -> None:
    for name in (*KEPT, *GONE):
        put(tmp_path / "tmpdir", name)
    del environ[b"SLURMD_NODENAME"]
    assert clean.main({**environ, b"SLURM_TOPOLOGY_ADDR": address}) == 0
    assert names(tmp_path / "tmpdir") == sorted(KEPT)


def test_links_folders_and_pipes_of_a_wanted_name_stay_and_are_not_followed(
    environ: "dict[bytes, bytes]", tmp_path: Path
) -> None:
    folder = tmp_path / "tmpdir"
    target = put(tmp_path, "target")
    (folder / GONE[0]).symlink_to(target)
    (folder / GONE[1]).mkdir()
    put(folder / GONE[1], GONE[0])
    os.mkfifo(folder / GONE[2])
    clean.main(environ)
    assert names(folder) == sorted(GONE[:3])
    assert names(folder / GONE[1]) == [GONE[0]]
    assert target.exists()


@pytest.mark.skipif(UID != 0, reason="only root can own files as two users")
def test_root_removes_a_users_file_but_not_one_whose_owner_is_not_the_one_in_its_name(
    environ: "dict[bytes, bytes]", tmp_path: Path
) -> None:
    folder = tmp_path / "tmpdir"
    users, forged = (".eessi-arch-guard.1001.n1.42.0.prolog.a", ".eessi-arch-guard.1002.n1.42.0.prolog.a")
    for name in (users, forged):
        os.chown(put(folder, name), 1001, 1001)
    clean.main(environ)
    assert names(folder) == [forged]


def test_without_a_job_nothing_is_touched(environ: "dict[bytes, bytes]", tmp_path: Path) -> None:
    put(tmp_path / "tmpdir", GONE[0])
    assert clean.main({b"TMPDIR": environ[b"TMPDIR"]}) == 0
    assert names(tmp_path / "tmpdir") == [GONE[0]]


def test_a_folder_that_is_not_there_is_no_error(environ: "dict[bytes, bytes]", tmp_path: Path) -> None:
    (tmp_path / "fallback").rmdir()
    assert clean.main({**environ, b"TMPDIR": b"/nonexistent"}) == 0


def test_a_sweep_takes_this_users_files_older_than_a_day(tmp_path: Path) -> None:
    old = put(tmp_path, f".eessi-arch-guard.{UID}.n9.1.0.prolog.a", CACHE_AGE_MAX_S + 60)
    put(tmp_path, f".eessi-arch-guard.{UID}.n9.2.0.prolog.a", CACHE_AGE_MAX_S - 60)
    put(tmp_path, f".eessi-arch-guard.{UID + 1}.n9.1.0.prolog.a", CACHE_AGE_MAX_S + 60)
    put(tmp_path, "other", CACHE_AGE_MAX_S + 60)
    clean.sweep(os.fsencode(tmp_path))
    assert not old.exists()
    assert len(names(tmp_path)) == 3


def test_a_sweep_does_bounded_work(tmp_path: Path) -> None:
    for number in range(SWEEP_FILES_MAX_COUNT + 30):
        put(tmp_path, f".eessi-arch-guard.{UID}.n9.{number}.0.prolog.a", CACHE_AGE_MAX_S + 60)
    clean.sweep(os.fsencode(tmp_path))
    assert len(names(tmp_path)) == 30
