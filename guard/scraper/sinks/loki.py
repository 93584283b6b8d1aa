# SPDX-License-Identifier: GPL-2.0-or-later
"""Batches for Loki's push API (also taken by VictoriaLogs and OpenObserve).

Few labels, since each combination is a stream of its own in Loki; what tells jobs apart goes into structured metadata.
"""

import json

from guard.scraper import decode
from guard.scraper.limits import SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks import facts, http
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.scraper.sinks.verdict import Item

LABELS = ("cluster", "type", "stream")


class LokiSink:
    """poster: to <url>/loki/api/v1/push; labels: facts that become labels; fixed: labels that are always the same."""

    def __init__(self, poster: http.Poster, labels: "tuple[str, ...]", fixed: "dict[str, str]") -> None:
        self.lines_max = SINK_BATCH_RECORDS
        self.bytes_max = SINK_BATCH_BYTES
        self._poster = poster
        self._labels = labels
        self._fixed = fixed

    def send(self, items: "list[Item]") -> Verdict:
        """Pushes the batch. Loki's 400 names one entry and keeps the others; halves find the one, and what is pushed
        twice in that Loki drops by itself, being the same entry at the same time in the same stream."""
        answer = self._poster.post(body(items, self._labels, self._fixed), "application/json")
        return http.verdict(answer, len(items)) or Verdict()

    def reopen(self) -> None:
        """Nothing to do."""

    def idle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Ends the connections."""
        self._poster.close()


def body(items: "list[Item]", labels: "tuple[str, ...]", fixed: "dict[str, str]") -> bytes:
    """The request of a batch. Times are nanoseconds as decimal strings: a JSON number is a double there. Pure."""
    streams: dict[tuple[tuple[str, str], ...], list[list[object]]] = {}
    for item_id, line in items:
        fields = decode.quick_loads(line)
        found = facts.flat(fields)
        key = tuple(sorted({**fixed, **{name: found.pop(name) for name in labels if name in found}}.items()))
        found["relay_id"] = item_id
        streams.setdefault(key, []).append([str(fields["time"]), facts.text(fields), found])
    whole = {"streams": [{"stream": dict(key), "values": values} for key, values in streams.items()]}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
