# SPDX-License-Identifier: GPL-2.0-or-later
import errno
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.base.faults import NodeFault
from guard.scraper import spool


def lines(first: int, count: int) -> "list[bytes]":
    return [b"line %d\n" % number for number in range(first, first + count)]


def drained(reader: spool.Reader, lines_max: int = 7, bytes_max: int = 4096) -> "list[tuple[int, bytes]]":
    """Everything that is there, as (number, line), the cursor moved behind it."""
    found: list[tuple[int, bytes]] = []
    while True:
        piece = reader.read(lines_max, bytes_max)
        if piece is None:
            return found
        assert len(piece.lines) <= lines_max
        found += list(enumerate(piece.lines, piece.first))
        reader.cursor = piece.after


def numbered(first: int, count: int) -> "list[tuple[int, bytes]]":
    return list(enumerate(lines(first, count), first))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = str(tmp_path / "spool")
    spool.prepare(path)
    return path


def test_what_is_appended_is_read_in_order_over_segments(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=100)
    for first in range(0, 100, 5):
        writer.append(lines(first, 5))
    assert len(spool.segments(folder)) > 3
    assert drained(spool.Reader(folder, None)) == numbered(0, 100)


def test_a_reader_at_the_end_sees_what_comes_later(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=100)
    reader = spool.Reader(folder, None)
    for first in range(0, 60, 3):
        writer.append(lines(first, 3))
        assert drained(reader) == numbered(first, 3)
    assert reader.lost_count == 0


def test_what_is_written_between_a_readers_two_looks_is_not_passed_over(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=20)

    class Racing(spool.Reader):
        """Between its look into the segment and its look for the next one the writer goes on, into the next one."""

        def _read(self, lines_max: int, bytes_max: int) -> "spool.Piece | None":
            piece = super()._read(lines_max, bytes_max)
            if piece is None and not writer.number:
                writer.append(lines(0, 5))
                writer.append(lines(5, 5))
            return piece

    reader = Racing(folder, None)
    assert drained(reader) == numbered(0, 10)
    assert reader.lost_count == 0


def test_reading_does_not_move_the_cursor(folder: str) -> None:
    spool.Writer(folder).append(lines(0, 3))
    reader = spool.Reader(folder, None)
    for _ in range(2):
        piece = reader.read(2, 4096)
        assert piece is not None and piece.lines == lines(0, 2)


def test_a_line_longer_than_a_batch_comes_alone(folder: str) -> None:
    spool.Writer(folder).append([b"a\n", b"x" * 10_000 + b"\n", b"b\n"])
    reader = spool.Reader(folder, None)
    assert [len(line) for _, line in drained(reader, 9, 16)] == [2, 10_001, 2]


def test_zeros_that_a_read_beside_an_append_shows_are_read_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = spool.Writer(folder)
    reader = spool.Reader(folder, None)
    writer.append([b"one\n", b"two\n"])
    seen = [b"one\n\0\0\0\0"]
    really = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: seen.pop() if seen else really(fd, size, at))
    piece = reader.read(9, 99)
    assert piece and piece.lines == [b"one\n", b"two\n"]


def test_the_next_writer_goes_on_behind_the_last_whole_line(folder: str) -> None:
    writer = spool.Writer(folder)
    writer.append(lines(0, 3))
    with open(spool.path(folder, 0), "ab") as file:
        file.write(b"torn by kill -9")
    reader = spool.Reader(folder, None)
    assert drained(reader) == numbered(0, 3)
    again = spool.Writer(folder)
    assert again.number == 3
    assert Path(spool.path(folder, 0)).read_bytes() == b"".join(lines(0, 3))
    again.append(lines(3, 2))
    assert drained(reader) == numbered(3, 2)


def test_no_number_is_given_twice_when_a_power_cut_took_what_a_sink_had_read(folder: str) -> None:
    spool.Writer(folder).append(lines(0, 10))
    reader = spool.Reader(folder, None)
    drained(reader)
    os.truncate(spool.path(folder, 0), 21)
    writer = spool.Writer(folder, reader.cursor.number)
    writer.append(lines(10, 2))
    assert drained(reader) == numbered(10, 2)
    assert reader.lost_count == 0


