# SPDX-License-Identifier: GPL-2.0-or-later
"""Items as a sink gets them, and the pump around a sink, with its waiting written down instead of waited."""

from pathlib import Path
from typing import Any

from guard.scraper import line, spool
from guard.scraper.counters import Counters
from guard.scraper.pump import Pump
from tests.scraper import records


def items(what: "list[dict[str, Any]]") -> "list[tuple[str, bytes]]":
    """(id, line) of some records."""
    return [(f"abc-{number}", line.stamped(records.raw(fields), 5000 + number)) for number, fields in enumerate(what)]


def many(count: int, first: int = 0) -> "list[dict[str, Any]]":
    """Log records with bodies `line 0`, `line 1` ..."""
    return [records.log(f"line {number}\n", records.TIME_NS + number) for number in range(first, first + count)]


class Bench:
    """A spool with lines in it, and a pump to one sink."""

    def __init__(self, folder: Path, sink: Any, what: "list[dict[str, Any]]") -> None:
        self.folder = str(folder / "spool")
        self.name = spool.prepare(self.folder)
        self.writer = spool.Writer(self.folder)
        self.counters = Counters(["s"])
        self.waited_s: list[float] = []
        self.told: list[str] = []
        self.sink = sink
        cursor, _ = spool.load_cursor(self.folder, self.name, "s")
        self.reader = spool.Reader(self.folder, cursor)
        self.pump = Pump(
            "s",
            sink,
            self.reader,
            self.name,
            self.folder,
            self.counters,
            self.waited_s.append,
            self.told.append,
            jitter=lambda: 1.0,
        )
        self.add(what)

    def add(self, what: "list[dict[str, Any]]") -> None:
        """Appends lines to the spool."""
        if what:
            self.writer.append([line for _, line in items(what)])

    def run(self) -> None:
        """Delivers all that there is, however often that must be tried."""
        while self.pump.step(lambda: True) or self.reader.cursor.number < self.writer.number:
            pass

    def dropped(self, reason: str) -> int:
        """Lines given up, by reason."""
        return self.counters.get("sink_dropped_lines_total", reason, "s")

    def delivered(self) -> int:
        """Lines that the sink has taken."""
        return self.counters.get("sink_delivered_lines_total", sink="s")
