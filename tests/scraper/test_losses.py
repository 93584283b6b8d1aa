# SPDX-License-Identifier: GPL-2.0-or-later
from pathlib import Path

import pytest

from guard.scraper.limits import LOG_KEEP_S
from guard.scraper.losses import Losses

REPORT = b"[174.0] [/s] relay dropped 7 records in total, the relay is not draining fast enough\n"


def write(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_what_is_reported_while_no_process_looks_is_new_to_the_next_one(tmp_path: Path) -> None:
    log = tmp_path / "slurmd.log"
    log.write_bytes(REPORT)
    first = Losses(str(log), str(tmp_path))
    assert first.new() == []
    first.keep([(174, "0")], 0.0, True)
    write(log, b"something else\n" + REPORT)
    second = Losses(str(log), str(tmp_path))
    assert second.steps == [(174, "0")]
    assert [(report.job_id, report.step_id, report.count) for report in second.new()] == [(174, "0", 7)]


def test_the_place_is_kept_now_and_then(tmp_path: Path) -> None:
    log = tmp_path / "slurmd.log"
    log.touch()
    first = Losses(str(log), str(tmp_path))
    write(log, REPORT)
    assert len(first.new()) == 1
    first.keep([], LOG_KEEP_S - 1, False)
    # Not kept yet: the next process would begin at the end of the log.
    assert not (tmp_path / "losses.json").exists()
    first.keep([], LOG_KEEP_S + 1, False)
    write(log, REPORT)
    assert len(Losses(str(log), str(tmp_path)).new()) == 1


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b'{"place": null, "steps": []}', b'{"place": [1, 2], "steps": [3]}', b"\xff"]
)
def test_what_cannot_be_taken_up_is_as_if_nothing_had_been_kept(kept: bytes, tmp_path: Path) -> None:
    (tmp_path / "losses.json").write_bytes(kept)
    (tmp_path / "slurmd.log").write_bytes(REPORT)
    found = Losses(str(tmp_path / "slurmd.log"), str(tmp_path))
    assert (found.steps, found.new()) == ([], [])
