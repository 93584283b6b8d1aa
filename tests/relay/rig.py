# SPDX-License-Identifier: GPL-2.0-or-later
"""A node in a folder: the real daemon and workers, a scraper that keeps what it reads, and calls of `relay`."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guard.relay import frames
from guard.relay.frames import Frame
from tests.conftest import ROOT

JOB_ID = 174
# Waits are long only where something is wrong.
LONG_S = 120.0

Record = dict[str, Any]


# After how long the relay gives up, where that is not what is tested: how much a busy machine needs is not known.
PATIENT = {
    "TAP_FIRST_ANSWER_MS": LONG_S * 1000,
    "TAP_HUNG_TOTAL_MS": LONG_S * 1000,
    "TAP_END_MS": LONG_S * 1000,
    "DRAIN_S": LONG_S,
    "JOB_END_WAIT_S": LONG_S,
}


def program(numbers: Mapping[str, float]) -> str:
    """`relay` as guard/__main__.py calls it; its first argument is where guard is; numbers - instead of limits.py's."""
    return (
        "import posix, sys; sys.path.insert(0, sys.argv[1]); from guard.relay import limits, main;"
        f" vars(limits).update({dict(numbers)}); sys.exit(main.main(sys.argv[2:], posix.environ))"
    )


def command(*arguments: str, numbers: Mapping[str, float] = {}) -> "list[str]":
    """The argv of `relay arguments...`, by the interpreter of the tests."""
    return [sys.executable, "-I", "-S", "-c", program(numbers), str(ROOT), *arguments]


def eventually(what: "Any", timeout_s: float = LONG_S) -> None:
    """Waits until what() is true."""
    end_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


# Reads fd 0 all the time, as the seed's receiver does, and appends the records to a file, whole ones only.
READER = """
import select, socket, sys
bound = socket.socket(fileno=0)
poll = select.poll()
poll.register(bound, select.POLLIN)
got = []
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        is_idle = False
        try:
            got += (bound.recv(1 << 18, socket.MSG_DONTWAIT), b"\\n")
        except BlockingIOError:
            is_idle = not poll.poll(20)
        if is_idle or len(got) > 4000:
            file.write(b"".join(got))
            got.clear()
        if is_idle:
            poll.poll()
"""


class Scraper:
    """Bound to the socket, in a process of its own: it must read while the tests' process does not run."""

    def __init__(self, path: Path, log: Path) -> None:
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            old = os.umask(0o177)
            bound.bind(str(path))
            os.umask(old)
            argv = [sys.executable, "-I", "-S", "-c", READER, str(log)]
            self._process = subprocess.Popen(argv, stdin=bound.fileno(), start_new_session=True)
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(LONG_S)


