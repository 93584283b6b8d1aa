# SPDX-License-Identifier: GPL-2.0-or-later
import os
import socket
from pathlib import Path

import pytest

from guard.relay.original import Original

BIG = bytes(range(256)) * 2048  # 512 KiB


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, False)
    out = b""
    while True:
        try:
            out += os.read(fd, 1 << 20)
        except BlockingIOError:
            return out


@pytest.mark.parametrize("can_reopen", [True, False])
def test_a_full_pipe_leaves_a_rest_and_is_not_made_non_blocking_for_others(can_reopen: bool) -> None:
    source, end = os.pipe()
    original = Original(end)
    original._is_small = not can_reopen
    if not can_reopen:
        original.fd = end
    rest, got = BIG, b""
    for _ in range(100):
        rest = original.write(rest)
        got += read_all(source)
        if not rest:
            break
    assert got == BIG
    assert os.get_blocking(end)
    rest = original.write(BIG)
    assert 0 < len(rest) < len(BIG)
    os.close(source)
    with pytest.raises(BrokenPipeError):
        original.write(rest)
    os.close(end)


def test_a_file_takes_all_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before ")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    assert Original(fd).write(b"after") == b""
    assert path.read_bytes() == b"before after"
    os.close(fd)


def test_a_socket_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    rest = Original(ours.fileno()).write(BIG * 4)
    assert 0 < len(rest) < 4 * len(BIG)
    assert ours.getblocking()
    theirs.close()
    ours.close()


def test_a_full_disk_is_an_error() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        Original(fd).write(b"x")
    os.close(fd)
