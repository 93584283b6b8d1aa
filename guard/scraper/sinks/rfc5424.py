# SPDX-License-Identifier: GPL-2.0-or-later
"""A line as one RFC 5424 syslog message. Pure."""

import time

from guard.scraper import decode
from guard.scraper.sinks import facts

# 32473 is the enterprise number that RFC 5612 sets aside for examples and for whoever has none.
_SD_ID = "relay@32473"
_SEVERITY = {"stdout": 6, "stderr": 5}
_EVENT_SEVERITY = 6
_NS = 1_000_000_000
_NAME_MAX = {"host": 255, "app": 48, "procid": 128, "msgid": 32}


def render(item_id: str, line: bytes, facility: int, app: str) -> bytes:
    """One message, without framing.

    Takes: item_id, line - an item of the spool; facility - 0 to 23. Gives: bytes, UTF-8, control characters kept as
    they are in the message and in no other part. The timestamp has six digits of a fraction, all that RFC 5424 allows;
    `time` in the structured data has all nine.
    """
    fields = decode.quick_loads(line)
    slurm = fields["slurm"]
    time_ns = fields["time"]
    severity = _SEVERITY.get(fields.get("stream", ""), _EVENT_SEVERITY)
    seconds, nanoseconds = divmod(time_ns, _NS)
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1000:06d}Z"
    procid = ".".join(str(slurm[name]) for name in ("job_id", "step_id") if name in slurm)
    details = {**facts.flat(fields), "time": str(time_ns), "id": item_id}
    data = "".join(f' {name}="{_escaped(value)}"' for name, value in details.items())
    head = (
        f"<{facility * 8 + severity}>1 {stamp} {_name(slurm['node'], 'host')} {_name(app, 'app')}"
        f" {_name(procid, 'procid')} {_name(str(fields['type']), 'msgid')} [{_SD_ID}{data}] "
    )
    return (head + facts.text(fields)).encode("utf-8")


def _name(text: str, kind: str) -> str:
    """A header part: printable ASCII without blanks, `-` for nothing."""
    return "".join(character if "!" <= character <= "~" else "?" for character in text[: _NAME_MAX[kind]]) or "-"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")
