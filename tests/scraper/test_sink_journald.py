# SPDX-License-Identifier: GPL-2.0-or-later
"""Against systemd-journald itself, started in a namespace of its own."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base.faults import NodeFault
from guard.scraper import line
from guard.scraper.sinks import journald
from guard.scraper.sinks.journald import JournaldSink
from tests.conftest import need, need_program
from tests.scraper import records
from tests.scraper.lines import items, many

PROGRAM = "/lib/systemd/systemd-journald"


def read_entry(data: bytes) -> "dict[str, bytes]":
    """Fields of one entry, strictly by JOURNAL_NATIVE_PROTOCOL.md."""
    found: dict[str, bytes] = {}
    while data:
        head, _, rest = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert len(value) == size and rest[:1] == b"\n"
            rest = rest[1:]
        text = name.decode("ascii")
        assert (
            text.replace("_", "A").isalnum() and text.upper() == text and not text.startswith("_") and len(text) <= 64
        )
        assert text not in found
        found[text] = value
        data = rest
    return found


@given(st.text(), st.text())
def test_an_entry_holds_any_text(body: str, user: str) -> None:
    fields = {**records.log(body, user_name=user), "scraper": {"received": 1}}
    found = read_entry(journald.entry("abc-1", line.whole(fields), "slurm"))
    assert found["MESSAGE"].decode("utf-8") == (body[:-1] if body.endswith("\n") else body)
    assert found["SLURM_USER_NAME"].decode("utf-8") == user
    assert (found["SYSLOG_IDENTIFIER"], found["SLURM_JOB_ID"], found["RELAY_ID"]) == (b"slurm", b"174", b"abc-1")


class Journald:
    """A running systemd-journald in a namespace of this test process."""

    def __init__(self) -> None:
        need("systemd-journald", Path(PROGRAM).exists())
        self.journalctl = need_program("journalctl")
        if os.geteuid() != 0:
            pytest.skip("journald needs root")
        self.namespace = f"relay{os.getpid()}"
        self.socket = f"/run/systemd/journal.{self.namespace}/socket"
        os.makedirs("/run/systemd", exist_ok=True)
        with open("/etc/machine-id", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # tests of another worker may be at it too
            if not os.path.getsize(file.name):
                file.write(os.urandom(16).hex() + "\n")
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it takes entries."""
        self.process = subprocess.Popen([PROGRAM, self.namespace], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                if probe.connect_ex(self.socket) == 0:
                    return
            time.sleep(0.01)
        raise AssertionError("journald does not start")

    def entries(self, count: int) -> "list[dict[str, Any]]":
        """The entries of `slurm`, once there are so many."""
        deadline_s = time.monotonic() + 120
        found: list[dict[str, Any]] = []
        while time.monotonic() < deadline_s:
            done = subprocess.run(
                [self.journalctl, f"--namespace={self.namespace}", "-o", "json", "--all", "-t", "slurm"],
                capture_output=True,
                text=True,
                check=False,
            )
            found = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
            if len(found) >= count:
                break
            time.sleep(0.05)
        return found

    def stop(self) -> None:
        """Ends it and removes what it kept."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        for folder in Path("/run/log/journal").glob(f"*.{self.namespace}"):
            shutil.rmtree(folder)
        for folder in Path("/var/log/journal").glob(f"*.{self.namespace}"):
            shutil.rmtree(folder)
        shutil.rmtree(f"/run/systemd/journal.{self.namespace}", ignore_errors=True)


@pytest.fixture
def running() -> Iterator[Journald]:
    made = Journald()
    yield made
    made.stop()


def test_journald_keeps_every_field_and_a_line_that_no_datagram_holds(running: Journald) -> None:
    long = "y" * 1_500_000
    what = [
        records.log("a\u00e9 \n"),
        records.log("two\nlines", unbuffered=True),
        records.log(long),
        records.job("job_end"),
    ]
    verdict = JournaldSink(running.socket, "slurm").send(items(what))
    assert not verdict.retry and not verdict.refused
    found = running.entries(4)
    assert [entry["MESSAGE"] for entry in found] == ["a\u00e9 ", "two\nlines", long, "job_end job 174 on node1"]
    assert found[0]["SLURM_JOB_ID"] == "174" and found[0]["SLURM_TIME"] == "1786000818715000001"
    assert found[0]["SLURM_STREAM"] == "stdout" and found[0]["_PID"] == str(os.getpid())


def test_journald_restarted_gets_the_rest(running: Journald) -> None:
    sink = JournaldSink(running.socket, "slurm")
    sink.send(items(many(5)))
    running.entries(5)  # under systemd the socket outlives journald; here what it has not read would go with it
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(120)
    with pytest.raises(NodeFault):
        sink.send(items(many(5, 5)))
    running.start()
    sink.send(items(many(5, 5)))
    assert [entry["MESSAGE"] for entry in running.entries(10)] == [f"line {number}" for number in range(10)]


def test_nobody_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(NodeFault):
        JournaldSink(str(tmp_path / "none"), "slurm").send(items(many(1)))
