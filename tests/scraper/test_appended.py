# SPDX-License-Identifier: GPL-2.0-or-later
import os
from pathlib import Path

import pytest

from guard.scraper import appended


@pytest.mark.parametrize(
    ("seen", "given", "looks_count"), [(b"a\n", b"a\n", 1), (b"a\n\0\0", b"a\nb\n", 2), (b"", b"", 1)]
)
def test_only_zeros_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bytes, given: bytes, looks_count: int
) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\n")
    really, looks = os.pread, [seen]

    def pread(fd: int, size_bytes: int, offset: int) -> bytes:
        looks.append(really(fd, size_bytes, offset))
        return looks[len(looks) - 2]

    monkeypatch.setattr(os, "pread", pread)
    with open(tmp_path / "file", "rb") as file:
        assert appended.pread(file.fileno(), 99, 0) == given
    assert len(looks) - 1 == looks_count


def test_zeros_that_are_in_the_file_are_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ab\0d")
    with open(tmp_path / "file", "rb") as file:
        assert appended.pread(file.fileno(), 2, 1) == b"b\0"
