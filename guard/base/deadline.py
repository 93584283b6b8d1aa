# SPDX-License-Identifier: GPL-2.0-or-later
"""One deadline for everything that waits, on the monotonic clock (a stepped wall clock would fire or freeze it)."""

import time


class Deadline:
    """The moment, in monotonic seconds, after which nothing may wait any more."""

    __slots__ = ("at_s",)

    def __init__(self, seconds: float) -> None:
        self.at_s = time.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at_s - time.monotonic())
