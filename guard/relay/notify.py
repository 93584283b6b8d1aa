# SPDX-License-Identifier: GPL-2.0-or-later
"""Words to systemd, by its own protocol: sd_notify(3). World room. Never fails, never waits."""

import os
import socket


def send(environ: "dict[bytes, bytes]", words: bytes) -> None:
    """Sends words (`READY=1`, `STOPPING=1`, `WATCHDOG=1`) where NOTIFY_SOCKET says; nothing without it."""
    path = environ.get(b"NOTIFY_SOCKET", b"")
    if path[:1] not in (b"/", b"@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(words, b"\0" + path[1:] if path[:1] == b"@" else path)
    except OSError:
        pass


def watchdog_ms(environ: "dict[bytes, bytes]") -> "float":
    """How often systemd wants to hear WATCHDOG=1: half of what it allows; infinity when it does not."""
    usec = environ.get(b"WATCHDOG_USEC", b"")
    is_ours = environ.get(b"WATCHDOG_PID", b"%d" % os.getpid()) == b"%d" % os.getpid()
    return int(usec) / 2000 if usec.isdigit() and int(usec) and is_ours else float("inf")
