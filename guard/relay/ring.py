# SPDX-License-Identifier: GPL-2.0-or-later
"""Records that wait to be sent: a fixed number of bytes, the oldest dropped first, every drop counted. Pure.

Seed relay_io, "Delivery". The sentences about drops are made here too, since the counts are: one for the first drop at
once, then one a period with the running total, and a last one with the final total. A scraper that follows the
log finds them by `relay dropped`; those of a full ring also by `the relay is not draining fast enough`.
"""

from collections import deque

from guard.relay.limits import DROP_REPORT_PERIOD_MS, RING_ENTRY_BYTES


class Ring:
    """records: the waiting datagrams, oldest first. Whoever sends looks at the left, and takes what went by take().

    Takes: pushed_count, dropped_count - those of the ring before, where this one goes on for a worker that died.
    """

    __slots__ = (
        "_capacity_bytes",
        "_reported_count",
        "_reported_ms",
        "_reported_oversize_count",
        "_smallest_bytes",
        "_used_bytes",
        "dropped_count",
        "oversize_count",
        "pushed_count",
        "records",
    )

    def __init__(self, capacity_bytes: int, pushed_count: int = 0, dropped_count: int = 0) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self.records: "deque[bytes]" = deque()
        self.pushed_count = pushed_count
        self.dropped_count = dropped_count  # all of them, oversize ones included
        self.oversize_count = 0
        self._smallest_bytes = 0
        self._reported_count = 0
        self._reported_oversize_count = 0
        self._reported_ms = 0

    def push(self, records: "list[bytes]") -> None:
        """Adds records, oldest first; drops as many of the oldest as it takes to stay within the capacity."""
        self.records.extend(records)
        self.pushed_count += len(records)
        self._used_bytes += sum(map(len, records)) + RING_ENTRY_BYTES * len(records)
        while self._used_bytes > self._capacity_bytes:
            self._used_bytes -= len(self.records.popleft()) + RING_ENTRY_BYTES
            self.dropped_count += 1

    def take(self, count: int) -> "list[bytes]":
        """The oldest count records: they are in the ring no more."""
        taken = [self.records.popleft() for _ in range(count)]
        self._used_bytes -= sum(map(len, taken)) + RING_ENTRY_BYTES * count
        return taken

    def drop_oversize(self) -> None:
        """Drops the oldest record: the kernel will not carry it."""
        size_bytes = len(self.take(1)[0])
        self.dropped_count += 1
        self.oversize_count += 1
        self._smallest_bytes = min(self._smallest_bytes or size_bytes, size_bytes)

    def drop_rest(self) -> None:
        """Drops everything: nobody will send it any more."""
        self.dropped_count += len(self.records)
        self.records.clear()
        self._used_bytes = 0

    def reports(self, now_ms: int, is_final: bool = False) -> "list[str]":
        """The sentences that are due now about drops, without any prefix; none if none is.

        Takes: now_ms - the monotonic clock; is_final - the step or the daemon ends.
        """
        full_count = self.dropped_count - self.oversize_count
        is_first = (full_count > 0) > (self._reported_count > 0) or (
            (self.oversize_count > 0) > (self._reported_oversize_count > 0)
        )
        if not (is_first or is_final or self.next_report_ms() <= now_ms):
            return []
        lines = []
        if self.oversize_count > (0 if is_final else self._reported_oversize_count):
            lines.append(
                f"relay dropped {_records(self.oversize_count)} due to EMSGSIZE,"
                f" the smallest being {self._smallest_bytes} bytes"
            )
        if full_count > (0 if is_final else self._reported_count):
            lines.append(f"relay dropped {_records(full_count)} in total, the relay is not draining fast enough")
        if lines:
            self._reported_ms = now_ms
        self._reported_count = full_count
        self._reported_oversize_count = self.oversize_count
        return lines

    def next_report_ms(self) -> "float":
        """When reports() is next due; infinity when nothing is new."""
        is_new = self.dropped_count > self._reported_count + self._reported_oversize_count
        return self._reported_ms + DROP_REPORT_PERIOD_MS if is_new else float("inf")


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"
