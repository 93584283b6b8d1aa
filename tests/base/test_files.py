# SPDX-License-Identifier: GPL-2.0-or-later
"""The step cache's files: on a fake file system (O_NOFOLLOW, O_EXCL, modes, rename), else a real one."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem, set_uid

from guard.base import files

HERE = b"/shared/name"
HERE_TEXT = "/shared/name"  # pyfakefs links, and makes folders, by text only
MAX = 1000


def mode_of(path: bytes) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def our_file(path: bytes, content: bytes = b"content", mode: int = 0o600) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
    os.write(fd, content)
    os.close(fd)
    os.chmod(path, mode)


@pytest.fixture
def shared(fs: FakeFilesystem) -> FakeFilesystem:
    set_uid(1000)
    fs.create_dir("/shared", perm_bits=0o1777)
    fs.create_dir("/else", perm_bits=0o777)
    return fs


def test_a_published_file_is_read_back_whole_and_is_0600(shared: FakeFilesystem) -> None:
    files.publish(HERE, b"\0whole\n")
    assert files.read(HERE, MAX) == b"\0whole\n"
    assert mode_of(HERE) == 0o600
    assert os.listdir("/shared") == ["name"]


def test_nothing_there_is_none(shared: FakeFilesystem) -> None:
    assert files.read(HERE, MAX) is None


LINKS: "dict[str, Callable[[], None]]" = {
    "to a file": lambda: our_file(b"/else/target"),
    "to a folder": lambda: os.mkdir("/else/target"),
    "to nothing": lambda: None,
}


@pytest.mark.parametrize("target", LINKS)
def test_neither_reader_nor_lock_follows_a_link(shared: FakeFilesystem, target: str) -> None:
    LINKS[target]()
    os.symlink("/else/target", HERE_TEXT)
    before = sorted(os.listdir("/else"))
    for use in (lambda: files.read(HERE, MAX), lambda: files.open_lock(HERE)):
        with pytest.raises(files.Unusable, match="symbolic links"):
            use()
    assert sorted(os.listdir("/else")) == before


def test_a_file_of_another_user_is_not_used(shared: FakeFilesystem) -> None:
    our_file(HERE, b"")
    set_uid(0)
    os.chown(HERE_TEXT, 1001, 1001)
    for use in (lambda: files.read(HERE, MAX), lambda: files.open_lock(HERE)):
        with pytest.raises(files.Unusable, match="not this user's"):
            use()


def test_a_folder_is_not_used(shared: FakeFilesystem) -> None:
    os.mkdir(HERE_TEXT)
    for use in (lambda: files.read(HERE, MAX), lambda: files.open_lock(HERE), lambda: files.publish(HERE, b"x")):
        with pytest.raises(files.Unusable):
            use()
    assert os.listdir("/shared") == ["name"]


def test_publishing_makes_its_temporary_file_with_o_excl_beside_the_target_and_renames_it(
    shared: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: "list[tuple[bytes, int, int]]" = []
    renamed: "list[tuple[bytes, bytes]]" = []
    real_open, real_rename = os.open, os.rename

    def watched_open(path: bytes, flags: int, mode: int = 0o777) -> int:
        made.append((path, flags, mode))
        return real_open(path, flags, mode)

    def watched_rename(old: bytes, new: bytes) -> None:
        renamed.append((old, new))
        real_rename(old, new)

    monkeypatch.setattr(os, "open", watched_open)
    monkeypatch.setattr(os, "rename", watched_rename)
    files.publish(HERE, b"x")
    ((path, flags, mode),) = made
    assert path.startswith(HERE + b".")
    assert len(path) == len(HERE) + 17
    wanted = os.O_EXCL | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    assert (flags & wanted, mode) == (wanted, 0o600)
    assert renamed == [(path, HERE)]


def test_a_failed_write_leaves_nothing(shared: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(files.Unusable, match="No space"):
        files.publish(HERE, b"x")
    assert os.listdir("/shared") == []


# On a real file system: pyfakefs sets the mode of a file that is only opened, has no umask, FIFO, socket or device, and
# refuses a rename over a name given as bytes.


@pytest.fixture
def here(tmp_path: Path) -> bytes:
    (tmp_path / "shared").mkdir()
    return os.fsencode(tmp_path / "shared" / "name")


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o700, 0o604, 0o400, 0o4600])
def test_a_file_of_another_mode_is_not_used(here: bytes, mode: int) -> None:
    our_file(here, b"", mode)
    for use in (lambda: files.read(here, MAX), lambda: files.open_lock(here)):
        with pytest.raises(files.Unusable):
            use()


def test_a_file_with_another_name_is_not_used(here: bytes) -> None:
    our_file(here, b"")
    os.link(here, here + b".other")
    for use in (lambda: files.read(here, MAX), lambda: files.open_lock(here)):
        with pytest.raises(files.Unusable, match="another name"):
            use()


def test_a_file_that_is_too_large_is_not_read(here: bytes) -> None:
    our_file(here, b"x" * (MAX + 1))
    with pytest.raises(files.Unusable, match="too large"):
        files.read(here, MAX)


def test_a_lock_with_content_is_not_ours(here: bytes) -> None:
    our_file(here, b"x")
    with pytest.raises(files.Unusable, match="too large"):
        files.open_lock(here)


def test_publishing_replaces_a_link_and_leaves_its_target_alone(here: bytes, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    os.symlink(os.fsencode(target), here)
    files.publish(here, b"ours")
    assert files.read(here, MAX) == b"ours"
    assert target.read_bytes() == b"theirs"


def test_a_reader_sees_the_old_content_until_the_new_is_whole(here: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    files.publish(here, b"old")
    seen = []
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        seen.append(files.read(here, MAX))
        return real_write(fd, bytes(data[:2]))

    monkeypatch.setattr(os, "write", write)
    files.publish(here, b"new content")
    monkeypatch.undo()
    assert seen == [b"old"] * 6
    assert files.read(here, MAX) == b"new content"


def test_nothing_but_a_regular_file_is_used_and_nothing_hangs(tmp_path: Path) -> None:
    fifo, sock, device = (os.fsencode(tmp_path / name) for name in ("fifo", "socket", "device"))
    os.mkfifo(fifo, 0o600)
    server = socket.socket(socket.AF_UNIX)
    server.bind(sock)
    odd = [fifo, sock]
    if os.geteuid() == 0:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        odd.append(device)
    for path in odd:
        with pytest.raises(files.Unusable):
            files.read(path, MAX)
        with pytest.raises(files.Unusable):
            files.open_lock(path)
    server.close()


def test_a_taken_temporary_name_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter([b"\1" * 8, b"\2" * 8, b"\3" * 8])
    monkeypatch.setattr(os, "urandom", lambda _: next(names))
    path = os.fsencode(tmp_path / "name")
    our_file(path + b"." + b"01" * 8)
    os.symlink(tmp_path / "target", path + b"." + b"02" * 8)
    files.publish(path, b"x")
    assert files.read(path, MAX) == b"x"
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("mask", [0o777, 0o000, 0o022])
def test_the_jobs_umask_changes_nothing_and_is_left_alone(tmp_path: Path, mask: int) -> None:
    path = os.fsencode(tmp_path / "name")
    before = os.umask(mask)
    try:
        files.publish(path, b"x")
        os.close(files.open_lock(path + b".lock"))
        os.close(files.open_lock(path + b".lock"))
        assert files.read(path, MAX) == b"x"
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert mode_of(path) == mode_of(path + b".lock") == 0o600
