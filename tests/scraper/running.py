# SPDX-License-Identifier: GPL-2.0-or-later
"""A running scraper, as a site would start it, and a strict producer of the seed's records."""

import collections
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# As `eessi-arch-guard relay scrape` would call it. With a socket of systemd: its protocol, sd_listen_fds(3).
_START = """
import os, sys
environ = dict(os.environb)
if environ.get(b"TEST_SOCKET_FD"):
    os.dup2(int(environ.pop(b"TEST_SOCKET_FD")), 3)
    environ[b"LISTEN_PID"] = b"%d" % os.getpid()
    environ[b"LISTEN_FDS"] = b"1"
from guard.scraper import main
sys.exit(main.main(sys.argv[1:], environ))
"""


def until(is_so: "Callable[[], object]", seconds: float = 120.0) -> None:
    """Waits for what another process does."""
    deadline_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert is_so()


class Scraper:
    """A scraper with its socket, spool, files and metrics in one folder."""

    def __init__(self, folder: Path, held: "socket.socket | None" = None) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.socket = str(folder / "s")
        self.out = folder / "out"
        self.spool = folder / "spool"
        self.metrics = folder / "metrics.prom"
        self.held = held
        self.arguments = ["--to", f"file:{self.out}", "--socket", self.socket, "--spool", str(self.spool)]
        self.arguments += ["--metrics", str(self.metrics)]
        self.process: "subprocess.Popen[str] | None" = None
        self.said = ""

    def start(self) -> None:
        """Starts it, and waits until somebody reads the socket."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        fds = []
        if self.held is not None:
            environ["TEST_SOCKET_FD"] = str(self.held.fileno())
            fds = [self.held.fileno()]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *self.arguments],
            env=environ,
            pass_fds=fds,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self.held is None:
            until(lambda: self.process and (self.process.poll() is not None or self.can_connect()))

    def can_connect(self) -> bool:
        """Whether somebody is bound to the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return probe.connect_ex(self.socket) == 0

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it and gives its status; SIGKILL goes to all of its processes at once."""
        assert self.process
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        self.said += self.process.communicate(timeout=120)[1]
        return self.process.returncode

    def hear(self, text: str, count: int) -> None:
        """Waits until it has said text so often."""
        assert self.process and self.process.stderr
        # Not through the buffer of stderr, which communicate() knows nothing of.
        while self.said.count(text) < count and (piece := os.read(self.process.stderr.fileno(), 65536)):
            self.said += piece.decode()
        assert self.said.count(text) == count, self.said

    def pids(self) -> "list[int]":
        """The processes that it has started."""
        assert self.process
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in Path(path).read_text().split()]

    def opened(self, pid: int) -> "list[str]":
        """What one of them has open."""
        found = []
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.append(os.readlink(fd))
        return found

    def lines(self) -> "list[dict[str, Any]]":
        """All that it has written, oldest first."""
        found = []
        if self.out.is_dir():
            for path in sorted(self.out.glob("*.ndjson"), key=lambda path: path.stat().st_mtime_ns):
                found += [json.loads(text) for text in path.read_bytes().split(b"\n")[:-1]]
        return found

    def counters(self) -> "dict[str, int]":
        """The metrics file's numbers."""
        rows = [text.rsplit(" ", 1) for text in self.metrics.read_text().splitlines() if not text.startswith("#")]
        return {name[len("eessi_relay_scrape_") :]: int(number) for name, number in rows}


class Producer:
    """What the seed says of a daemon: a ring that drops its oldest, blocking sends, one datagram a record, and a look
    at the socket and its folder before every connection ("The uds_json plugin", "Delivery")."""

    def __init__(self, path: str, ring_max_bytes: int = 4 << 20, backoff_s: float = 0.02) -> None:
        self.path = path
        self.ring: "collections.deque[tuple[int, bytes]]" = collections.deque()
        self.ring_bytes = 0
        self.ring_max_bytes = ring_max_bytes
        self.backoff_s = backoff_s
        self.dropped: list[int] = []
        self.sock: "socket.socket | None" = None
        self.next_try_s = 0.0

    def push(self, number: int, raw: bytes) -> None:
        """Takes a record; the oldest make room for it."""
        self.ring.append((number, raw))
        self.ring_bytes += len(raw)
        while self.ring_bytes > self.ring_max_bytes:
            dropped, old = self.ring.popleft()
            self.ring_bytes -= len(old)
            self.dropped.append(dropped)

    def step(self) -> None:
        """Sends what the ring holds until it is empty or the connection drops."""
        if self.sock is None and not self._connect():
            return
        assert self.sock
        while self.ring:
            try:
                self.sock.send(self.ring[0][1])
            except OSError:
                # The record stays at the front.
                self.sock.close()
                self.sock = None
                return
            self.ring_bytes -= len(self.ring.popleft()[1])

    def drain(self, seconds: float) -> None:
        """Sends the rest for as long as it may take."""
        deadline_s = time.monotonic() + seconds
        while self.ring and time.monotonic() < deadline_s:
            self.step()
            if self.ring:
                time.sleep(self.backoff_s)
        self.dropped += [number for number, _ in self.ring]

    def _connect(self) -> bool:
        if time.monotonic() < self.next_try_s:
            return False
        self.next_try_s = time.monotonic() + self.backoff_s
        try:
            found, folder = os.lstat(self.path), os.stat(os.path.dirname(self.path))
        except OSError:
            return False
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            return False
        if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & 0o022:
            return False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            return False
        self.sock = sock
        return True


def produced(path: str, stream: int, what: "Iterable[tuple[int, bytes]]", result: Path, pace_s: float = 0.0) -> int:
    """A process that sends records; the numbers that it dropped end in result, as JSON. Gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        producer = Producer(path)
        for number, raw in what:
            producer.push(number, raw)
            producer.step()
            if pace_s:
                time.sleep(pace_s)
        producer.drain(60)
        result.write_text(json.dumps({"stream": stream, "dropped": producer.dropped}))
        status = 0
    finally:
        os._exit(status)
