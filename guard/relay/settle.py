# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a job is relayed: what it asked for, and the node's default at the moment it starts. Pure.

Seed relay_io, "Configuration" and "Selecting jobs from job_submit". The answer is kept to the job's end, whatever the
default becomes, and settled again at a requeue: node.py keeps it, this file only gives it.
"""

from guard.relay.limits import INFINITE16, NO_VAL16

YES = "yes"
NO = "no"
DEFAULT = "default"


def wish_at_submit(field: int) -> str:
    """What job_desc.relay_io of slurm_job_submit() asks for. NO_VAL16 is a field that nobody set."""
    return DEFAULT if field in (INFINITE16, NO_VAL16) else YES if field else NO


def wish_at_modify(field: int, wish: str) -> str:
    """What a job that asked for wish asks for after slurm_job_modify() or scontrol update set the field."""
    return wish if field == NO_VAL16 else wish_at_submit(field)


def settle(wish: str, has_plugin: bool, is_default: bool) -> bool:
    """Whether a job that starts now is relayed.

    Takes: wish - YES, NO, DEFAULT; has_plugin - this node has RelayIOPlugin; is_default - RelayIODefaultEnabled.
    """
    return has_plugin and (wish == YES or (wish == DEFAULT and is_default))
