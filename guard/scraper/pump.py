# SPDX-License-Identifier: GPL-2.0-or-later
"""One sink's process's order: spool -> batches -> sink, at least once each, in order, for as long as it takes.

The cursor moves when every line of a batch is delivered or refused for good. What a sink has refused is kept in
`refused.<sink>.ndjson`; a batch refused as a whole is halved until the one line that is to blame stands alone. Where
all of them are refused, the sink counts as down.
"""

import os
import random
import signal
import time

from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.scraper import decode, quarantine, spool
from guard.scraper.blame import Blame
from guard.scraper.counters import Counters
from guard.scraper.limits import BACKOFF_FIRST_S, BACKOFF_MAX_S, RETRY_AFTER_MAX_S, SINK_IDLE_S, STOP_TRY_S
from guard.scraper.sinks.verdict import Verdict
from guard.scraper.wake import Wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.scraper.sinks.verdict import Item, Sink


class Pump:
    """Moves one sink's lines. Its clock, its randomness and its waiting are arguments, for the tests' driven hours."""

    def __init__(
        self,
        name: str,
        sink: "Sink",
        reader: spool.Reader,
        spool_name: str,
        folder: str,
        counters: Counters,
        wait: "Callable[[float], None]",
        tell: "Callable[[str], None]",
        jitter: "Callable[[], float]" = random.random,
    ) -> None:
        self._name = name
        self._sink = sink
        self._reader = reader
        self._spool_name = spool_name
        self._folder = folder
        self._counters = counters
        self._wait = wait
        self._tell = tell
        self._jitter = jitter
        self._quarantine = quarantine.Quarantine(os.path.join(folder, f"refused.{name}.ndjson"))
        self._blame = Blame()
        self._failures = 0
        self._lost_count = 0
        self._has_refused = False

    def step(self, patience: "Callable[[], bool]") -> bool:
        """Delivers the next batch; gives whether there was one and all of it is settled.

        Takes: patience - asked before each wait, whether to try once more.
        Raises: OSError - the spool cannot be read, or the cursor not be kept.
        """
        piece = self._reader.read(self._sink.lines_max, self._sink.bytes_max)
        self._count_lost()
        if piece is None:
            self._sink.idle()
            return False
        items = [(f"{self._spool_name}-{piece.first + index}", line) for index, line in enumerate(piece.lines)]
        if not self._settle(items, patience):
            return False
        self._reader.cursor = piece.after
        spool.save_cursor(self._folder, self._spool_name, self._name, piece.after, {})
        self._counters.set("sink_next_line", piece.after.number, sink=self._name)
        return True

    def _settle(self, items: "list[Item]", patience: "Callable[[], bool]") -> bool:
        """Sends until each item is delivered or refused for good; gives False when patience ended first, or the sink
        refused them all: then the next batch begins with them again, and has what has come meanwhile."""
        heaps = [items]
        delivered_count = 0
        refused: "list[tuple[Item, str, str]]" = []
        damaged: "list[tuple[Item, str, str]]" = []
        while heaps:
            heap = heaps.pop()
            try:
                verdict = self._sink.send(heap)
            except NodeFault as fault:
                self._counters.add("sink_failures_total", sink=self._name)
                verdict = Verdict(retry=list(range(len(heap))), why=fault.detail)
            except ValueError:
                # Not looked for in each line: a power cut or a disk did it, if anything.
                broken = [item for item in heap if not _is_whole(item[1])]
                if not broken:
                    raise
                damaged += [(item, "damaged", "no record") for item in broken]
                whole = [item for item in heap if item not in broken]
                heaps += [whole] if whole else []
                continue
            if verdict.split and len(heap) > 1:
                middle = len(heap) // 2
                heaps += [heap[middle:], heap[:middle]]
                continue
            if verdict.split:
                refused.append((heap[0], verdict.split, verdict.why))
                continue
            refused += [(heap[index], "refused", why) for index, why in verdict.refused.items()]
            taken_count = self._count(heap, verdict)
            delivered_count += taken_count
            if verdict.retry:
                self._set_down(verdict.why)
                heaps.append([heap[index] for index in verdict.retry])
                if not self._pause(len(verdict.retry), verdict.wait_s, patience):
                    return False
            elif taken_count:
                self._set_up()
        if not self._blame.are_lines(delivered_count, [len(line) for (_, line), _, _ in refused]):
            self._set_down(f"it refuses every line: {refused[0][2]}")
            self._blame.hold(self._pause(len(items), None, patience))
            return False
        for item, reason, why in refused + damaged:
            self._refuse(item, reason, why)
        return True

    def _pause(self, again_count: int, asked_s: "float | None", patience: "Callable[[], bool]") -> float:
        """Waits before so many lines are sent again; gives for how long, 0 where there is no patience."""
        if not patience():
            return 0.0
        self._counters.add("sink_retried_lines_total", again_count, sink=self._name)
        pause_s = self._pause_s(asked_s)
        self._wait(pause_s)
        return pause_s

    def _pause_s(self, asked_s: "float | None") -> float:
        longest_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * (1 << min(self._failures, 20)))
        self._failures += 1
        # Half of it at least: a thousand nodes whose store comes back must neither all come at once nor hammer it.
        pause_s = longest_s * (0.5 + self._jitter() / 2)
        # On top of what the peer asks: `Retry-After: 0` for ever must not become a loop without a pause.
        return min(RETRY_AFTER_MAX_S, asked_s or 0.0) + pause_s

    def _set_down(self, why: str) -> None:
        if not self._counters.get("sink_is_down", sink=self._name):
            self._tell(f"sink {self._name} is down: {why}")
        self._counters.set("sink_is_down", 1, sink=self._name)

    def _set_up(self) -> None:
        if self._counters.get("sink_is_down", sink=self._name):
            self._tell(f"sink {self._name} is well again")
        self._counters.set("sink_is_down", 0, sink=self._name)
        self._failures = 0

    def _count(self, heap: "list[Item]", verdict: Verdict) -> int:
        """Counts what a verdict says; gives how many lines were delivered."""
        but = {*verdict.refused, *verdict.retry}
        count = len(heap) - len(but) - verdict.unnamed_count
        size_bytes = sum(len(line) for index, (_, line) in enumerate(heap) if index not in but)
        self._counters.add("sink_delivered_lines_total", count, sink=self._name)
        self._counters.add("sink_delivered_bytes_total", size_bytes, sink=self._name)
        if verdict.unnamed_count:
            self._counters.add("sink_dropped_lines_total", verdict.unnamed_count, "refused", self._name)
            self._tell(f"sink {self._name} refused {verdict.unnamed_count} lines: {verdict.why}")
        return count

    def _refuse(self, item: "Item", reason: str, why: str) -> None:
        self._counters.add("sink_dropped_lines_total", 1, reason, self._name)
        if not self._has_refused:
            self._tell(f"sink {self._name} does not get a line, {reason}, more are only counted: {why}")
        self._has_refused = True
        self._quarantine.keep(time.time_ns(), reason, item[1], id=item[0], why=why)

    def _count_lost(self) -> None:
        lost_count, self._lost_count = self._reader.lost_count - self._lost_count, self._reader.lost_count
        if lost_count:
            self._counters.add("sink_dropped_lines_total", lost_count, "spool-full", self._name)
            self._tell(f"sink {self._name}: {lost_count} lines were thrown away unread, the spool was full")


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(decode.quick_loads(line), dict)
    except ValueError:
        return False