def test_a_full_disk_takes_a_batch_whole_or_not_at_all(folder: str) -> None:
    writer = spool.Writer(folder)
    writer.append(lines(0, 3))
    size = os.path.getsize(spool.path(folder, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Like a disk with ten bytes left: the kernel writes these, then refuses.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(OSError) as caught:
            writer.append(lines(3, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert os.path.getsize(spool.path(folder, 0)) == size
    writer.append(lines(3, 3))
    assert drained(spool.Reader(folder, None)) == numbered(0, 6)


def test_a_new_sink_begins_with_the_oldest_that_is_there_and_has_lost_nothing(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=20)
    for first in range(0, 20, 5):
        writer.append(lines(first, 5))
    os.unlink(spool.path(folder, 0))
    reader = spool.Reader(folder, None)
    assert drained(reader)[0][0] == spool.segments(folder)[0] and reader.lost_count == 0


def test_what_every_sink_has_read_is_swept_and_nothing_else(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=20)
    for first in range(0, 40, 5):
        writer.append(lines(first, 5))
    fast, slow = spool.Reader(folder, None), spool.Reader(folder, None)
    drained(fast)
    piece = slow.read(7, 4096)
    assert piece is not None
    slow.cursor = piece.after
    spool.sweep(folder, [fast.cursor, slow.cursor], 1 << 30)
    assert drained(slow) == numbered(5, 35)
    spool.sweep(folder, [fast.cursor, None], 1 << 30)
    assert drained(spool.Reader(folder, None))[-1][0] == 39
    spool.sweep(folder, [fast.cursor, slow.cursor], 1 << 30)
    assert len(spool.segments(folder)) == 1


def test_past_its_bound_the_spool_throws_the_oldest_away_and_the_reader_counts_it(folder: str) -> None:
    writer = spool.Writer(folder, segment_max_bytes=20)
    slow = spool.Reader(folder, None)
    piece = None
    for first in range(0, 100, 5):
        writer.append(lines(first, 5))
        piece = piece or slow.read(2, 4096)
    assert piece is not None
    slow.cursor = piece.after
    left_bytes, unread_count = spool.sweep(folder, [slow.cursor], 200)
    assert left_bytes <= 200 and unread_count > 0
    # A segment that is open is read to its end, though it has no name any more.
    found = drained(slow)
    numbers = [number for number, _ in found]
    assert found == [(number, b"line %d\n" % number) for number in numbers]
    assert numbers[-1] == 99
    assert slow.lost_count == 98 - len(found)


def test_cursors_stay_with_their_spool(folder: str, tmp_path: Path) -> None:
    name = spool.prepare(folder)
    assert spool.prepare(folder) == name
    spool.save_cursor(folder, name, "files", spool.Cursor(7, 5, 14), {"a.ndjson": 3})
    cursor, kept = spool.load_cursor(folder, name, "files")
    assert cursor is not None and (cursor.number, cursor.segment, cursor.offset) == (7, 5, 14)
    assert kept == {"a.ndjson": 3}
    assert spool.load_cursor(folder, "another", "files") == (None, {})
    assert spool.load_cursor(folder, name, "none") == (None, {})
    Path(folder, "cursor.files").write_bytes(b"junk")
    assert spool.load_cursor(folder, name, "files") == (None, {})


def test_a_spool_that_others_can_write_to_is_refused(folder: str) -> None:
    os.chmod(folder, 0o777)
    with pytest.raises(NodeFault) as caught:
        spool.prepare(folder)
    assert caught.value.code == "spool-failed"


def test_a_spool_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NodeFault):
        spool.prepare(str(tmp_path / "file" / "spool"))


def test_sync_takes_whatever_is_there(folder: str) -> None:
    spool.sync(folder)
    spool.Writer(folder).append(lines(0, 1))
    spool.sync(folder)


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 6).map(lambda count: ("append", count)),
            st.tuples(st.just("read"), st.integers(1, 9)),
            st.sampled_from([("restart", 0), ("sweep", 0)]),
        ),
        max_size=40,
    )
)
def test_any_order_of_writing_reading_restarting_and_sweeping_gives_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, steps: "list[tuple[str, int]]"
) -> None:
    folder = str(tmp_path_factory.mktemp("spool"))
    spool.prepare(folder)
    writer = spool.Writer(folder, 0, 30)
    reader = spool.Reader(folder, None)
    found: list[tuple[int, bytes]] = []
    written = 0
    for what, number in steps:
        if what == "append":
            writer.append(lines(written, number))
            written += number
        elif what == "read":
            piece = reader.read(number, 16)
            if piece:
                found += list(enumerate(piece.lines, piece.first))
                reader.cursor = piece.after
        elif what == "restart":
            reader.close()
            writer.close()
            reader = spool.Reader(folder, reader.cursor)
            writer = spool.Writer(folder, reader.cursor.number, 30)
        else:
            spool.sweep(folder, [reader.cursor], 1 << 30)
    found += drained(reader)
    assert found == numbered(0, written)
    assert reader.lost_count == 0
