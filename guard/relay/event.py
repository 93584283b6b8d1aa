# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay event job_start|job_end`: slurmd's Prolog or Epilog tells the daemon of a job. World room.

Identity comes from the environment that slurmd gives those (prep_script_slurmd.c): USER, UID, ID, PARTITION and the
cluster's and node's names in every version from 20.11, ACCOUNT and RESTART_COUNT from 22.05, SLUID from 25.11. What is
not there is left out. Names that begin with SPANK_ are the user's; the SLURM_ ones cannot be set by a user there.
"""

import select
import socket

from guard.base.faults import NodeFault, SiteFault
from guard.relay import frames, limits
from guard.relay.frames import Frame

# Field of the protocol, variable of slurmd's environment.
_FIELDS = (
    ("job_id", b"SLURM_JOB_ID"),
    ("uid", b"SLURM_JOB_UID"),
    ("cluster", b"SLURM_CLUSTER_NAME"),
    ("node", b"SLURMD_NODENAME"),
    ("user_name", b"SLURM_JOB_USER"),
    ("partition", b"SLURM_JOB_PARTITION"),
    ("account", b"SLURM_JOB_ACCOUNT"),
    ("sluid", b"SLURM_JOB_SLUID"),
    ("restart_count", b"SLURM_JOB_RESTART_COUNT"),
)


def payload(event: str, wish: str, environ: "dict[bytes, bytes]") -> bytes:
    """The fields that tell of a job. Pure.

    Raises: SiteFault(no-environment) - the environment is not that of a prolog or epilog.
    """
    fields = {"event": event.encode(), "relay_io": wish.encode()}
    fields.update({name: environ[variable] for name, variable in _FIELDS if environ.get(variable)})
    if "job_id" not in fields or "uid" not in fields:
        raise SiteFault("no-environment", "SLURM_JOB_ID and SLURM_JOB_UID")
    return frames.fields_payload(fields)


def tell(path: str, told: bytes) -> "tuple[int, str]":
    """The daemon's answer to an event: its code and sentence (frames.py).

    Takes: path - the control socket. Raises: NodeFault(no-daemon) - none answers in time.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            connection.connect(path)
            connection.send(frames.pack(Frame(frames.EVENT, told)))
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(limits.EVENT_ANSWER_MS):
                raise NodeFault("no-daemon", f"{path}: no answer within {limits.EVENT_ANSWER_MS} ms")
            packet = connection.recv(frames.PACKET_MAX_BYTES)
    except OSError as error:
        raise NodeFault("no-daemon", f"{path}: {error.strerror}")
    if not packet:
        raise NodeFault("no-daemon", f"{path}: closed without an answer")
    fields = frames.fields_of(frames.unpack(packet).payload)
    return frames.number(fields, "code", 255), fields.get("text", b"").decode("utf-8", "replace")
