# SPDX-License-Identifier: GPL-2.0-or-later
"""One datagram -> the fields of one record of schema version 1, or a PeerFault whose code is a key of REFUSALS. Pure.

orjson where it is installed, else the standard library; both take and refuse the same (tests hold it).
"""

import json

from guard.base.faults import PeerFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

# 64-bit time, 32-bit ids: Slurm's own types (seed "Record format"; slurm.h).
_TIME_END = 1 << 63
_ID_END = 1 << 32
_JOB_TYPES = ("job_start", "job_end")
_STEP_TYPES = ("step_start", "step_end")
_BLANK = " \t\r\n"
# What the absence of a field is, where it is not bad-field.
_ABSENT = {"v": "unknown-version", "type": "unknown-type"}
_OPTIONAL = ("user_name", "partition", "account", "sluid")


def record(raw: bytes, loads: "Callable[[bytes], Any] | None" = None) -> "dict[str, Any]":
    """The fields of the record in raw, checked.

    Takes: raw - one datagram, untrusted; loads - the JSON parser, the best one there is by default.
    Gives: the whole object, unknown fields kept; `time` is an int.
    Raises: PeerFault(not-utf8, not-json, unknown-version, unknown-type, bad-field, reserved-field).
    Source: seed relay_io "Record format". sluid may be absent: Slurm before 24.11 has none to tell.
    """
    fields = (loads or _LOADS)(raw)
    if type(fields) is not dict:
        raise PeerFault("not-json", "no object")
    try:
        # Subscripts where get() would do: there are a dozen of them for each record.
        _check(fields)
    except KeyError as absent:
        name = absent.args[0]
        raise PeerFault(_ABSENT.get(name, "bad-field"), f"no {name}")
    return fields


def _check(fields: "dict[str, Any]") -> None:
    """Raises: PeerFault, and KeyError for a field that must be there and is not."""
    version = fields["v"]
    if version != 1 or type(version) is not int:
        raise PeerFault("unknown-version", repr(version)[:40])
    kind = fields["type"]
    slurm = fields["slurm"]
    time_ns = fields["time"]
    if type(slurm) is not dict:
        raise PeerFault("bad-field", "slurm")
    if type(time_ns) is not int or not 0 <= time_ns < _TIME_END:
        raise PeerFault("bad-field", "time")
    job_id = slurm["job_id"]
    if type(job_id) is not int or not 0 <= job_id < _ID_END:
        raise PeerFault("bad-field", "job_id")
    if type(slurm["cluster"]) is not str or type(slurm["node"]) is not str:
        raise PeerFault("bad-field", "cluster or node")
    for name in _OPTIONAL:
        if name in slurm and type(slurm[name]) is not str:
            raise PeerFault("bad-field", name)
    if "scraper" in fields:
        raise PeerFault("reserved-field")
    if kind == "log":
        if type(fields["body"]) is not str:
            raise PeerFault("bad-field", "body")
        if fields["stream"] not in ("stdout", "stderr"):
            raise PeerFault("bad-field", "stream")
        if type(slurm["step_id"]) is not str:
            raise PeerFault("bad-field", "step_id")
        number = slurm["task_id_global"]
        if type(number) is not int or not 0 <= number < _ID_END:
            raise PeerFault("bad-field", "task_id_global")
        number = slurm["task_id_local"]
        if type(number) is not int or not 0 <= number < _ID_END:
            raise PeerFault("bad-field", "task_id_local")
        if "partial" in fields and (fields["partial"] is not True or "unbuffered" in fields):
            raise PeerFault("bad-field", "partial")
        if "unbuffered" in fields and fields["unbuffered"] is not True:
            raise PeerFault("bad-field", "unbuffered")
    elif kind in _JOB_TYPES:
        restart_count = slurm.get("restart_count", 0)
        if type(restart_count) is not int or not 0 <= restart_count < _ID_END:
            raise PeerFault("bad-field", "restart_count")
    elif kind not in _STEP_TYPES:
        raise PeerFault("unknown-type", repr(kind)[:40])
    elif type(slurm["step_id"]) is not str:
        raise PeerFault("bad-field", "step_id")


def standard_loads(raw: bytes) -> "Any":
    """raw as a JSON value by the standard library, as strict as orjson is."""
    try:
        text = str(raw, "utf-8")
    except UnicodeDecodeError:
        raise PeerFault("not-utf8")
    if text[:1] != "{":
        text = text.lstrip(_BLANK)
    try:
        # The scanner itself: json.loads guesses the encoding and matches blanks by regular expressions, which
        # together take longer than the scan of a short record.
        value, end = _SCAN(text, 0)
    except (ValueError, StopIteration, RecursionError) as error:
        raise PeerFault("not-json", str(error)[:80])
    if end != len(text) and text[end:].strip(_BLANK):
        raise PeerFault("not-json", "more after the object")
    # From the first backslash on, which is found faster than two characters: in most records it is the last thing.
    first = text.find("\\")
    if first >= 0 and text.find("\\u", first) >= 0:
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError):
        raise PeerFault("not-json", "half a surrogate pair")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("number out of range")
    return number


def fast_loads(raw: bytes) -> "Any":
    """raw as a JSON value by orjson. What orjson refuses the standard library judges: it takes integers of any length,
    and its word on the rest is then the same wherever the scraper runs."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return standard_loads(raw)


_DECODER: "Any" = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_SCAN: "Callable[[str, int], tuple[Any, int]]" = _DECODER.scan_once
_LOADS = fast_loads if orjson is not None else standard_loads
# For lines of our own spool, whose content has been checked.
quick_loads: "Callable[[bytes], Any]" = json.loads if orjson is None else orjson.loads
