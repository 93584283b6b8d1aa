# SPDX-License-Identifier: GPL-2.0-or-later
"""How many 100-byte lines a step worker makes into records and sends, against the naive encoder in the same run.

naive: read 64 KiB, split, one json.dumps and one blocking send a line. worker: the real one, fed by the real protocol,
its records read by a bare receiving loop, the same for both. Lines that arrived, by second of CPU of the process that
encodes (a core), and of wall time; then two steps at once. The ring is large, so that what waits for the receiver is
not dropped; the memory row has the default ring. Needs nothing but Python; two cores or more.

    python tests/bench/relay_worker.py [ROUNDS] [LINES]
"""

import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from guard.relay import frames, handover, jobs, settings
from guard.relay.frames import Frame

LINE = b"x" * 99 + b"\n"
BLOCK_LINES = 655
BLOCK = LINE * BLOCK_LINES
SLURM: "dict[str, object]" = {
    "cluster": "slurm", "node": "node1", "job_id": 174, "sluid": "sA0SM5EFW65700", "user_name": "alice",
}  # fmt: skip


class Receiver:
    """A bare loop that reads and counts; tells the count when it is stopped."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._read_fd, write_fd = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            count = 0
            buffer = bytearray(1 << 18)
            self._socket.settimeout(None)

            def stop(_number: int, _frame: object) -> None:
                os.write(write_fd, b"%d" % count)
                os._exit(0)

            signal.signal(signal.SIGTERM, stop)
            while True:
                self._socket.recv_into(buffer)
                count += 1
        os.close(write_fd)

    def stop(self) -> int:
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        self._socket.close()
        os.unlink(self.path)
        return int(os.read(self._read_fd, 99))


def naive(path: str, line_count: int) -> "tuple[float, float]":
    """Lines a CPU second and a wall second of the naive encoder, in a process of its own."""
    source, end = os.pipe()
    encoder = os.fork()
    if encoder == 0:
        os.close(end)
        out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        out.connect(path)
        rest = b""
        while True:
            data = os.read(source, 65536)
            if not data:
                os._exit(0)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                slurm = {**SLURM, "step_id": "0", "task_id_global": 0, "task_id_local": 0}
                record = {"v": 1, "type": "log", "time": time.time_ns(), "slurm": slurm, "stream": "stdout"}
                record["body"] = line.decode("utf-8", "replace") + "\n"
                out.send(json.dumps(record).encode())
    os.close(source)
    start_s = time.monotonic()
    for _ in range(line_count // BLOCK_LINES):
        view = memoryview(BLOCK)
        while view:
            view = view[os.write(end, view) :]
    os.close(end)
    _, _, usage = os.wait4(encoder, 0)
    return line_count / (usage.ru_utime + usage.ru_stime), line_count / (time.monotonic() - start_s)


def workers(path: str, line_count: int, count: int, ring_mbytes: int) -> "tuple[float, float, int]":
    """Lines a CPU second, lines a wall second of `count` step workers at once, and the peak of one in KiB."""
    parameters = f"socket={path},stepd_ring_mbytes={ring_mbytes}"
    configured = settings.parse(f"RelayIOPlugin=relay_io/uds_json RelayIOParameters={parameters}")
    configured.owners = frozenset((os.getuid(),))
    root = tempfile.mkdtemp(prefix="relay-bench-")
    job = jobs.Job(174, os.getuid(), SLURM)
    jobs.add(root, job, 1)
    pids, taps = [], []
    for step in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid, connection = handover.start(job, str(step), True, configured, _silent)
        handover.hand_in(connection, theirs, True)
        theirs.close()
        connection.close()
        ours.recv(9999)
        pids.append(pid)
        taps.append(ours)
    packet = frames.pack(Frame(frames.DATA, BLOCK, 1, 0, 0, time.time_ns()))
    start_s = time.monotonic()
    feeders = []
    for tap in taps:
        feeder = os.fork()
        if feeder == 0:
            for _ in range(line_count // BLOCK_LINES):
                tap.send(packet)
            tap.send(frames.pack(Frame(frames.BYE)))
            os._exit(0)
        feeders.append(feeder)
        tap.close()
    for feeder in feeders:
        os.waitpid(feeder, 0)
    cpu_s = 0.0  # of all of them
    peak_kib = 0
    for pid in pids:
        _, _, usage = os.wait4(pid, 0)
        cpu_s += usage.ru_utime + usage.ru_stime
        peak_kib = max(peak_kib, usage.ru_maxrss)
    wall_s = time.monotonic() - start_s
    jobs.remove(job)
    os.rmdir(root)
    return count * line_count / cpu_s, count * line_count / wall_s, peak_kib


def _silent(_line: str) -> None:
    """What is dropped is in the figures."""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    line_count = (int(sys.argv[2]) if len(sys.argv) > 2 else 200_000) // BLOCK_LINES * BLOCK_LINES
    folder = tempfile.mkdtemp(prefix="relay-bench-")
    os.chmod(folder, 0o700)
    path = f"{folder}/s"
    rows: "dict[str, list[float]]" = {}
    for _ in range(rounds):
        receiver = Receiver(path)
        naive_cpu, naive_wall = naive(path, line_count)
        receiver.stop()
        results = {"naive, lines/CPU s": naive_cpu, "naive, lines/wall s": naive_wall}
        for count in (1, 2):
            receiver = Receiver(path)
            cpu, wall, _ = workers(path, line_count, count, 1024)
            arrived = receiver.stop() / (count * (line_count + 2))
            results[f"{count} worker, lines/CPU s"] = cpu * arrived
            results[f"{count} worker, lines/wall s"] = wall * arrived
            results[f"{count} worker, arrived of sent"] = arrived
        receiver = Receiver(path)
        results["1 worker, ring 4 MiB, peak MiB"] = workers(path, line_count, 1, 4)[2] / 1024
        receiver.stop()
        results["ratio a core: 1 worker to naive (goal 3.5)"] = results["1 worker, lines/CPU s"] / naive_cpu
        results["ratio wall: 1 worker to naive"] = results["1 worker, lines/wall s"] / naive_wall
        results["ratio wall: 2 workers to 1"] = results["2 worker, lines/wall s"] / results["1 worker, lines/wall s"]
        for name, value in results.items():
            rows.setdefault(name, []).append(value)
    os.rmdir(folder)
    print(f"{rounds} rounds of {line_count} lines of 100 bytes; min median max")
    for name, values in rows.items():
        print(f"{name:52s} {min(values):12.2f} {statistics.median(values):12.2f} {max(values):12.2f}")
    print(f"{'peak of a bare Python here, MiB':52s} {_bare_mib():12.2f}")


def _bare_mib() -> float:
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "pass"])
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
