# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's own producer and the scraper, both as real processes: from a task's write to a line in a file.

RELAY_RECORDS=1000000 makes the first two tests long ones.
"""

import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.base import message
from guard.report import main as report
from guard.scraper.limits import RECEIVE_SLOTS_COUNT
from tests.relay.rig import JOB_ID, Rig, eventually
from tests.scraper.running import Scraper
from tests.scraper.test_end_to_end import RECORDS, stop_settled

CAP_BYTES = 4096
STEPS = 3
Line = dict[str, Any]
# Writes the lines of a file in bursts, so that no step is a hundred times faster than any reader, once it may begin.
WRITER = """
import os, sys, time
while not os.path.exists(sys.argv[4]):
    time.sleep(0.01)
data = open(sys.argv[1], "rb").read()
size, pause_s = int(sys.argv[2]), float(sys.argv[3])
for at in range(0, len(data), size):
    sys.stdout.buffer.write(data[at : at + size])
    sys.stdout.buffer.flush()
    time.sleep(pause_s)
"""


@pytest.fixture
def node(tmp_path: Path) -> "Iterator[tuple[Rig, Scraper]]":
    """The relay's daemon, and a scraper at its socket that follows its log; neither is started."""
    rig = Rig()
    rig.log_path.touch()
    scraper = Scraper(tmp_path)
    scraper.socket = str(rig.socket)
    scraper.arguments[scraper.arguments.index("--socket") + 1] = scraper.socket
    (tmp_path / "scrape.toml").write_text(f'slurmd_log = "{rig.log_path}"\n')
    scraper.arguments += ["--config", str(tmp_path / "scrape.toml")]
    yield rig, scraper
    rig.close()
    if scraper.process and scraper.process.poll() is None:
        scraper.stop(signal.SIGKILL)


def output(step: int, count: int) -> bytes:
    """About count lines of UTF-8, one in fifty longer than a record; the last has no newline."""
    lines = []
    for number in range(count):
        text = f'{step}.{number} größer \u2192 \U0001d11e \t\\"/' if number % 3 else f"{step}.{number}"
        if number % 50 == 7:
            text += " €" * (1500 + 700 * (number % 7))
        lines.append(text)
    return "\n".join(lines).encode("utf-8")


def started(rig: Rig, data: "dict[int, bytes]", burst_bytes: int, pause_s: float) -> "list[subprocess.Popen[bytes]]":
    """A task for each step, which all begin to write at once."""
    go = rig.base / "go"
    processes = []
    for step, written in data.items():
        path = rig.base / f"data{step}"
        path.write_bytes(written)
        writer = [sys.executable, "-c", WRITER, str(path), str(burst_bytes), str(pause_s), str(go)]
        processes.append(relayed(rig, step, writer))
    go.touch()
    return processes


def relayed(rig: Rig, step: int, command: "list[str]") -> "subprocess.Popen[bytes]":
    """`relay exec` with the command below it. On a machine so busy that the relay does not answer within half a second
    it becomes the command, as it should, and here it is started again."""
    while True:
        with open(rig.base / f"out{step}", "wb") as out:
            process = subprocess.Popen(rig.exec_command("--", *command), env=rig.environ(step), stdout=out)
        place = Path(f"/proc/{process.pid}")
        children = place / "task" / str(process.pid) / "children"
        eventually(lambda: children.read_bytes() or b"--folder" not in (place / "cmdline").read_bytes())  # noqa: B023
        if children.read_bytes():
            return process
        process.kill()
        process.wait()


def own_output(rig: Rig, step: int, process: "subprocess.Popen[bytes]") -> bytes:
    """What the task's user got, when the step is over."""
    assert process.wait(600) == 0
    return (rig.base / f"out{step}").read_bytes()


def settled(rig: Rig, scraper: Scraper) -> "list[Line]":
    """Ends the job and, after its last record, the scraper; gives all lines."""
    rig.event("job_end")
    eventually(lambda: rig.workers() == [])
    eventually(lambda: any(b'"type":"job_end"' in path.read_bytes()[-4096:] for path in scraper.out.glob("*.ndjson")))
    stop_settled(scraper)
    return scraper.lines()


def bodies(lines: "list[Line]", step: int) -> "list[str]":
    return [one["body"] for one in lines if one["type"] == "log" and one["slurm"]["step_id"] == str(step)]


def pieces(lines: "list[Line]") -> int:
    """Of how many records these lines were made."""
    return sum(one["scraper"].get("pieces", 1) for one in lines if one["type"] != "loss")


def dropped(rig: Rig) -> int:
    """What the producer says it has dropped: the last total of each step and reason."""
    totals = {}
    for step, count, reason in re.findall(
        r"\[174\.(\S+?)\] .*relay dropped (\d+) records? (in total|due to)", rig.log()
    ):
        totals[step, reason] = int(count)
    return sum(totals.values())


