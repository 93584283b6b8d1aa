# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole processes side by side: each round runs both, one after the other, and a ratio is that of one round.

Ratios and not seconds: machines differ, and this one's own speed drifts (design section 10).
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

Environ = Mapping[bytes, bytes]


class Cost:
    """What one process cost: wall and cpu in seconds (with all that it waited for), peak in KiB."""

    def __init__(self, wall_s: float, cpu_s: float, peak_kib: int) -> None:
        self.wall_s = wall_s
        self.cpu_s = cpu_s
        self.peak_kib = peak_kib


def start(argv: Sequence[str], environ: Environ) -> int:
    """A started process whose output goes nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawn(argv[0], list(argv), environ, file_actions=actions)
    os.close(null)
    return pid


def once(argv: Sequence[str], environ: Environ) -> Cost:
    """One process from its start to its end."""
    begin = time.perf_counter()
    pid = start(argv, environ)
    _, status, usage = os.wait4(pid, 0)
    wall_s = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{argv} ended with status {status}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def crowd(argv: Sequence[str], environs: Sequence[Environ]) -> Cost:
    """One process for each environment, all at once, until the last has ended."""
    begin = time.perf_counter()
    for pid in [start(argv, environ) for environ in environs]:
        os.waitpid(pid, 0)
    return Cost(time.perf_counter() - begin, 0.0, 0)


def paired(rounds: int, ours: Callable[[], Cost], theirs: Callable[[], Cost]) -> "list[tuple[Cost, Cost]]":
    """Both, in turn, after a round that does not count."""
    ours(), theirs()
    return [(ours(), theirs()) for _ in range(rounds)]


def row(what: str, against: str, unit: str, goal: str, pairs: "list[tuple[Cost, Cost]]") -> str:
    """A line of the table. unit: wall_s, cpu_s or peak_kib; the last is a difference in MiB, the others ratios."""
    values = []
    for ours, theirs in pairs:
        one, other = float(getattr(ours, unit)), float(getattr(theirs, unit))
        values.append((one - other) / 1024 if unit == "peak_kib" else one / max(other, 1e-9))
    values.sort()
    figures = " | ".join(f"{value:.2f}" for value in (values[0], statistics.median(values), values[-1]))
    kind = {"wall_s": "wall", "cpu_s": "cpu", "peak_kib": "peak, MiB more"}[unit]
    return f"| {what} | {against} | {kind} | {goal} | {figures} | {len(values)} |"


def heading() -> str:
    """The table's head, with the machine that it was measured on."""
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {sys.version.split()[0]}"
    )
    columns = ["what", "against", "of", "goal", "min", "median", "max", "rounds"]
    return f"Measured on: {machine}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
