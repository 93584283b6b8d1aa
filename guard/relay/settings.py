# SPDX-License-Identifier: GPL-2.0-or-later
"""The node daemon's configuration file -> Settings. parse() is pure, load() reads.

slurm.conf's syntax: `Key=Value` pairs, one or more a line, keys in any case, `#` to the end of a line, a backslash at
the end joins the next line. Keys: RelayIOPlugin, RelayIODefaultEnabled, RelayIOParameters (seed relay_io,
"Configuration"), and of slurm.conf's own SlurmUser, SlurmdUser (who may own the socket beside root) and DebugFlags
(Protocol: failed connects are logged). Every fault of the file is told at once, each with its line.
"""

import os
import pwd

from guard.base.faults import SiteFault
from guard.relay import limits

PLUGIN = "relay_io/uds_json"

_SWITCH = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
_NUMBERS = {
    "slurmd_ring_mbytes": (limits.RING_LEAST_MBYTES, limits.RING_MOST_MBYTES),
    "stepd_ring_mbytes": (limits.RING_LEAST_MBYTES, limits.RING_MOST_MBYTES),
    "max_log_kbytes": (limits.MAX_LOG_LEAST_KBYTES, limits.MAX_LOG_MOST_KBYTES),
}


class Settings:
    """has_plugin, is_default: as the file says; socket: the scraper's path, empty without plugin; sizes in bytes;
    users: names or numbers of who may own the socket beside root; owners: their uids and 0, once looked up."""

    __slots__ = (
        "has_plugin",
        "is_default",
        "is_protocol_debug",
        "max_log_bytes",
        "owners",
        "slurmd_ring_bytes",
        "socket",
        "socket_line",
        "stepd_ring_bytes",
        "users",
    )

    def __init__(self) -> None:
        self.has_plugin = False
        self.is_default = False
        self.is_protocol_debug = False
        self.socket = ""
        self.socket_line = 0
        self.users: "list[tuple[int, str]]" = []
        self.owners: "frozenset[int]" = frozenset((0,))
        self.slurmd_ring_bytes = limits.SLURMD_RING_DEFAULT_MBYTES * limits.MIB
        self.stepd_ring_bytes = limits.STEPD_RING_DEFAULT_MBYTES * limits.MIB
        self.max_log_bytes = limits.MAX_LOG_DEFAULT_KBYTES * limits.KIB


def load(path: str) -> Settings:
    """The settings of a file, with its users looked up and the socket's folder seen.

    Raises: SiteFault(bad-config) - the file cannot be read, or any of parse()'s; no such user; no such folder.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(limits.MIB).decode("utf-8", "replace")
    except OSError as error:
        raise SiteFault("bad-config", f"{path}: {error.strerror}")
    try:
        settings = parse(text)
    except SiteFault as fault:
        raise SiteFault(fault.code, f"{path}: {fault.detail}")
    wrong = []
    owners = {0}
    for line, user in settings.users:
        try:
            owners.add(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
        except KeyError:
            wrong.append(f"line {line}: there is no user {user}")
    settings.owners = frozenset(owners)
    folder = os.path.dirname(settings.socket)
    if settings.has_plugin and not os.path.isdir(folder):
        wrong.append(f"line {settings.socket_line}: the socket's folder {folder} is not there; make it, owned by root")
    if wrong:
        raise SiteFault("bad-config", f"{path}: " + "; ".join(wrong))
    return settings


def parse(text: str) -> Settings:
    """The settings that the text of a file gives.

    Raises: SiteFault(bad-config) - with every fault of the text and its line: an unknown key or parameter, a key twice,
    a value that is no number or outside its range, a socket path that is relative or too long, or none.
    """
    settings = Settings()
    wrong: "list[str]" = []
    seen: "set[str]" = set()
    plugin_line = 0
    for line, key, value in _pairs(text, wrong):
        name = key.lower()
        if name in seen:
            wrong.append(f"line {line}: {key} is set twice")
        seen.add(name)
        if name == "relayioplugin":
            plugin_line = line
            settings.has_plugin = value == PLUGIN
            if value not in (PLUGIN, ""):
                wrong.append(f"line {line}: RelayIOPlugin is {PLUGIN} or nothing, not {value}")
        elif name == "relayiodefaultenabled":
            if value.lower() not in _SWITCH:
                wrong.append(f"line {line}: RelayIODefaultEnabled is yes or no, not {value}")
            settings.is_default = _SWITCH.get(value.lower(), False)
        elif name == "relayioparameters":
            wrong += [f"line {line}: {fault}" for fault in _parameters(settings, value)]
            settings.socket_line = line
        elif name in ("slurmuser", "slurmduser"):
            settings.users.append((line, value))
        elif name == "debugflags":
            settings.is_protocol_debug = "protocol" in value.lower().split(",")
        else:
            wrong.append(f"line {line}: {key} is not a key of this file")
    if settings.has_plugin and not settings.socket:
        wrong.append(f"line {settings.socket_line or plugin_line}: RelayIOParameters needs socket=/absolute/path")
    if wrong:
        raise SiteFault("bad-config", "; ".join(wrong))
    return settings


def _pairs(text: str, wrong: "list[str]") -> "list[tuple[int, str, str]]":
    pairs = []
    joined = ""
    first_line = 0
    for line, raw in enumerate(text.split("\n"), 1):
        first_line = first_line or line
        part = raw.split("#", 1)[0].rstrip()
        if part.endswith("\\"):
            joined += part[:-1] + " "
            continue
        for word in (joined + part).split():
            key, equals, value = word.partition("=")
            if equals and key:
                pairs.append((first_line, key, value))
            else:
                wrong.append(f"line {first_line}: {word} is not Key=Value")
        joined = ""
        first_line = 0
    if joined.strip():
        wrong.append(f"line {first_line}: the file ends in a backslash")
    return pairs


def _parameters(settings: Settings, value: str) -> "list[str]":
    """Takes socket=,slurmd_ring_mbytes=,... over into settings; gives what is wrong with them."""
    wrong = []
    seen: "set[str]" = set()
    for word in filter(None, value.split(",")):
        name, _, setting = word.partition("=")
        name = name.lower()
        if name in seen:
            wrong.append(f"{name} is set twice")
        seen.add(name)
        if name == "socket":
            settings.socket = setting
            size_bytes = len(os.fsencode(setting))
            if not setting.startswith("/") or "\0" in setting:
                wrong.append(f"socket={setting} is not an absolute path")
            elif size_bytes > limits.SOCKET_PATH_MAX_BYTES:
                wrong.append(
                    f"socket= is {size_bytes} bytes long, a socket's path is at most {limits.SOCKET_PATH_MAX_BYTES}"
                )
        elif name in _NUMBERS:
            least, most = _NUMBERS[name]
            if not (setting.isascii() and setting.isdigit() and len(setting) < 10 and least <= int(setting) <= most):
                wrong.append(f"{name}={setting} is not a number from {least} to {most}")
            elif name == "max_log_kbytes":
                settings.max_log_bytes = int(setting) * limits.KIB
            elif name == "stepd_ring_mbytes":
                settings.stepd_ring_bytes = int(setting) * limits.MIB
            else:
                settings.slurmd_ring_bytes = int(setting) * limits.MIB
        else:
            wrong.append(f"{word} is not a parameter of {PLUGIN}")
    return wrong
