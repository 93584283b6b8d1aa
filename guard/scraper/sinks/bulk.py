# SPDX-License-Identifier: GPL-2.0-or-later
"""Batches for the _bulk API of Elasticsearch and OpenSearch, each line with an id of its own."""

import json
import time

from guard.base.faults import NodeFault
from guard.scraper import decode
from guard.scraper.sinks import http
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guard.scraper.sinks.verdict import Item

_NS = 1_000_000_000
_CONFLICT = 409


class BulkSink(http.HttpSink):
    """poster: to <url>/_bulk; index: of an index or a data stream."""

    content_type = "application/x-ndjson"

    def __init__(self, poster: http.Poster, index: str) -> None:
        super().__init__(poster)
        self._index = index

    def request(self, items: "list[Item]") -> bytes:
        """As http.HttpSink."""
        return body(items, self._index)

    def read(self, answer: http.Answer, count: int) -> Verdict:
        """As http.HttpSink: the answer has a status for each line."""
        return read(answer, count)


def body(items: "list[Item]", index: str) -> bytes:
    """The request of a batch. `create`, since a data stream takes nothing else, and since a second create of the same
    id is refused as a conflict: so a repeated batch doubles nothing. Pure."""
    parts = []
    for item_id, line in items:
        fields = decode.quick_loads(line)
        seconds, nanoseconds = divmod(fields["time"], _NS)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"
        parts.append(json.dumps({"create": {"_index": index, "_id": item_id}}, separators=(",", ":")).encode("utf-8"))
        # The line as it is, with one field more: date_nanos reads it, `time` stays the exact number.
        parts.append(b'{"@timestamp":"%b",%b' % (stamp.encode("ascii"), line[1:].rstrip(b"\n")))
    return b"\n".join(parts) + b"\n"


def read(answer: http.Answer, count: int) -> Verdict:
    """What a 200 says of each line: 409 is already there, what blames the line is refused for good, and the rest is a
    matter of the store, such as a 403 for an index that is read-only or not this user's. Pure.

    Raises: NodeFault(sink-failed) - it is no answer to this request.
    """
    try:
        said = json.loads(answer.body)
        if said["errors"] is False:
            return Verdict()
        results = [next(iter(item.values())) for item in said["items"]]
        statuses = [int(result["status"]) for result in results]
    except (ValueError, KeyError, TypeError, StopIteration, AttributeError):
        raise NodeFault("sink-failed", f"not an answer of _bulk: {answer.said()}")
    if len(statuses) != count:
        raise NodeFault("sink-failed", f"_bulk answered for {len(statuses)} of {count} lines")
    refused = {}
    retry = []
    for index, status in enumerate(statuses):
        if status in http.BLAMES_CONTENT:
            refused[index] = _said(results[index])
        elif status >= 300 and status != _CONFLICT:
            retry.append(index)
    why = f"_bulk put off {len(retry)} of {count} lines: {_said(results[retry[0]])}" if retry else ""
    return Verdict(refused, retry, wait_s=answer.retry_after_s, why=why)


def _said(result: "Any") -> str:
    return f"{result['status']} {json.dumps(result.get('error', ''))}"[:300]
