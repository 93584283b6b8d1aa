# SPDX-License-Identifier: GPL-2.0-or-later
import os
from pathlib import Path

import pytest

from guard.scraper.tail import Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "slurmd.log"
    path.write_bytes(b"old\n")
    return path


def write(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_only_what_comes_after_the_start_is_read(log: Path) -> None:
    tail = Tail(str(log))
    assert tail.lines() == []
    write(log, b"new\nne")
    assert tail.lines() == [b"new"]
    write(log, b"wer\n")
    assert tail.lines() == [b"newer"]


def test_zeros_that_a_read_beside_an_append_shows_are_read_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = Tail(str(log))
    write(log, b"new\n")
    seen = [bytes(4)]
    really = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: seen.pop() if seen else really(fd, size, at))
    assert tail.lines() == [b"new"]


def test_a_log_that_is_renamed_is_read_to_its_end_and_then_the_new_one(log: Path) -> None:
    tail = Tail(str(log))
    write(log, b"a\n")
    log.rename(log.with_suffix(".1"))
    write(log.with_suffix(".1"), b"b\n")
    write(log, b"c\n")
    assert tail.lines() + tail.lines() == [b"a", b"b", b"c"]


def test_a_log_that_is_cut_is_read_from_its_begin(log: Path) -> None:
    tail = Tail(str(log))
    write(log, b"long enough\n")
    tail.lines()
    log.write_bytes(b"c\n")
    assert tail.lines() == [b"c"]


def test_a_log_that_is_not_there_yet_is_read_when_it_is(tmp_path: Path) -> None:
    tail = Tail(str(tmp_path / "later.log"))
    assert tail.lines() == []
    write(tmp_path / "later.log", b"a\n")
    assert tail.lines() == [b"a"]
    tail.close()


def test_a_line_without_end_is_bounded(log: Path) -> None:
    tail = Tail(str(log))
    for _ in range(50):
        write(log, b"x" * 100_000)
        assert tail.lines() == []
        assert len(tail._rest) <= 2048
    write(log, b"\nnext\n")
    assert tail.lines()[1:] == [b"next"]


def test_the_next_tail_goes_on_where_the_last_one_was(log: Path) -> None:
    before = Tail(str(log))
    write(log, b"a\nhal")
    assert before.lines() == [b"a"]
    place = before.place()
    before.close()
    write(log, b"f\nb\n")
    assert Tail(str(log), place).lines() == [b"half", b"b"]
    log.rename(log.with_suffix(".1"))
    write(log, b"new\n")
    assert Tail(str(log), place).lines() == [b"new"]
