# SPDX-License-Identifier: GPL-2.0-or-later
"""The counters: a fixed table in memory that the processes of one scraper share, and its two readings.

Each number has one writer, so there is no lock; the readers take what is there. Metric names: docs/scraper.md.
"""

import mmap

from guard.scraper.reasons import DROPS, REFUSALS
from guard.scraper.rejoin import ENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX = "eessi_relay_scrape_"
# name, labels that tell its rows apart, kind, help.
_RECEIVER: "tuple[tuple[str, str, tuple[str, ...], str, str], ...]" = (
    ("received_records_total", "", (), "counter", "Datagrams taken from the socket."),
    ("received_bytes_total", "", (), "counter", "Bytes of datagrams taken from the socket."),
    ("refused_records_total", "reason", tuple(REFUSALS), "counter", "Datagrams that became no record."),
    ("unkept_records_total", "", (), "counter", "Refused datagrams for which the quarantine file had no room."),
    ("lines_total", "", (), "counter", "Lines handed to the spool."),
    ("joined_lines_total", "ended", ENDS, "counter", "Lines joined from partial records, by what ended them."),
    ("joined_records_total", "", (), "counter", "Records taken as pieces of lines to be joined."),
    ("doubtful_lines_total", "", (), "counter", "Joined lines of steps that are known to have lost records."),
    ("drop_reports_total", "", (), "counter", "Drop reports of relay_io found in slurmd's log."),
    ("open_chains", "", (), "gauge", "Lines of which only partial records have come so far."),
    ("open_chain_bytes", "", (), "gauge", "Bytes in those lines; what kill -9 would lose."),
    ("spool_failures_total", "", (), "counter", "Attempts to write the spool that failed; each holds the socket up."),
    ("lost_lines_total", "", (), "counter", "Lines given up at the end because the spool could not be written."),
    ("receiver_starts_total", "", (), "counter", "Starts of the receiving process."),
)
_KEEPER: "tuple[tuple[str, str, tuple[str, ...], str, str], ...]" = (
    ("spool_bytes", "", (), "gauge", "Bytes in the spool."),
    ("spool_lines", "", (), "gauge", "Number of the next line of the spool."),
    ("unsynced_seconds", "", (), "gauge", "Age of the last sync of the spool; what a power cut would lose."),
    ("max_dgram_qlen", "", (), "gauge", "net.unix.max_dgram_qlen when the socket was bound, 0 when not known."),
)
_SINK: "tuple[tuple[str, str, tuple[str, ...], str, str], ...]" = (
    ("sink_delivered_lines_total", "", (), "counter", "Lines that the sink has taken."),
    ("sink_delivered_bytes_total", "", (), "counter", "Bytes of lines that the sink has taken."),
    ("sink_retried_lines_total", "", (), "counter", "Lines sent again."),
    ("sink_failures_total", "", (), "counter", "Attempts that failed as a whole."),
    ("sink_dropped_lines_total", "reason", tuple(DROPS), "counter", "Lines that the sink did not get."),
    ("sink_next_line", "", (), "gauge", "Number of the line that the sink gets next."),
    ("sink_is_down", "", (), "gauge", "1 while the last attempt failed."),
    ("sink_starts_total", "", (), "counter", "Starts of the sink's process."),
)


class Counters:
    """rows: (name, labels) of each number, in order; labels as in the text format, `sink="x",reason="y"` or empty."""

    def __init__(self, sinks: "Iterable[str]") -> None:
        self.rows: list[tuple[str, str]] = []
        self._index: dict[tuple[str, ...], int] = {}
        self._about: dict[str, tuple[str, str]] = {}
        for name, label, values, kind, text in (*_RECEIVER, *_KEEPER):
            self._add("", name, label, values, kind, text)
        for name, label, values, kind, text in _SINK:
            for sink in sinks:
                self._add(sink, name, label, values, kind, text)
        self._memory = memoryview(mmap.mmap(-1, 8 * len(self.rows))).cast("Q")

    def _add(self, sink: str, name: str, label: str, values: "tuple[str, ...]", kind: str, text: str) -> None:
        self._about[name] = (kind, text)
        for value in values or ("",):
            labels = [f'sink="{sink}"'] if sink else []
            if value:
                labels.append(f'{label}="{value}"')
            self._index[sink, name, value] = len(self.rows)
            self.rows.append((name, ",".join(labels)))

    def add(self, name: str, count: int = 1, value: str = "", sink: str = "") -> None:
        """Counts. value: the row's label value."""
        self._memory[self._index[sink, name, value]] += count

    def set(self, name: str, number: int, value: str = "", sink: str = "") -> None:
        """Sets a number to what it is now."""
        self._memory[self._index[sink, name, value]] = max(0, number)

    def get(self, name: str, value: str = "", sink: str = "") -> int:
        """What a row holds."""
        return self._memory[self._index[sink, name, value]]

    def prometheus(self) -> str:
        """Everything in Prometheus' text format."""
        lines = []
        last = ""
        for (name, labels), number in zip(self.rows, self._memory):
            if name != last:
                kind, text = self._about[name]
                lines.append(f"# HELP {_PREFIX}{name} {text}\n# TYPE {_PREFIX}{name} {kind}\n")
                last = name
            lines.append(f"{_PREFIX}{name}{{{labels}}} {number}\n" if labels else f"{_PREFIX}{name} {number}\n")
        return "".join(lines)

    def table(self) -> str:
        """What is not zero, for a person."""
        rows = [
            (f"{name}{{{labels}}}" if labels else name, number)
            for (name, labels), number in zip(self.rows, self._memory)
            if number
        ]
        width = max((len(name) for name, _ in rows), default=0)
        return "".join(f"{name:{width}}  {number}\n" for name, number in rows)

    def total(self, name: str, sink: str = "") -> int:
        """The sum of a number's rows."""
        return sum(self._memory[index] for (of, known, _), index in self._index.items() if (of, known) == (sink, name))
