# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay check`: the seed's "Verifying it works" as a command. Looks, changes nothing; sends one record on request."""

import os
import socket
import sys
import time

from guard.base.faults import Fault
from guard.relay import frames, lines, reasons, record, sender, settings
from guard.relay.settings import Settings

# A log record's identity fields, in bytes: seed, "How output becomes records" ("About 250 bytes").
_IDENTITY_BYTES = 250
_SMALL_QLEN = 64


def run(config_path: str, folder: str, sends: bool) -> int:
    """Prints what is well and what is not; 0 if nothing is to be done, else 1."""
    findings: "list[tuple[bool, str]]" = []
    try:
        configured = settings.load(config_path)
    except Fault as fault:
        findings.append((False, reasons.sentence(fault)))
    else:
        findings += _configured(configured, config_path)
        findings += _node(folder)
        if configured.has_plugin:
            findings += _scraper(configured)
            findings += _kernel(configured, "/proc")
            if sends:
                findings.append(_send(configured))
    for is_well, text in findings:
        sys.stdout.write(f"{'ok  ' if is_well else 'FAIL'} {text}\n")
    return 0 if all(is_well for is_well, _ in findings) else 1


def _configured(configured: Settings, path: str) -> "list[tuple[bool, str]]":
    if not configured.has_plugin:
        return [(False, f"{path}: RelayIOPlugin is not set, this node relays nothing; set {settings.PLUGIN}")]
    default = "yes" if configured.is_default else "no"
    return [(True, f"{path}: {settings.PLUGIN}, RelayIODefaultEnabled={default}, socket {configured.socket}")]


def _node(folder: str) -> "list[tuple[bool, str]]":
    path = f"{folder}/{frames.TAP_NAME}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as error:
            return [(False, f"relay node does not answer at {path}: {error.strerror}; start eessi-relay-node.service")]
    return [(True, f"relay node listens at {path}")]


def _scraper(configured: Settings) -> "list[tuple[bool, str]]":
    refusal = sender.refusal(configured.socket, configured.owners)
    if refusal:
        return [
            (False, f"{configured.socket}: {refusal}; the scraper must bind it, in a folder of root with mode 0755")
        ]
    found = [(True, f"{configured.socket}: a socket, it and its folder owned and writable as they must be")]
    if os.stat(configured.socket).st_mode & 0o002:
        found.append((False, f"{configured.socket} is world-writable: any user can forge records; chmod 0600"))
    binders = bound_by(configured.socket, "/proc")
    if binders is None:
        return [*found, (False, f"nobody is bound to {configured.socket}; start the scraper")]
    who = ", ".join(binders) if binders else "a process that cannot be seen from here"
    return [*found, (True, f"bound by {who}")]


def bound_by(path: str, proc: str) -> "list[str] | None":
    """`name[pid]` of the processes that hold the datagram socket bound to path; None when there is none."""
    inodes = set()
    with open(f"{proc}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            # Num RefCount Protocol Flags Type St Inode Path; type 2 is SOCK_DGRAM
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and fields[7] == path and fields[4] == "0002":
                inodes.add(f"socket:[{fields[6]}]")
    if not inodes:
        return None
    found = []
    for pid in filter(str.isdigit, os.listdir(proc)):
        try:
            if any(os.readlink(f"{proc}/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"{proc}/{pid}/fd")):
                with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    found.append(f"{file.read().strip()}[{pid}]")
        except OSError:
            continue  # gone, or not ours to see
    return found


def _kernel(configured: Settings, proc: str) -> "list[tuple[bool, str]]":
    qlen = _sysctl(f"{proc}/sys/net/unix/max_dgram_qlen")
    found = [(True, f"net.unix.max_dgram_qlen is {qlen}")]
    if qlen is not None and qlen < _SMALL_QLEN:
        found = [
            (
                False,
                f"net.unix.max_dgram_qlen is {qlen}: a burst of more than {qlen + 1} records waits in the ring;"
                " raise it (512) in /etc/sysctl.d and restart the scraper",
            )
        ]
    most = _sysctl(f"{proc}/sys/net/core/wmem_default")
    need_bytes = 6 * configured.max_log_bytes + _IDENTITY_BYTES
    text = f"net.core.wmem_default is {most}, the largest record about {need_bytes} bytes"
    # 32: what the kernel takes off for itself, measured as the largest datagram that passes.
    is_well = most is None or need_bytes <= most - 32
    found.append((is_well, text if is_well else f"{text}: it is dropped; lower max_log_kbytes or raise the sysctl"))
    return found


def _sysctl(path: str) -> "int | None":
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _send(configured: Settings) -> "tuple[bool, str]":
    """One log record of job 0, which no scraper takes for a job's."""
    slurm = {
        "cluster": "relay-check",
        "node": os.uname().nodename,
        "job_id": 0,
        "step_id": "0",
        "task_id_global": 0,
        "task_id_local": 0,
    }
    place = record.log_place(slurm, frames.STDOUT)
    (sent,) = record.logs([(lines.LINES, b"relay check\n")], time.time_ns(), place)
    reason = sender.refusal(configured.socket, configured.owners)
    if not reason:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            try:
                connection.connect(configured.socket)
                connection.send(sent)
            except OSError as error:
                reason = str(error.strerror)
    if reason:
        return False, f"the test record could not be sent: {reason}"
    return True, f"sent {sent.decode()}"
