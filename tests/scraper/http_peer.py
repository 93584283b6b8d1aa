# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict stand-ins on loopback for Loki, _bulk and OTLP, none of which Debian or PyPI has.

They refuse what the real ones refuse, and do what is in their script before they are well: a step a request, one of
  ("status", code, headers)  that answer, nothing stored
  ("cut",)                   the connection is cut before anything is stored
  ("lost",)                  everything is stored, and the connection is cut before the answer
  ("slow", seconds)          the answer comes late
"""

import gzip
import http.server
import json
import re
import threading
import time
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class Peer(http.server.ThreadingHTTPServer):
    """A stand-in, running. url; script; stored: what it took, in order; requests: (path, headers) of each."""

    daemon_threads = True
    path = ""
    content_type = "application/json"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.script: list[Any] = []
        self.stored: list[Any] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.body_max_bytes = 1 << 30
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def take(self, body: bytes) -> "tuple[int, bytes]":
        """Stores a request's content, or raises Refusal."""
        raise NotImplementedError

    def handle_error(self, *_: object) -> None:
        """A client that cuts the connection is no error of the test."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        """What client libraries ask before they begin."""
        self._answer(200, b'{"version":{"number":"2.11.0","distribution":"opensearch"}}', {})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        peer = self.server
        peer.requests.append((self.path, dict(self.headers)))
        step: Any = peer.script.pop(0) if peer.script else ("well",)
        if step[0] == "cut":
            self._cut()
            return
        if step[0] == "status":
            self._answer(step[1], b'{"message":"scripted"}', step[2])
            return
        if step[0] == "slow":
            time.sleep(step[1])
        try:
            if self.path.split("?")[0] != peer.path:
                raise Refusal(404, b"no such path")
            if self.headers["Content-Type"].split(";")[0] != peer.content_type:
                raise Refusal(415, b"unsupported media type")
            body = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
            if len(body) > peer.body_max_bytes:
                raise Refusal(413, b"request body too large")
            with peer.lock:
                status, answer = peer.take(body)
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body
        if step[0] == "lost":
            self._cut()
            return
        self._answer(status, answer, {})

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _answer(self, status: int, body: bytes, headers: "dict[str, str]") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)


def _need(is_so: object, text: str) -> None:
    if not is_so:
        raise Refusal(400, text.encode("utf-8"))


class Loki(Peer):
    """Stores (labels, ns, line, metadata). Like Loki it keeps the good entries of a push that it answers with 400, and
    drops an entry that its stream has at that time already. too_old_ns: what is older is refused."""

    path = "/loki/api/v1/push"
    too_old_ns = 0

    def take(self, body: bytes) -> "tuple[int, bytes]":
        push = json.loads(body)
        _need(isinstance(push.get("streams"), list) and push["streams"], "no streams")
        bad = 0
        for stream in push["streams"]:
            labels = stream["stream"]
            _need(labels and len(labels) <= 15, "wrong number of labels")
            for name, value in labels.items():
                _need(_LABEL.match(name) and isinstance(value, str), f"label {name}")
            for entry in stream["values"]:
                _need(len(entry) in (2, 3), "entry")
                stamp, line, *metadata = entry
                _need(isinstance(stamp, str) and stamp.isdigit(), "timestamp must be a string of nanoseconds")
                _need(isinstance(line, str), "line")
                for name, value in (metadata[0] if metadata else {}).items():
                    _need(_LABEL.match(name) and isinstance(value, str), f"metadata {name}")
                if int(stamp) < self.too_old_ns:
                    bad += 1
                    continue
                stored = (tuple(sorted(labels.items())), int(stamp), line, metadata[0] if metadata else {})
                if stored not in self.stored:
                    self.stored.append(stored)
        if bad:
            raise Refusal(400, f"entry too far behind, total ignored: {bad}".encode())
        return 204, b""


class Bulk(Peer):
    """Stores (id, document), a data stream. statuses: id -> statuses that it gets first, one a try."""

    path = "/_bulk"
    content_type = "application/x-ndjson"

    def __init__(self) -> None:
        super().__init__()
        self.statuses: dict[str, list[int]] = {}

    def take(self, body: bytes) -> "tuple[int, bytes]":
        _need(body.endswith(b"\n"), "The bulk request must be terminated by a newline [\\n]")
        lines = body[:-1].split(b"\n")
        _need(len(lines) % 2 == 0, "Malformed action/metadata line")
        items = []
        for action_line, document_line in zip(lines[::2], lines[1::2]):
            action, document = json.loads(action_line), json.loads(document_line)
            _need(list(action) == ["create"], "only write ops with an op_type of create are allowed in data streams")
            known = action["create"]["_id"]
            waiting = self.statuses.get(known)
            if waiting:
                status = waiting.pop(0)
            elif "@timestamp" not in document:
                status = 400
            elif known in dict(self.stored):
                status = 409
            else:
                status = 201
                self.stored.append((known, document))
            result: dict[str, Any] = {"_index": action["create"]["_index"], "_id": known, "status": status}
            if status >= 300:
                result["error"] = {"type": "some_exception", "reason": f"status {status}"}
            items.append({"create": result})
        errors = any(item["create"]["status"] >= 300 for item in items)
        return 200, json.dumps({"took": 1, "errors": errors, "items": items}).encode("utf-8")


class Otlp(Peer):
    """Stores opentelemetry's own LogRecord messages with their resource; its protobuf definitions judge the request.
    rejected: how many of the next request are said to be rejected."""

    path = "/v1/logs"
    rejected = 0

    def take(self, body: bytes) -> "tuple[int, bytes]":
        try:
            request = json_format.Parse(body, ExportLogsServiceRequest())
        except json_format.ParseError as error:
            raise Refusal(400, str(error).encode("utf-8"))
        records = []
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    _need(record.time_unix_nano > 0, "no time")
                    records.append((resource.resource, record))
        rejected, self.rejected = self.rejected, 0
        self.stored += records[: len(records) - rejected]
        if rejected:
            partial = {"partialSuccess": {"rejectedLogRecords": str(rejected), "errorMessage": "too odd"}}
            return 200, json.dumps(partial).encode("utf-8")
        return 200, b"{}"
