# SPDX-License-Identifier: GPL-2.0-or-later
"""The configuration: TOML or a command line -> a Config, or every fault that is in it at once.

KEYS and SINK_KEYS are the reference; docs/scraper.md shows them with their meaning.
"""

import os
import re
import sys

from guard.base.faults import SiteFault
from guard.scraper.limits import FILE_MAX_AGE_S, FILE_MAX_BYTES, SPOOL_MAX_BYTES, SYNC_S
from guard.scraper.sinks import journald, loki

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# key -> (type, default); None as default: must be given. Sizes in MiB, times in seconds.
KEYS: "dict[str, tuple[Any, Any]]" = {
    "socket": (str, "/var/spool/slurmd/relay-io.sock"),
    "spool": (str, "/var/lib/eessi-relay"),
    "spool_max_mbytes": (int, SPOOL_MAX_BYTES >> 20),
    "sync_seconds": (float, SYNC_S),
    "slurm_user": (str, "root"),
    "slurmd_log": (str, ""),
    "metrics_file": (str, ""),
    "join_unbuffered": (bool, False),
    "sink": (list, []),
}
_HTTP: "dict[str, tuple[Any, Any]]" = {
    "url": (str, None),
    "user": (str, ""),
    "password_file": (str, ""),
    "token_file": (str, ""),
    "headers": (dict, {}),
    "ca_file": (str, ""),
}
SINK_KEYS: "dict[str, dict[str, tuple[Any, Any]]]" = {
    "file": {
        "directory": (str, None),
        "per": (str, "day"),
        "max_mbytes": (int, FILE_MAX_BYTES >> 20),
        "max_age_seconds": (float, FILE_MAX_AGE_S),
        "keep_days": (int, 0),
        "mode": (str, "0640"),
    },
    "syslog": {
        "to": (str, None),
        "facility": (int, 16),
        "app": (str, "slurm"),
    },
    "journald": {"socket": (str, journald.SOCKET), "identifier": (str, "slurm")},
    "loki": {**_HTTP, "labels": (list, list(loki.LABELS)), "fixed_labels": (dict, {"job": "slurm"})},
    "bulk": {**_HTTP, "index": (str, None)},
    "otlp": dict(_HTTP),
    "kafka": {"topic": (str, None), "settings": (dict, None)},
}
_SINK_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_SYSLOG = re.compile(r"(?:(tcp|udp)://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):(\d{1,5})|unix:(/.+))\Z")
_KINDS: "dict[Any, tuple[str, tuple[type, ...]]]" = {
    str: ("a string", (str,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
    list: ("a list", (list,)),
    dict: ("a table", (dict,)),
}


class SinkConfig:
    """One sink. kind: a key of SINK_KEYS; options: all of its keys."""

    __slots__ = ("kind", "name", "options")

    def __init__(self, name: str, kind: str, options: "dict[str, Any]") -> None:
        self.name = name
        self.kind = kind
        self.options = options


class Config:
    """Everything that was settled before the start. uids: whose datagrams are taken; socket_uid: who owns the socket;
    sizes in bytes, times in seconds; empty text for what is not wanted."""

    __slots__ = (
        "join_unbuffered",
        "metrics_file",
        "sinks",
        "slurmd_log",
        "socket",
        "socket_uid",
        "spool",
        "spool_max_bytes",
        "sync_s",
        "uids",
    )

    def __init__(self, options: "dict[str, Any]", sinks: "list[SinkConfig]", slurm_uid: int) -> None:
        self.socket: str = options["socket"]
        self.spool: str = options["spool"]
        self.spool_max_bytes = int(options["spool_max_mbytes"]) << 20
        self.sync_s = float(options["sync_seconds"])
        self.slurmd_log: str = options["slurmd_log"]
        self.metrics_file: str = options["metrics_file"]
        self.join_unbuffered: bool = options["join_unbuffered"]
        self.sinks = sinks
        self.socket_uid = slurm_uid
        # Our own: a scraper that is tried out by an ordinary user takes what that user sends.
        self.uids = frozenset((0, slurm_uid, os.geteuid()))


def read(path: str) -> "dict[str, Any]":
    """The tables of a TOML file. Raises: SiteFault(config-unreadable, config-bad, tomli-missing)."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise SiteFault("tomli-missing", path)
    try:
        with open(path, "rb") as file:
            tables: dict[str, Any] = tomllib.load(file)
            return tables
    except OSError as error:
        raise SiteFault("config-unreadable", f"{path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SiteFault("config-bad", f"{path}: {error}")


def parse(tables: "dict[str, Any]") -> Config:
    """A Config from tables as read gives them. Raises: SiteFault(config-bad, no-such-user) - with all faults in it."""
    faults: list[str] = []
    options = _checked(tables, KEYS, "", faults)
    sinks: list[SinkConfig] = []
    for number, table in enumerate(options.get("sink") or [], 1):
        sink = _sink(table, f"sink {number}: ", faults)
        if sink is not None and sink.name in [other.name for other in sinks]:
            faults.append(f"sink {number}: the name {sink.name} is taken")
        elif sink is not None:
            sinks.append(sink)
    if options.get("sink") == []:
        faults.append("no sink: records would go nowhere")
    for key in ("socket", "spool"):
        if not str(options.get(key, "/")).startswith("/"):
            faults.append(f"{key} must be an absolute path")
    if int(options.get("spool_max_mbytes", 1)) < 1:
        faults.append("spool_max_mbytes must be 1 or more")
    if faults:
        raise SiteFault("config-bad", "; ".join(faults))
    return Config(options, sinks, _uid(options["slurm_user"]))


def syslog_target(text: str) -> "tuple[str, tuple[str, int] | str] | None":
    """(transport, address) from `tcp://HOST:PORT`, `udp://HOST:PORT` or `unix:/PATH`; None for anything else."""
    found = _SYSLOG.match(text)
    if not found:
        return None
    if found.group(4):
        return "unix", found.group(4)
    return found.group(1), (found.group(2).strip("[]"), int(found.group(3)))


def _sink(table: object, where: str, faults: "list[str]") -> "SinkConfig | None":
    if not isinstance(table, dict):
        faults.append(f"{where}must be a table, [[sink]]")
        return None
    kind = table.get("kind")
    if kind not in SINK_KEYS:
        faults.append(f"{where}kind must be one of {', '.join(sorted(SINK_KEYS))}")
        return None
    name = table.get("name", kind)
    if not isinstance(name, str) or not _SINK_NAME.match(name):
        faults.append(f"{where}name must be up to 32 of a-z, 0-9, - and _")
        return None
    own = {key: value for key, value in table.items() if key not in ("kind", "name")}
    options = _checked(own, SINK_KEYS[kind], where, faults)
    if kind == "syslog" and "to" in options and syslog_target(options["to"]) is None:
        faults.append(f"{where}to must be tcp://HOST:PORT, udp://HOST:PORT or unix:/PATH")
    if kind == "file" and options.get("per") not in ("day", "job"):
        faults.append(f'{where}per must be "day" or "job"')
    if kind == "file" and not re.match(r"0?[0-7]{3}\Z", str(options.get("mode"))):
        faults.append(f'{where}mode must be octal, like "0640"')
    return SinkConfig(name, kind, options)


def _checked(
    table: "dict[str, Any]", keys: "dict[str, tuple[Any, Any]]", where: str, faults: "list[str]"
) -> "dict[str, Any]":
    options = {}
    for key in table.keys() - keys.keys():
        faults.append(f"{where}{key} is no setting")
    for key, (kind, default) in keys.items():
        if key not in table:
            if default is None:
                faults.append(f"{where}{key} is missing")
            else:
                options[key] = default
            continue
        text, types = _KINDS[kind]
        if not isinstance(table[key], types) or (kind is not bool and isinstance(table[key], bool)):
            faults.append(f"{where}{key} must be {text}")
        else:
            options[key] = table[key]
    return options


def _uid(user: str) -> int:
    import pwd

    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        raise SiteFault("no-such-user", user)
