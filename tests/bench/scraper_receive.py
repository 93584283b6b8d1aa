# SPDX-License-Identifier: GPL-2.0-or-later
"""The scraper's rows of design section 10: 330-byte records against a bare receive loop with json.loads, and memory.

python tests/bench/scraper_receive.py [seconds a run] [rounds]. Each round runs every reader once, in turn, against the
same sender, so that what else the machine does meets all of them; ratios are within a round. The sender sends as
fast as the reader lets it, from another process.
"""

import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from guard.scraper import bind, config, decode, receive, receiver, rejoin, spool  # noqa: E402
from guard.scraper.counters import Counters  # noqa: E402

IDENTITY = {"cluster": "slurm", "node": "node1", "job_id": 174, "sluid": "sA0SM5EFW65700", "user_name": "alice"}
STEP = {"step_id": "0", "task_id_global": 0, "task_id_local": 0}
FIELDS = {"v": 1, "type": "log", "time": 1786000818715000000, "slurm": {**IDENTITY, **STEP}, "stream": "stdout"}
RECORD = json.dumps({**FIELDS, "body": "x" * 90 + "\n"}, separators=(",", ":")).encode()


def sender(path: str, record: bytes) -> int:
    """A process that sends the record for ever. Gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(path)
            while True:
                sock.send(record)
    except OSError:
        pass
    finally:
        os._exit(0)


def ended(pid: int) -> None:
    """Ends a process of ours."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def bare(folder: str, seconds: float, record: bytes) -> "tuple[float, float]":
    """Records a second of wall and of CPU time, of `while True: json.loads(sock.recv(65536))`."""
    path = folder + "/s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        pid = sender(path, record)
        count = 0
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - started_s < seconds:
            for _ in range(256):
                json.loads(sock.recv(65536))
            count += 256
        passed_s, passed_cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    ended(pid)
    os.unlink(path)
    return count / passed_s, count / passed_cpu_s


def rooms(
    folder: str, seconds: float, record: bytes, loads: "Callable[[bytes], Any]" = decode._LOADS
) -> "tuple[float, float]":
    """Records a second of wall and of CPU time, of the receiving process with sinks off: socket to spool, all of it."""
    path = folder + "/s"
    bound = bind.bound(path, frozenset((os.geteuid(),)), os.geteuid(), 0.0)
    settings = config.parse({"socket": path, "spool": folder + "/spool", "sink": [{"kind": "journald"}]})
    spool.prepare(settings.spool)
    counters = Counters(["journald"])
    writer = spool.Writer(settings.spool)
    room = receiver.Room(settings, rejoin.Rejoin(), counters, writer, lambda: False)
    reader = receive.Receiver(bound.sock, settings.uids, receive.slot_bytes())
    best: Any = decode._LOADS
    decode._LOADS = loads  # type: ignore[assignment]
    poll = select.poll()
    poll.register(bound.sock, select.POLLIN)
    pid = sender(path, record)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - started_s < seconds:
        for _ in range(64):
            batch = reader.drain()
            room.take(batch)
            if not batch.datagrams:
                poll.poll(100)
        if writer.number - writer.segment > 100_000:
            spool.sweep(settings.spool, [spool.Cursor(writer.number, writer.segment, 0)], 1 << 30)
    passed_s, passed_cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    decode._LOADS = best
    bound.sock.close()
    os.close(bound.lock_fd)
    ended(pid)
    os.unlink(path)
    count = counters.get("received_records_total")
    return count / passed_s, count / passed_cpu_s


def whole(folder: str, seconds: float, record: bytes, sink: str) -> "tuple[float, dict[str, int]]":
    """Records a second of a whole scraper with a sink; and its processes' peak memory in KiB, by name."""
    path = folder + "/s"
    (Path(folder) / "scrape.toml").write_text(
        f'socket = "{path}"\nspool = "{folder}/spool"\nmetrics_file = "{folder}/m"\n[[sink]]\n{sink}\n'
    )
    code = "import os, sys; from guard.scraper import main; sys.exit(main.main(sys.argv[1:], {}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--config", f"{folder}/scrape.toml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        while probe.connect_ex(path):
            time.sleep(0.01)
    time.sleep(0.5)
    pid = sender(path, record)
    started_s = time.perf_counter()
    time.sleep(seconds)
    ended(pid)
    passed_s = time.perf_counter() - started_s
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    pids = [process.pid, *map(int, children)]
    peaks = {name: peak_kib(one) for name, one in zip(("parent", "receiver", "sink"), pids)}
    # Pages that the processes share count once.
    peaks["all together at the end"] = sum(shared_kib(one) for one in pids)
    process.terminate()
    process.wait()
    text = (Path(folder) / "m").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("eessi_relay_scrape_received_records_total ")]
    return int(row.split()[1]) / passed_s, peaks


def peak_kib(pid: int) -> int:
    """The most memory that a process had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


def shared_kib(pid: int) -> int:
    """The memory of a process now, a page that n processes share as its n-th part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def bare_python_kib() -> int:
    """The same of a Python that does nothing."""
    code = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def syslog_peer() -> "tuple[int, int]":
    """A process that reads whatever comes over TCP. Gives its pid and port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    pid = os.fork()
    if pid:
        listener.close()
        return pid, port
    try:
        while True:
            peer, _ = listener.accept()
            while peer.recv(1 << 20):
                pass
    finally:
        os._exit(0)


def in_folder(run: "Callable[..., Any]", *arguments: Any) -> "Any":
    """run in a new folder that is removed after."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        return run(folder, *arguments)


def main() -> None:
    """Prints min, median and max of each ratio."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    pid, port = syslog_peer()
    rates: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for _ in range(rounds):
        base, base_cpu = in_folder(bare, seconds, RECORD)
        off, off_cpu = in_folder(rooms, seconds, RECORD)
        slow, slow_cpu = in_folder(rooms, seconds, RECORD, decode.standard_loads)
        found = {
            "bare loop, records/s": base,
            "sinks off / bare": off / base,
            "the same by CPU time": off_cpu / base_cpu,
            "sinks off, no orjson / bare": slow / base,
            "the same by CPU time, no orjson": slow_cpu / base_cpu,
        }
        for name, sink in (
            ("file", 'kind = "file"\ndirectory = "FOLDER/out"'),
            ("syslog", f'kind = "syslog"\nto = "tcp://127.0.0.1:{port}"'),
        ):
            with tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o755)
                rate, memory = whole(folder, seconds, RECORD, sink.replace("FOLDER", folder))
            found[f"{name} sink / bare"] = rate / base
            for process, kib in memory.items():
                peaks[f"{name}: {process}"] = max(peaks.get(f"{name}: {process}", 0), kib)
        for name, rate in found.items():
            rates.setdefault(name, []).append(rate)
    ended(pid)
    print(f"{len(RECORD)}-byte records, {rounds} rounds of {seconds} s, parser {decode._LOADS.__name__}")
    for name, values in rates.items():
        print(f"{name:32} min {min(values):10.2f}  median {statistics.median(values):10.2f}  max {max(values):10.2f}")
    base_kib = bare_python_kib()
    for name, kib in peaks.items():
        print(f"peak memory, {name:32} bare Python + {(kib - base_kib) / 1024:.1f} MiB")


if __name__ == "__main__":
    main()
