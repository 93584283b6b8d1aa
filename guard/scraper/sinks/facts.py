# SPDX-License-Identifier: GPL-2.0-or-later
"""The identity of a line as flat text, named the same in every store. Pure."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where a fact stands in the record, by the name under which stores know it. slurm_ names: jobs are not the only ones
# that have a user or a node.
_SLURM = (
    "cluster",
    "node",
    "job_id",
    "sluid",
    "user_name",
    "step_id",
    "task_id_global",
    "task_id_local",
    "restart_count",
    "partition",
    "account",
)


def flat(fields: "dict[str, Any]") -> "dict[str, str]":
    """What identifies a line, as name -> text. Values that are no text are in decimal; a flag is `true`."""
    slurm = fields["slurm"]
    facts = {"type": str(fields["type"])}
    for name in _SLURM:
        if name in slurm:
            facts[name] = str(slurm[name])
    if "stream" in fields:
        facts["stream"] = str(fields["stream"])
    for name in ("partial", "unbuffered"):
        if fields.get(name):
            facts[name] = "true"
    note = fields.get("scraper", {})
    for name in ("received", "pieces", "ended", "dropped", "reported"):
        if name in note:
            facts[name] = str(note[name])
    if note.get("doubtful"):
        facts["doubtful"] = "true"
    return facts


def text(fields: "dict[str, Any]") -> str:
    """What a person reads in the store: the task's line without its newline, or what kind of event it was."""
    if "body" in fields:
        body = str(fields["body"])
        return body[:-1] if body.endswith("\n") else body
    slurm = fields["slurm"]
    place = f"job {slurm['job_id']}" if "job_id" in slurm else "slurmd"
    step = f" step {slurm['step_id']}" if "step_id" in slurm else ""
    return f"{fields['type']} {place}{step} on {slurm['node']}"
