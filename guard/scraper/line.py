# SPDX-License-Identifier: GPL-2.0-or-later
"""Records as lines of NDJSON, the form in which everything after the socket carries them. Pure.

What the scraper knows of a record goes into one field of its own, `scraper`: received (kernel's receive time, ns since
the epoch); doubtful where its step is known to have lost records; on a joined line also received_last, time_last,
pieces and ended (a key of rejoin.ENDS).
"""

import json

from guard.scraper import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KNOWN = frozenset(("v", "type", "time", "slurm", "stream", "body", "partial", "unbuffered"))


def stamped(raw: bytes, received_ns: int, is_doubtful: bool = False) -> bytes:
    """A record as it came, every byte of it, with its receive time. raw: what decode.record has taken."""
    if raw[-1] != 0x7D or b"\n" in raw:
        raw = raw.strip(b" \t\r\n")
        if b"\n" in raw:
            # Blanks between tokens may be newlines; in a string they cannot be. One record is one line here.
            raw = raw.replace(b"\n", b" ")
    if is_doubtful:
        return b'%b,"scraper":{"received":%d,"doubtful":true}}\n' % (raw[:-1], received_ns)
    return b'%b,"scraper":{"received":%d}}\n' % (raw[:-1], received_ns)


def joined(raw: bytes, body: str, partial: bool, note: "dict[str, Any]") -> bytes:
    """One line from the pieces of a chain.

    Takes: raw - the first piece as it came, whose other fields the line carries; body - of all pieces; partial -
    whether the line still ends elsewhere than at a line boundary; note - for the field `scraper`.
    """
    fields = decode.record(raw)
    if not fields.keys() <= _KNOWN:
        # A field of a later Slurm may hold an integer past 64 bits, which only the standard library keeps.
        fields = decode.record(raw, decode.standard_loads)
    fields.pop("partial", None)
    fields["body"] = body
    if partial:
        fields["partial"] = True
    fields["scraper"] = note
    return whole(fields)


def loss(
    time_ns: int, cluster: str, node: str, job_id: "int | None", step_id: "str | None", note: "dict[str, Any]"
) -> bytes:
    """The line of a known loss, of type `loss`: relay_io itself tells of drops only in slurmd's log."""
    slurm: dict[str, Any] = {"cluster": cluster, "node": node}
    if job_id is not None:
        slurm["job_id"] = job_id
    if step_id is not None:
        slurm["step_id"] = step_id
    return whole({"v": 1, "type": "loss", "time": time_ns, "slurm": slurm, "scraper": note})


def whole(fields: "dict[str, Any]") -> bytes:
    """fields as one line, UTF-8, blanks nowhere between tokens."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"