class Rig:
    """numbers: of limits.py that are others here, for what is started from now on; {} for the real ones."""

    def __init__(self) -> None:
        self.numbers: "dict[str, float]" = {**PATIENT}
        # Not pytest's tmp_path: a socket's path is at most 107 bytes.
        self.base = Path(tempfile.mkdtemp(prefix="relay-"))
        self.folder = self.base / "run"
        self.socket = self.base / "s" / "relay-io.sock"
        self.socket.parent.mkdir(mode=0o755)
        self.config = self.base / "relay.conf"
        self.log_path = self.base / "log"
        self.records_path = self.base / "records"
        self.records_path.touch()
        self.node: "subprocess.Popen[bytes] | None" = None
        self.scraper: "Scraper | None" = None
        self._pids: "set[int]" = set()
        self.configure()

    def configure(self, default: str = "yes", parameters: str = "stepd_ring_mbytes=64", more: str = "") -> None:
        self.config.write_text(
            f"RelayIOPlugin=relay_io/uds_json RelayIODefaultEnabled={default}\n"
            f"RelayIOParameters=socket={self.socket},{parameters}\n{more}\n"
        )

    def start_node(self) -> None:
        with open(self.log_path, "ab") as log:
            argv = command("node", "--config", str(self.config), "--folder", str(self.folder), numbers=self.numbers)
            self.node = subprocess.Popen(argv, stdout=log, stderr=log)
        tap = self.folder / "tap.sock"

        def answers() -> bool:
            assert self.node is not None and self.node.poll() is None, self.log()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                try:
                    probe.connect(str(tap))
                except OSError:
                    return False
            return True

        eventually(answers)

    def stop_node(self, number: int = signal.SIGTERM) -> None:
        assert self.node
        self.node.send_signal(number)
        self.node.wait(LONG_S)

    def start_scraper(self) -> Scraper:
        self.scraper = Scraper(self.socket, self.records_path)
        return self.scraper

    def start(self) -> None:
        self.start_scraper()
        self.start_node()

    def environ(self, step_id: "int | None" = None, **more: str) -> "dict[str, str]":
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(JOB_ID), "TERM": "xterm", **more}
        if step_id is not None:
            environ["SLURM_STEP_ID"] = str(step_id)
        return environ

    def event(self, event: str, *options: str, job_id: int = JOB_ID, uid: "int | None" = None, **more: str) -> int:
        """`relay event` as slurmd's Prolog or Epilog would call it on Slurm 25.11."""
        environ = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(os.getuid() if uid is None else uid),
            "SLURM_CLUSTER_NAME": "slurm",
            "SLURMD_NODENAME": "node1",
            "SLURM_JOB_USER": "alice",
            "SLURM_JOB_PARTITION": "batch",
            "SLURM_JOB_ACCOUNT": "physics",
            "SLURM_JOB_SLUID": "sA0SM5EFW65700",
            "SLURM_JOB_RESTART_COUNT": "0",
            **more,
        }
        return subprocess.run(
            command("event", event, *options, "--folder", str(self.folder)),
            env={name: value for name, value in environ.items() if value},
            stderr=open(self.log_path, "ab"),
        ).returncode

    def exec_command(self, *arguments: str) -> "list[str]":
        return command("exec", "--folder", str(self.folder), *arguments, numbers=self.numbers)

    def exec(
        self, *arguments: str, step_id: "int | None" = None, **options: "Any"
    ) -> "subprocess.CompletedProcess[bytes]":
        options.setdefault("env", self.environ(step_id))
        options.setdefault("timeout", 600)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.run(self.exec_command(*arguments), **options)

    def records(self, kind: "str | None" = None) -> "list[Record]":
        lines = self.records_path.read_bytes().split(b"\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [one for one in found if kind is None or one["type"] == kind]

    def kinds(self) -> "list[str]":
        return [one["type"] for one in self.records()]

    def output(self, stream: str = "stdout", task: int = 0, step_id: str = "batch") -> str:
        """All bodies of one stream, joined."""
        return "".join(
            one["body"]
            for one in self.records("log")
            if (one["stream"], one["slurm"]["task_id_global"], one["slurm"]["step_id"]) == (stream, task, step_id)
        )

    def ended(self, job_id: int = JOB_ID) -> None:
        """Tells the job's end and waits until its record has come: then all others have."""
        self.event("job_end", job_id=job_id)
        eventually(lambda: b'"type":"job_end"' in self.records_path.read_bytes())

    def _processes(self) -> "list[int]":
        """Pids of whatever names this rig's folder in its arguments: daemon, workers (forks of it), taps, commands."""
        found = []
        mark = str(self.base).encode() + b"/"
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
            except OSError:
                continue
        return found

    def workers(self, job_id: "str | int" = "") -> "list[int]":
        """Pids of the living workers, all or those of a job."""
        name = f"relay {job_id}".encode()
        found = []
        for pid in self._processes():
            try:
                if Path(f"/proc/{pid}/comm").read_bytes().startswith(name):
                    found.append(pid)
            except OSError:
                continue
        return found

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def close(self) -> None:
        # The daemon first, or it would start another worker for a tap that comes back.
        if self.node:
            self.node.kill()
            self.node.wait(LONG_S)
        for pid in self._processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself
        if self.scraper:
            self.scraper.stop()
        shutil.rmtree(self.base, ignore_errors=True)


class Wire:
    """A tap that says exactly what it is told to."""

    def __init__(self, rig: Rig, step_id: int = 0, is_whole_step: bool = False, **fields: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LONG_S)
        self.socket.connect(str(rig.folder / ("control.sock" if is_whole_step else "tap.sock")))
        hello = {"job_id": b"%d" % JOB_ID, "step_id": b"%d" % step_id, "whole_step": b"%d" % is_whole_step, **fields}
        self.send(Frame(frames.HELLO, frames.fields_payload(hello)))
        self.answer = self.fields()

    def send(self, *sent: Frame) -> None:
        for frame in sent:
            self.socket.send(frames.pack(frame))

    def data(self, text: bytes, task: int = 0, stream: int = 1) -> None:
        self.send(Frame(frames.DATA, text, stream, task, task, time.time_ns()))

    def fields(self) -> "dict[str, bytes]":
        packet = self.socket.recv(frames.PACKET_MAX_BYTES)
        return frames.fields_of(frames.unpack(packet).payload) if packet else {}

    def drain(self) -> None:
        self.send(Frame(frames.DRAIN))
        assert frames.unpack(self.socket.recv(100)).kind == frames.DRAINED

    def bye(self) -> None:
        self.send(Frame(frames.BYE))
        self.socket.close()

    def is_closed(self) -> bool:
        """Waits for the other end to close."""
        try:
            return self.socket.recv(100) == b""
        except ConnectionResetError:
            return True
