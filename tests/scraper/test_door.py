# SPDX-License-Identifier: GPL-2.0-or-later
"""Scraper and report as a site runs them: the built .pyz, started by its own header, without site-packages (-I -S)."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.base import message
from tests.scraper import records
from tests.scraper.running import until

LONG_S = 120
SAID = message.reloaded(7, "node1", "x86_64/amd/zen3->x86_64/amd/zen4")


def run(pyz: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(pyz), "relay", *arguments], capture_output=True, text=True, timeout=LONG_S)


@pytest.fixture
def scraped(pyz: Path, tmp_path: Path) -> "Iterator[Path]":
    """A file that the .pyz has written, of a job that the guard spoke in."""
    tmp_path.chmod(0o755)
    path = str(tmp_path / "s")
    command = [str(pyz), "relay", "scrape", "--to", f"file:{tmp_path}/out", "--socket", path]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            until(lambda: sender.connect_ex(path) == 0)
            for one in (records.job("job_start"), records.log(SAID + "\n"), records.job("job_end")):
                sender.send(records.raw(one))
        out = tmp_path / "out"
        until(lambda: any(file.read_bytes().count(b"\n") == 3 for file in out.glob("*.ndjson")))
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=LONG_S)[1]
        assert process.returncode == 0 and "received_records_total" in said
        (file,) = out.glob("*.ndjson")
        yield file
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_the_pyz_scrapes_and_reports(pyz: Path, scraped: Path, tmp_path: Path) -> None:
    assert [json.loads(line)["type"] for line in scraped.read_bytes().splitlines()] == ["job_start", "log", "job_end"]
    numbers = json.loads(run(pyz, "report", str(scraped), "--json").stdout)
    assert [(row["was"], row["now"], row["jobs"]) for row in numbers["reloads"]] == [
        ("x86_64/amd/zen3", "x86_64/amd/zen4", 1)
    ]
    shown = run(pyz, "report", str(scraped))
    assert "x86_64/amd/zen4" in shown.stdout, shown.stderr
    assert run(pyz, "report", str(scraped), "--html", f"{tmp_path}/r.html").returncode == 0
    assert "zen4" in (tmp_path / "r.html").read_text()


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python that has nothing but its standard library."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


def through_the_door(python: str, pyz: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """As the header would start it, by an interpreter of the test's choice."""
    boot = "import sys; sys.path.insert(0, sys.argv[1]); from guard import __main__; sys.argv.pop(0); __main__.start()"
    command = [python, "-I", "-S", "-c", boot, str(pyz), "relay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, env={"PATH": os.environ["PATH"]})


def test_what_a_configuration_needs_and_this_python_does_not_have_is_said_by_check(
    pyz: Path, bare_python: str, tmp_path: Path
) -> None:
    (tmp_path / "scrape.toml").write_text('[[sink]]\nkind = "loki"\nurl = "http://h"\n')
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    for arguments, said in (
        (
            ["scrape", "--config", f"{tmp_path}/scrape.toml", "--check"],
            f"package urllib3; pip install .* {bare_python}",
        ),
        (["report", f"{tmp_path}/x.zst"], "package zstandard; pip install"),
        (["report", os.devnull, "--engine", "duckdb"], "package duckdb; pip install"),
    ):
        done = through_the_door(bare_python, pyz, *arguments)
        if sys.version_info < (3, 11) and arguments[0] == "scrape":
            said = "needs tomli|install the package tomli"
        assert done.returncode == 1
        assert re.search(said, done.stderr), done.stderr


def test_packages_of_the_interpreter_that_runs_it_are_found(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "scrape.toml").write_text('[[sink]]\nkind = "loki"\nurl = "http://h"\n')
    done = through_the_door(sys.executable, pyz, "scrape", "--config", f"{tmp_path}/scrape.toml", "--check")
    assert (done.returncode, done.stdout[:25]) == (0, "the configuration is good"), done.stderr
