# SPDX-License-Identifier: GPL-2.0-or-later
"""Batches for Loki's push API (also taken by VictoriaLogs and OpenObserve).

Few labels, since each combination is a stream of its own in Loki; what tells jobs apart goes into structured metadata.
"""

import json

from guard.scraper import decode
from guard.scraper.sinks import facts, http

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.scraper.sinks.verdict import Item

LABELS = ("cluster", "type", "stream")


class LokiSink(http.HttpSink):
    """poster: to <url>/loki/api/v1/push; labels: facts that become labels; fixed: labels that are always the same.

    Loki's 400 names one entry and keeps the others; halves find the one, and what is pushed twice in that Loki drops by
    itself, being the same entry at the same time in the same stream.
    """

    def __init__(self, poster: http.Poster, labels: "tuple[str, ...]", fixed: "dict[str, str]") -> None:
        super().__init__(poster)
        self._labels = labels
        self._fixed = fixed

    def request(self, items: "list[Item]") -> bytes:
        """As http.HttpSink."""
        return body(items, self._labels, self._fixed)


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
