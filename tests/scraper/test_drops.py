# SPDX-License-Identifier: GPL-2.0-or-later
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.scraper import drops

STAMP = "[2026-08-06T10:00:00.123] "
SOCKET = "[/var/spool/slurmd/relay-io.sock] "

REPORTS = [
    # The seed's own line.
    (SOCKET + "relay dropped 1 record due to EMSGSIZE, the smallest being 30123 bytes", (None, None, 1)),
    (
        STAMP + "[174.0] " + SOCKET + "relay dropped 12 records due to EMSGSIZE, the smallest being 9 bytes",
        (174, "0", 12),
    ),
    (STAMP + "[174.batch] " + SOCKET + "the relay is not draining fast enough", (174, "batch", None)),
    (STAMP + "[9.interactive] relay_io: dropped 4096 records in all", (9, "interactive", 4096)),
    # Our producer's: bytes, not records.
    ("[174.0] relay lost 9000 bytes of task 3 stdout before they were records", (174, "0", None)),
    ("[7.batch] relay left 65536 bytes in a worker that hung, they are records only if it goes on", (7, "batch", None)),
]
OTHERS = [
    "relay_io/uds_json: relaying job output to /var/spool/slurmd/relay-io.sock",
    SOCKET + "not connecting, the relay_io socket is not present",
    "[174.0] done with job",
    "[174.0] error: dropped 3 messages",
    "",
]


@pytest.mark.parametrize(("text", "expected"), REPORTS)
def test_a_drop_report_names_its_step_and_number(
    text: str, expected: "tuple[int | None, str | None, int | None]"
) -> None:
    report = drops.parse(text.encode("utf-8"))
    assert report is not None
    assert (report.job_id, report.step_id, report.count) == expected
    assert report.text == text


@pytest.mark.parametrize("text", OTHERS)
def test_other_lines_of_the_log_are_none(text: str) -> None:
    assert drops.parse(text.encode("utf-8")) is None


@given(st.binary(max_size=300))
def test_any_line_can_be_read(text: bytes) -> None:
    drops.parse(b"[1.0] relay dropped 3 records" + text)
    drops.parse(text)
