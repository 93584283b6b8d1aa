# SPDX-License-Identifier: GPL-2.0-or-later
import json
import os
import subprocess
from pathlib import Path

from guard.relay import check, settings
from tests.relay.rig import LONG_S, Rig, command, eventually


def checked(rig: Rig, *options: str) -> "tuple[int, list[str]]":
    done = subprocess.run(
        command("check", "--config", str(rig.config), "--folder", str(rig.folder), *options),
        capture_output=True, timeout=LONG_S,
    )  # fmt: skip
    assert done.stderr == b""
    return done.returncode, done.stdout.decode().splitlines()


def without_kernel(lines: "list[str]") -> "list[str]":
    return [line for line in lines if "net." not in line]


def test_all_well_names_what_was_looked_at(rig: Rig) -> None:
    rig.start()
    status, lines = checked(rig)
    assert rig.scraper
    assert [line[:4] for line in without_kernel(lines)] == ["ok  "] * 4
    assert f"{rig.config}: relay_io/uds_json, RelayIODefaultEnabled=yes, socket {rig.socket}" in lines[0]
    bound = next(line for line in lines if "bound by" in line)
    assert f"[{rig.scraper.pid}]" in bound
    assert status == int(any(line.startswith("FAIL") for line in lines))


def test_a_test_record_arrives_on_request(rig: Rig) -> None:
    rig.start()
    _, lines = checked(rig, "--send")
    eventually(lambda: rig.records())
    (sent,) = rig.records()
    assert (sent["type"], sent["body"], sent["slurm"]["job_id"]) == ("log", "relay check\n", 0)
    assert json.loads(lines[-1].partition("sent ")[2]) == sent


def test_each_thing_that_is_wrong_says_what_to_do(rig: Rig) -> None:
    status, lines = checked(rig)
    assert status == 1
    assert "start eessi-relay-node.service" in lines[1]
    assert "the relay_io socket is not present" in lines[2]
    rig.start()
    assert rig.scraper
    rig.socket.parent.chmod(0o777)
    assert "is writable by group or other" in checked(rig)[1][2]
    rig.socket.parent.chmod(0o755)
    rig.socket.chmod(0o666)
    assert "is world-writable" in checked(rig)[1][3]
    rig.scraper.stop()
    rig.scraper = None
    lines = checked(rig, "--send")[1]
    assert f"FAIL nobody is bound to {rig.socket}; start the scraper" in lines
    assert lines[-1].startswith("FAIL the test record could not be sent: ")
    rig.configure(parameters="max_log_kbytes=64")
    most_bytes = int(Path("/proc/sys/net/core/wmem_default").read_text()) - 32
    assert any("lower max_log_kbytes or raise" in line for line in checked(rig)[1]) == (most_bytes < 6 * 65536 + 250)
    rig.config.write_text("")
    assert "RelayIOPlugin is not set" in checked(rig)[1][0]
    rig.config.write_text("x=1")
    status, lines = checked(rig)
    assert (status, len(lines)) == (1, 1)
    assert f"({rig.config}: line 1: x is not a key of this file)" in lines[0]


def kernel(tmp_path: Path, qlen: str, most: str, cap_bytes: int) -> "list[bool]":
    for name, value in (("net/unix/max_dgram_qlen", qlen), ("net/core/wmem_default", most)):
        file = tmp_path / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
    configured = settings.Settings()
    configured.max_log_bytes = cap_bytes
    return [is_well for is_well, _ in check._kernel(configured, str(tmp_path))]


def test_the_kernels_limits_are_held_against_the_worst_record(tmp_path: Path) -> None:
    assert kernel(tmp_path, "512", "212992", 4096) == [True, True]
    assert kernel(tmp_path, "10", "212992", 4096) == [False, True]
    assert kernel(tmp_path, "512", "212992", 35 * 1024) == [True, False]
    assert kernel(tmp_path, "512", str(6 * 4096 + 250 + 32), 4096) == [True, True]
    assert kernel(tmp_path, "512", str(6 * 4096 + 250 + 31), 4096) == [True, False]


def test_a_kernel_that_tells_nothing_is_no_fault(tmp_path: Path) -> None:
    assert all(is_well for is_well, _ in check._kernel(settings.Settings(), str(tmp_path)))
    assert os.listdir(tmp_path) == []
