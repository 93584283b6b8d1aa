# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of schema v1 as datagrams: one line of compact JSON each. Pure.

Seed relay_io, "Record format", in the order of its examples. Log records are put together from bytes that are prepared
once a read: encoding each with a JSON library is what bounds a naive relay, and a faster library does not change that
(a call a record). Bodies are UTF-8 already, so that only `"`, `\\` and the control characters want an escape.
"""

import json

from guard.relay.lines import LINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STREAM_NAMES = {1: "stdout", 2: "stderr"}
_ENDS = (b'"}', b'","partial":true}', b'","unbuffered":true}')
_LINE_END = b"\\n" + _ENDS[LINES]
_CONTROL_ESCAPES = tuple(
    (bytes((code,)), json.dumps(chr(code)).encode()[1:-1]) for code in range(1, 0x20) if code != 0x0A
)


def event(kind: str, time_ns: int, slurm: "Mapping[str, object]") -> bytes:
    """A job_start, job_end, step_start or step_end record. slurm: as the record holds it; absent fields absent."""
    return _json({"v": 1, "type": kind, "time": time_ns, "slurm": slurm})


def log_place(slurm: "Mapping[str, object]", stream: int) -> bytes:
    """What is the same in all log records of one stream of one task, for logs()."""
    return b',"slurm":%s,"stream":"%s","body":"' % (_json(slurm), STREAM_NAMES[stream].encode())


def logs(pieces: "list[tuple[int, bytes]]", time_ns: int, place: bytes) -> "list[bytes]":
    """The log records of what one read completed (lines.Stream). place: of log_place()."""
    head = b'{"v":1,"type":"log","time":%d' % time_ns + place
    records = []
    for kind, body in pieces:
        escaped = body.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        # 30 looks of memchr's speed: a regular expression takes ten times as long over text that has none of them.
        for control, escape in _CONTROL_ESCAPES:
            if control in escaped:
                escaped = escaped.replace(control, escape)
        if kind == LINES:
            # A list of small joins: one replace() over the whole block, then one split, takes four times as long.
            records += [head + line + _LINE_END for line in escaped[:-1].split(b"\n")]
        else:
            records.append(head + escaped.replace(b"\n", b"\\n") + _ENDS[kind])
    return records


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