def run(
    name: str,
    make: "Callable[[Callable[[dict[str, object]], None], dict[str, object]], Sink]",
    folder: str,
    counters: Counters,
    lifeline_fd: int,
    tell: "Callable[[str], None]",
) -> None:
    """Delivers until SIGTERM or until the parent is gone, then what is there for as long as the sink takes it at once,
    at most STOP_TRY_S.

    Takes: make - the sink from (what keeps a note beside the cursor, the note that was kept).
    Raises: OSError, SiteFault, NodeFault - the sink or the spool cannot be used at all.
    """
    wake = Wake((signal.SIGTERM, signal.SIGHUP), lifeline_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spool_name = spool.prepare(folder)
    cursor, kept = spool.load_cursor(folder, spool_name, name)
    reader = spool.Reader(folder, cursor)

    def keep(note: "dict[str, object]") -> None:
        spool.save_cursor(folder, spool_name, name, reader.cursor, note)

    sink = make(keep, kept)
    pump = Pump(name, sink, reader, spool_name, folder, counters, wake.wait, tell)
    counters.set("sink_next_line", reader.cursor.number, sink=name)
    try:
        while not wake.has(signal.SIGTERM):
            if wake.take(signal.SIGHUP):
                sink.reopen()
            if not pump.step(lambda: not wake.has(signal.SIGTERM)):
                wake.wait(SINK_IDLE_S)
        deadline = Deadline(STOP_TRY_S)
        while deadline.left_s() and pump.step(lambda: False):
            pass
    finally:
        sink.close()
