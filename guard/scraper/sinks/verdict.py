# SPDX-License-Identifier: GPL-2.0-or-later
"""What every sink is asked, and what it answers. Pure."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    # (id, line): an id is `<spool name>-<number>` and the same at every attempt; a line ends with its newline.
    Item = tuple[str, bytes]

    class Sink(Protocol):
        """A destination. lines_max, bytes_max: what it takes in one batch."""

        lines_max: int
        bytes_max: int

        def send(self, items: "list[Item]") -> "Verdict":
            """Tries to deliver the items in their order, within ATTEMPT_S.

            Raises: NodeFault(sink-failed) - none of them is known to have arrived; send the same again.
            """

        def reopen(self) -> None:
            """Opens its files anew: somebody has moved them (SIGHUP)."""

        def idle(self) -> None:
            """Called while there is nothing to send."""

        def close(self) -> None:
            """Ends what is open."""


class Verdict:
    """What became of a batch; what is named nowhere was delivered.

    refused: index -> why, for good; retry: indexes to be sent again; split: the batch as a whole was refused for what
    is in it, so that halves of it may pass, "too-large" or "refused"; unnamed_count: lines
    that were refused for good without a word on which; wait_s: how long the peer asks us to wait.
    """

    __slots__ = ("refused", "retry", "split", "unnamed_count", "wait_s", "why")

    def __init__(
        self,
        refused: "dict[int, str] | None" = None,
        retry: "list[int] | None" = None,
        split: "str | None" = None,
        wait_s: "float | None" = None,
        why: str = "",
        unnamed_count: int = 0,
    ) -> None:
        self.refused = refused or {}
        self.retry = retry or []
        self.split = split
        self.wait_s = wait_s
        self.why = why
        self.unnamed_count = unnamed_count
