# SPDX-License-Identifier: GPL-2.0-or-later
import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from guard.base.faults import SiteFault
from guard.scraper import bind

ME = os.geteuid()
OWNERS = frozenset((0, ME))


@pytest.fixture
def path(tmp_path: Path) -> str:
    tmp_path.chmod(0o755)
    return str(tmp_path / "relay-io.sock")


def taken(path: str) -> bind.Bound:
    return bind.bound(path, OWNERS, ME, 0.0)


def refused(path: str) -> str:
    with pytest.raises(SiteFault) as caught:
        taken(path)
    return caught.value.code


def close(bound: bind.Bound) -> None:
    bound.sock.close()
    os.close(bound.lock_fd)


def test_the_socket_is_a_datagram_socket_that_only_its_owner_may_use(path: str) -> None:
    old = os.umask(0)
    try:
        bound = taken(path)
    finally:
        assert os.umask(old) == 0
    found = os.lstat(path)
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600
    assert bound.sock.type == socket.SOCK_DGRAM
    assert bound.qlen == bind.max_dgram_qlen()
    close(bound)


def test_a_dead_socket_is_replaced(path: str) -> None:
    close(taken(path))
    assert os.path.lexists(path)
    bound = taken(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.connect(path)
    close(bound)


def test_a_live_socket_of_another_program_is_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        assert refused(path) == "socket-taken"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.connect(path)


def test_a_live_stream_socket_is_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        assert refused(path) == "socket-taken"
        assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "fifo"])
def test_what_is_no_socket_is_never_removed(path: str, kind: str) -> None:
    if kind == "file":
        Path(path).write_text("mine")
    elif kind == "folder":
        Path(path).mkdir()
    elif kind == "link":
        os.symlink("/nowhere", path)
    else:
        os.mkfifo(path)
    assert refused(path) == "socket-unsafe"
    assert os.path.lexists(path)


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused_as_slurm_refuses_it(path: str, mode: int) -> None:
    Path(path).parent.chmod(mode)
    assert refused(path) == "socket-unsafe"


def test_a_folder_of_another_user_is_refused(path: str) -> None:
    if ME != 0:
        pytest.skip("only root can give a folder away")
    os.chown(Path(path).parent, 12345, -1)
    assert refused(path) == "socket-unsafe"


def test_a_socket_of_another_user_is_not_removed(path: str) -> None:
    if ME != 0:
        pytest.skip("only root can give a socket away")
    close(taken(path))
    os.chown(path, 12345, -1)
    assert refused(path) == "socket-unsafe"


def test_the_socket_is_given_to_slurmuser(path: str) -> None:
    if ME != 0:
        pytest.skip("only root can give a socket away")
    bound = bind.bound(path, frozenset((0, 12345)), 12345, 0.0)
    assert os.lstat(path).st_uid == 12345
    close(bound)


def test_no_folder_is_said(path: str) -> None:
    assert refused(path + "/no/s") == "socket-unsafe"


def test_a_second_scraper_is_refused_and_the_first_keeps_its_socket(path: str) -> None:
    bound = taken(path)
    before = os.lstat(path)
    assert refused(path) == "socket-taken"
    assert os.lstat(path).st_ino == before.st_ino
    close(bound)


def test_a_second_scraper_waits_for_the_first_to_end(path: str) -> None:
    first = taken(path)
    pid = os.fork()
    if pid == 0:
        os.close(first.lock_fd)
        first.sock.close()
        try:
            bind.bound(path, OWNERS, ME, 30.0)
            os._exit(0)
        finally:
            os._exit(1)
    close(first)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_lock_lives_as_long_as_a_child_that_holds_the_socket(path: str) -> None:
    bound = taken(path)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_fd)
        os.read(read_fd, 1)
        os._exit(0)
    os.close(read_fd)
    close(bound)
    assert refused(path) == "socket-taken"
    os.close(write_fd)
    os.waitpid(pid, 0)
    close(taken(path))


def test_a_lock_that_is_a_link_is_not_followed(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", path + ".lock")
    assert refused(path) == "socket-failed"
    assert not (tmp_path / "elsewhere").exists()


def test_only_our_own_file_is_removed_at_the_end(path: str) -> None:
    bound = taken(path)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        bind.unlink_own(bound)
        assert os.path.lexists(path)
    os.unlink(path)
    bind.unlink_own(bound)
    close(bound)
    again = taken(path)
    bind.unlink_own(again)
    assert not os.path.lexists(path)
    close(again)


HANDED = """
import os, sys
from guard.base.faults import SiteFault
from guard.scraper import bind
environ = {b"LISTEN_PID": b"%d" % os.getpid(), b"LISTEN_FDS": b"1"}
try:
    sock = bind.handed_over(environ, os.getpid())
    print(bind.adopted(sock).path, os.get_inheritable(3))
except SiteFault as fault:
    print(fault.code)
"""


def run_with_fd_3(fd: int) -> str:
    """What a process prints that systemd would start with this fd as its first."""
    code = f"import os, sys; os.dup2({fd}, 3); os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", code, HANDED], pass_fds=[fd], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_socket_of_systemd_is_taken_over(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        assert run_with_fd_3(sock.fileno()) == f"{path} False"


def test_another_kind_of_socket_from_systemd_is_refused() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        assert run_with_fd_3(sock.fileno()) == "socket-failed"


def test_what_is_no_socket_from_systemd_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert run_with_fd_3(file.fileno()) == "socket-failed"


@pytest.mark.parametrize(
    "environ",
    [{}, {b"LISTEN_PID": b"1", b"LISTEN_FDS": b"1"}, {b"LISTEN_PID": b"77", b"LISTEN_FDS": b"0"}],
)
def test_a_hand_over_to_another_process_is_not_ours(environ: "dict[bytes, bytes]") -> None:
    assert bind.handed_over(environ, 77) is None


def test_the_lock_is_a_lock(path: str) -> None:
    bound = taken(path)
    fd = os.open(path + ".lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    close(bound)
