# SPDX-License-Identifier: GPL-2.0-or-later
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from guard.base.faults import Fault
from guard.report import gather

ROOT = Path(__file__).parents[2]
TEXT = b"".join(b'{"n":%d}\n' % number for number in range(50_000))
LINES = TEXT.split(b"\n")[:-1]
FORMS = {
    "plain": TEXT,
    "gzip": gzip.compress(TEXT),
    "gzip, two members": gzip.compress(TEXT[:100_000]) + gzip.compress(TEXT[100_000:]),
    "zstd": zstandard.compress(TEXT),
    "zstd, two frames": zstandard.compress(TEXT[:100_000]) + zstandard.compress(TEXT[100_000:]),
    "no last newline": TEXT[:-1],
}


@pytest.mark.parametrize("form", FORMS)
def test_lines_come_whatever_the_form(form: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(FORMS[form])
    assert list(gather.lines(str(tmp_path / "x"))) == LINES


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
def test_lines_come_from_stdin(form: str) -> None:
    code = "from guard.report import gather; print(sum(1 for _ in gather.lines('-')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=FORMS[form],
        capture_output=True,
        check=True,
    )
    assert int(done.stdout) == len(LINES)


@pytest.mark.parametrize("content", [b"", b"\n", b"x"])
def test_small_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    assert list(gather.lines(str(tmp_path / "x"))) == content.splitlines()


@pytest.mark.parametrize("content", [gzip.compress(TEXT)[:-100], gzip.compress(TEXT)[:5000] + b"x" * 100])
def test_a_broken_file_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Fault) as caught:
        list(gather.lines(str(tmp_path / "x")))
    assert caught.value.code == "unreadable" and str(tmp_path / "x") in caught.value.detail


def test_no_file_and_a_folder_are_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(Fault) as caught:
            list(gather.lines(str(path)))
        assert caught.value.code == "unreadable"


def test_a_broken_zstd_is_said(tmp_path: Path) -> None:
    whole = zstandard.compress(TEXT)
    for content in (whole[:500], whole[:-1], whole + b"junk" * 100, whole[:500] + b"\0" * 5000):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(Fault) as caught:
            list(gather.lines(str(tmp_path / "x")))
        assert caught.value.code == "unreadable"
