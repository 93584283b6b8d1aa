# SPDX-License-Identifier: GPL-2.0-or-later
"""Batches for an OpenTelemetry collector: OTLP/HTTP, POST /v1/logs, JSON.

Source: opentelemetry-proto 1.x logs.proto in its JSON mapping, OTLP specification "OTLP/HTTP".
"""

import json

from guard.scraper import decode
from guard.scraper.sinks import facts, http
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guard.scraper.sinks.verdict import Item

# SEVERITY_NUMBER_INFO, SEVERITY_NUMBER_INFO2: stderr is not an error, only the other stream.
_SEVERITY = {"stdout": 9, "stderr": 10}
_INTEGERS = frozenset(("job_id", "task_id_global", "task_id_local", "restart_count", "pieces", "dropped"))
_RESOURCE = ("cluster", "node")


class OtlpSink(http.HttpSink):
    """poster: to <url>/v1/logs. A partial success must not be sent again (OTLP "Partial Success"), and does not say
    which lines were meant, so they can only be counted."""

    def request(self, items: "list[Item]") -> bytes:
        """As http.HttpSink."""
        return body(items)

    def read(self, answer: http.Answer, count: int) -> Verdict:
        """As http.HttpSink."""
        return read(answer, count)


def body(items: "list[Item]") -> bytes:
    """The request of a batch: a resource for each node, 64-bit integers as decimal strings. Pure."""
    resources: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for item_id, line in items:
        fields = decode.quick_loads(line)
        found = facts.flat(fields)
        received = found.pop("received", "0")
        key = tuple(found.pop(name) for name in _RESOURCE)
        record: dict[str, Any] = {
            "timeUnixNano": str(fields["time"]),
            "observedTimeUnixNano": received,
            "severityNumber": _SEVERITY.get(found.get("stream", ""), 9),
            "body": {"stringValue": facts.text(fields)},
            "attributes": [_attribute(f"slurm.{name}", name, value) for name, value in found.items()],
        }
        record["attributes"].append(_attribute("relay.id", "", item_id))
        resources.setdefault(key, []).append(record)
    whole = {
        "resourceLogs": [
            {
                "resource": {
                    "attributes": [
                        _attribute("service.name", "", "slurm"),
                        _attribute("slurm.cluster", "", key[0]),
                        _attribute("host.name", "", key[1]),
                    ]
                },
                "scopeLogs": [{"scope": {"name": "eessi-arch-guard"}, "logRecords": records}],
            }
            for key, records in resources.items()
        ]
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read(answer: http.Answer, count: int) -> Verdict:
    """What a 200 says: nothing, or how many were rejected for good. Pure."""
    try:
        partial = json.loads(answer.body or b"{}").get("partialSuccess") or {}
        rejected_count = min(count, int(partial.get("rejectedLogRecords") or 0))
    except (ValueError, TypeError, AttributeError):
        return Verdict()  # it is a 200 all the same, and to send again would double every line
    return Verdict(unnamed_count=rejected_count, why=str(partial.get("errorMessage", ""))[:300])


def _attribute(key: str, name: str, value: str) -> "dict[str, Any]":
    return {"key": key, "value": {"intValue": value} if name in _INTEGERS else {"stringValue": value}}
