# SPDX-License-Identifier: GPL-2.0-or-later
"""A reload or a failure as one RFC 5424 line to the node's own log, for sites without the relay (`--syslog`).

World room. It never waits and never fails: a log that is full, stopped or absent costs the line, not the job.
"""

import os
import socket
import time

DEV_LOG = "/dev/log"
# RFC 5424, 6.2.1: facility user (1), severity notice (5) for a reload and warning (4) for a failure.
_PRI_RELOAD = 8 * 1 + 5
_PRI_FAILURE = 8 * 1 + 4
# RFC 5424, 7.2.2: a private SD-ID needs an enterprise number; RFC 5612 sets this one aside for those who have none.
_SD_ID = "eessi-arch-guard@32473"


def line(message: bytes, environ: "dict[bytes, bytes]", is_failure: bool, node: str, now_s: float) -> bytes:
    """The RFC 5424 line of a message for people. now_s: seconds since the Unix epoch."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1e6):06d}Z"
    host = "".join(c for c in node if "!" <= c <= "~")[:255] or "-"
    fields = {"job": b"SLURM_JOB_ID", "step": b"SLURM_STEP_ID", "user": b"SLURM_JOB_USER"}
    data = "".join(f' {name}="{_value(environ[key])}"' for name, key in fields.items() if key in environ)
    head = f"<{_PRI_FAILURE if is_failure else _PRI_RELOAD}>1 {stamp} {host} eessi-arch-guard {os.getpid()}"
    tail = f'{"failure" if is_failure else "reload"} [{_SD_ID} uid="{os.getuid()}"{data}] '
    return f"{head} {tail}".encode() + message


def _value(raw: bytes) -> str:
    """RFC 5424, 6.3.3: `"`, `\\` and `]` are escaped in a parameter's value."""
    text = "".join(c for c in raw[:64].decode("utf-8", "replace") if c.isprintable())
    return "".join("\\" + c if c in '"\\]' else c for c in text)


def send(data: bytes, path: str = DEV_LOG) -> bool:
    """One datagram to the log's socket at path; False when it was not taken at once."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect(path)
            client.send(data)
        return True
    except OSError:
        return False
