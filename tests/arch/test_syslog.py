# SPDX-License-Identifier: GPL-2.0-or-later
"""--syslog, against a real rsyslogd on a scratch socket, and against none, a full one and a stopped one."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.arch import syslog
from tests.conftest import need_program
from tests.eessi.tree import ZEN2, ZEN4, Tree

RFC_5424 = re.compile(
    rb"<(\d+)>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([!-~]{1,255}) eessi-arch-guard (\d+) (reload|failure)"
    rb' \[eessi-arch-guard@32473((?: [a-z]+="(?:[^"\\\]]|\\["\\\]])*")+)\] (.*)',
    re.DOTALL,
)


def test_the_line() -> None:
    environ = {b"SLURM_JOB_ID": b"42", b"SLURM_STEP_ID": b'a"]\\b\n', b"SLURM_JOB_USER": b"alice"}
    data = syslog.line(b"eessi-arch-guard: x", environ, False, "n1", 1786000818.25)
    assert data.startswith(b"<13>1 2026-08-06T")
    assert b".250000Z n1 eessi-arch-guard " in data
    assert b' job="42" step="a\\"\\]\\\\b" user="alice"] eessi-arch-guard: x' in data
    assert syslog.line(b"x", {}, True, "n1", 0).startswith(b"<12>1 1970-01-01T00:00:00.000000Z n1 ")


@given(st.binary(max_size=80), st.text(max_size=300), st.floats(0, 4e9), st.booleans())
def test_every_line_is_rfc_5424(value: bytes, node: str, now_s: float, is_failure: bool) -> None:
    data = syslog.line(b"m", {b"SLURM_JOB_ID": value}, is_failure, node, now_s)
    assert RFC_5424.fullmatch(data)


@pytest.fixture
def rsyslog(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A real rsyslogd that writes what it understood to `out` in the test's folder; its socket there is `log`."""
    program = need_program("rsyslogd")
    (tmp_path / "conf").write_text(
        f'module(load="imuxsock" SysSock.Use="off")\n'
        f'input(type="imuxsock" Socket="{tmp_path}/log" UseSpecialParser="off" CreatePath="off")\n'
        'template(name="t" type="string" string="%pri%|%hostname%|%app-name%|%msgid%|%structured-data%|%msg%\\n")\n'
        f'action(type="omfile" file="{tmp_path}/out" template="t")\n'
    )
    call = [program, "-n", "-f", str(tmp_path / "conf"), "-i", str(tmp_path / "pid")]
    with subprocess.Popen(call, stderr=subprocess.DEVNULL) as server:
        while not (tmp_path / "log").exists():
            assert server.poll() is None
            time.sleep(0.01)
        yield server
        server.send_signal(signal.SIGCONT)
        server.terminate()


def lines(folder: Path, node: str, count: int) -> "list[str]":
    """What rsyslogd has written of a node, once that is count lines. Others may have found its socket as /dev/log."""
    end_s = time.monotonic() + 120
    while True:
        text = (folder / "out").read_text() if (folder / "out").exists() else ""
        found = [line for line in text.split("\n")[:-1] if f"|{node}|" in line]
        if len(found) >= count or time.monotonic() > end_s:
            return found
        time.sleep(0.01)


@pytest.mark.usefixtures("rsyslog")
def test_rsyslogd_understands_it(tmp_path: Path) -> None:
    data = syslog.line("eessi-arch-guard: NOT reloaded é".encode(), {b"SLURM_JOB_ID": b"42"}, True, "n1", time.time())
    assert syslog.send(data, str(tmp_path / "log"))
    (got,) = lines(tmp_path, "n1", 1)
    sd = f'[eessi-arch-guard@32473 uid="{os.getuid()}" job="42"]'
    assert got == f"12|n1|eessi-arch-guard|failure|{sd}|eessi-arch-guard: NOT reloaded é"


def test_no_log_a_file_and_one_that_nobody_is_bound_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(tmp_path / "left"))
    server.close()
    for name in ("missing", "file", "left"):
        assert not syslog.send(b"x", str(tmp_path / name))


def test_one_that_is_full_costs_the_line_and_no_time(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        sent = [syslog.send(b"x", path) for _ in range(2000)]
        assert True in sent
        assert False in sent


def test_one_that_is_stopped_costs_at_most_the_line(rsyslog: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    rsyslog.send_signal(signal.SIGSTOP)  # not by its pid file, which it writes after its socket
    for _ in range(2000):
        syslog.send(b"x", str(tmp_path / "log"))


@pytest.mark.skipif(os.geteuid() != 0 or os.path.lexists(syslog.DEV_LOG), reason="needs root and no /dev/log")
@pytest.mark.usefixtures("rsyslog")
def test_the_deciding_task_logs_a_reload_once_and_a_failure(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tree.node(ZEN4)
    environ = {**tree.login(), b"SLURM_JOB_START_TIME": b"1", b"SLURM_JOB_ID": b"42", b"SLURMD_NODENAME": b"n7"}
    environ[b"TMPDIR"] = os.fsencode(tree.root)

    def guard(**more: str) -> None:
        given = {**environ, **{name.encode(): value.encode() for name, value in more.items()}}
        run = subprocess.run([str(pyz), "--syslog"], env=given, capture_output=True, check=True)
        assert run.stderr == b""

    os.symlink(tmp_path / "log", syslog.DEV_LOG)
    try:
        guard()  # a match is not worth a line
        tree.node(ZEN2)
        guard(SLURM_STEP_ID="1")
        guard(SLURM_STEP_ID="1")
        guard(SLURM_STEP_ID="2", LMOD_CMD="/nonexistent")
    finally:
        os.unlink(syslog.DEV_LOG)
    guard(SLURM_STEP_ID="3")
    found = lines(tmp_path, "n7", 2)
    assert len(found) == 2
    assert found[0].startswith("13|n7|eessi-arch-guard|reload|")
    assert found[0].endswith("|eessi-arch-guard: reloaded 5 modules on n7: x86_64/amd/zen4->x86_64/amd/zen2")
    assert "|failure|" in found[1]
    assert 'step="2"' in found[1]
