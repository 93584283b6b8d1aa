# SPDX-License-Identifier: GPL-2.0-or-later
"""Lines that a sink refused -> whether they are to blame, or the sink is. Pure.

A line that a store will never take must not hold up the others, so it is set aside. But a store that refuses all lines
is the wrong place, or is set up wrongly (an endpoint that does not know JSON, an index that is closed): lines that are
set aside then are lost for a fault that somebody will mend.
"""

from guard.scraper.limits import ALL_REFUSED_S, PLAIN_LINE_BYTES


class Blame:
    """Of one sink."""

    def __init__(self) -> None:
        self._has_taken = False
        self._held_s = 0.0

    def are_lines(self, delivered_count: int, refused_bytes: "list[int]") -> bool:
        """Whether the refused lines of a batch, of these lengths, are to be set aside; else all of it is sent again.

        They are where others were taken beside them. Of a whole batch only lines that are long, as any job can write
        them; one that came alone, once; or all, when the sink has had a day.
        """
        if delivered_count:
            self._has_taken = True
            self._held_s = 0.0
            return True
        if all(size_bytes > PLAIN_LINE_BYTES for size_bytes in refused_bytes):
            return True
        if self._has_taken and len(refused_bytes) == 1:
            self._has_taken = False
            return True
        return self._held_s >= ALL_REFUSED_S

    def hold(self, pause_s: float) -> None:
        """All of it waits so long."""
        self._held_s += pause_s
