# SPDX-License-Identifier: GPL-2.0-or-later
"""Records as the seed gives them, for every test that needs some."""

import json
from typing import Any

TIME_NS = 1786000818715000001

IDENTITY: "dict[str, Any]" = {
    "cluster": "slurm",
    "node": "node1",
    "job_id": 174,
    "sluid": "sA0SM5EFW65700",
    "user_name": "alice",
}


def log(body: str, time: int = TIME_NS, task: int = 0, stream: str = "stdout", **more: Any) -> "dict[str, Any]":
    """A log record; what is named in more replaces a field of `slurm` if it is one, else stands at the top."""
    slurm = {**IDENTITY, "step_id": "0", "task_id_global": task, "task_id_local": task}
    top: dict[str, Any] = {}
    for name, value in more.items():
        (slurm if name in slurm else top)[name] = value
    return {"v": 1, "type": "log", "time": time, "slurm": slurm, "stream": stream, "body": body, **top}


def step(kind: str, time: int = TIME_NS, step_id: str = "0", **slurm: Any) -> "dict[str, Any]":
    """step_start or step_end."""
    return {"v": 1, "type": kind, "time": time, "slurm": {**IDENTITY, "step_id": step_id, **slurm}}


def job(kind: str, time: int = TIME_NS, **slurm: Any) -> "dict[str, Any]":
    """job_start or job_end."""
    more = {"restart_count": 0, "partition": "batch", "account": "physics"}
    return {"v": 1, "type": kind, "time": time, "slurm": {**IDENTITY, **more, **slurm}}


def raw(fields: "dict[str, Any]") -> bytes:
    """One datagram, as json-c writes it: slashes escaped, no blanks, UTF-8 as it is (research: libjson-c 0.16)."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.replace("/", "\\/").encode("utf-8")