def records_of(data: bytes) -> int:
    """How many records the seed makes of a stream without NUL: one a line, one more at each cap."""
    count = 0
    for line in data.splitlines(keepends=True):
        start = 0
        while start < len(line):
            start += CAP_BYTES
            while start < len(line) and line[start] & 0xC0 == 0x80:
                start -= 1
            count += 1
    return count


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_what_tasks_write_is_in_the_files_byte_for_byte_and_every_record_is_counted(
    node: "tuple[Rig, Scraper]",
) -> None:
    rig, scraper = node
    data = {step: output(step, RECORDS // STEPS) for step in range(STEPS)}
    scraper.start()
    rig.start_node()
    rig.event("job_start")
    started_s = time.monotonic()
    # 64 KiB in 20 ms is 3 MiB a second for each step; the scraper keeps up with that on a busy machine.
    processes = started(rig, data, 1 << 16, 0.02)
    for step, process in enumerate(processes):
        assert md5(own_output(rig, step, process)) == md5(data[step])
    lines = settled(rig, scraper)
    passed_s = time.monotonic() - started_s
    assert dropped(rig) == 0
    for step in range(STEPS):
        found = bodies(lines, step)
        assert md5("".join(found).encode("utf-8")) == md5(data[step]), "the files are not what the task wrote"
        # A line of the task is a line of the file.
        assert len(found) == len(data[step].split(b"\n"))
    expected = sum(map(records_of, data.values())) + 2 + 2 * STEPS
    assert pieces(lines) == scraper.counters()["received_records_total"] == expected
    assert not any(one["scraper"].get("doubtful") for one in lines)
    print(f"{expected} records, {len(lines)} lines, {passed_s:.1f} s")


def test_restarted_while_a_job_writes_what_is_missing_is_what_the_producer_says_it_dropped(
    node: "tuple[Rig, Scraper]",
) -> None:
    rig, scraper = node
    rig.configure(parameters="stepd_ring_mbytes=1")
    data = {step: output(step, RECORDS // STEPS) for step in range(STEPS)}
    scraper.start()
    rig.start_node()
    rig.event("job_start")
    processes = started(rig, data, 1 << 15, 0.02)
    # The first time away for longer than a ring of 1 MiB lasts; then again and again.
    assert scraper.stop() == 0
    eventually(lambda: all(f"[{JOB_ID}.{step}] [{rig.socket}] relay dropped" in rig.log() for step in range(STEPS)))
    scraper.start()
    starts = 2
    while any(process.poll() is None for process in processes):
        time.sleep(0.7)
        assert scraper.stop() == 0
        time.sleep(0.1)
        scraper.start()
        starts += 1
    for step, process in enumerate(processes):
        assert md5(own_output(rig, step, process)) == md5(data[step])
    lines = settled(rig, scraper)
    lost = dropped(rig)
    assert lost > 0
    expected = sum(map(records_of, data.values())) + 2 + 2 * STEPS
    assert expected - pieces(lines) == lost
    for step in range(STEPS):
        told = data[step].decode("utf-8").splitlines(keepends=True)
        place = {text: number for number, text in enumerate(told)}
        numbers = []
        for one in lines:
            if one["type"] != "log" or one["slurm"]["step_id"] != str(step):
                continue
            if one["body"] in place:
                numbers.append(place[one["body"]])
            else:
                # Never a line that looks whole and is not.
                assert one["scraper"]["doubtful"] is True
        assert numbers == sorted(set(numbers))
    print(f"{expected} records, {starts} starts, {lost} dropped, {pieces(lines)} arrived")
    assert {one["slurm"]["step_id"] for one in lines if one["type"] == "loss"} == {str(step) for step in range(STEPS)}


def test_killed_while_a_job_writes_only_what_was_in_its_hands_is_missing(node: "tuple[Rig, Scraper]") -> None:
    """With the socket held by somebody else, as systemd does: the producer notices nothing."""
    rig, scraper = node
    data = {step: output(step, RECORDS // STEPS) for step in range(STEPS)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        held.bind(scraper.socket)
        scraper.held = held
        scraper.start()
        rig.start_node()
        rig.event("job_start")
        processes = started(rig, data, 1 << 15, 0.02)
        kills = 0
        while any(process.poll() is None for process in processes):
            time.sleep(0.7)
            scraper.stop(signal.SIGKILL)
            scraper.start()
            kills += 1
        for step, process in enumerate(processes):
            assert md5(own_output(rig, step, process)) == md5(data[step])
        lines = settled(rig, scraper)
    assert dropped(rig) == 0
    expected = sum(map(records_of, data.values())) + 2 + 2 * STEPS
    # Of the last look at the queue, and the open chain of each stream, of five pieces at most.
    assert 0 <= expected - pieces(lines) <= kills * (RECEIVE_SLOTS_COUNT + STEPS * 5)
    for step in range(STEPS):
        numbers = [int(body.partition(" ")[0].split(".")[1]) for body in bodies(lines, step) if body[:2] == f"{step}."]
        assert numbers == sorted(set(numbers))
    print(f"{expected} records, {kills} kills, {expected - pieces(lines)} missing")


def test_the_guards_line_in_a_jobs_output_is_in_the_report(
    node: "tuple[Rig, Scraper]", capsys: "pytest.CaptureFixture[str]"
) -> None:
    rig, scraper = node
    scraper.start()
    rig.start_node()
    rig.event("job_start")
    said = message.reloaded(7, "node1", "x86_64/amd/zen3->x86_64/amd/zen4").encode() + b"\n"
    (process,) = started(rig, {0: said}, 1 << 15, 0.0)
    assert own_output(rig, 0, process) == said
    settled(rig, scraper)
    assert report.main([*map(str, scraper.out.glob("*.ndjson")), "--json"], {}) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reloads"] == [
        {"was": "x86_64/amd/zen3", "now": "x86_64/amd/zen4", "lines": 1, "jobs": 1, "nodes": 1}
    ]
    assert (result["jobs"]["relayed"], result["jobs"]["unended"], JOB_ID) == (1, 0, 174)
