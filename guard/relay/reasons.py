# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's fault codes, and what the reader should do: the table that guard.base.faults has for the guard. Pure."""

from guard.base.faults import Fault

SENTENCES = {
    "bad-config": "the relay's configuration cannot be used; correct it and start again",
    "bad-usage": "this call is not understood; see `relay --help`",
    "bad-frame": "a peer sent a packet that is no frame",
    "bad-fields": "a peer sent fields that cannot be used",
    "no-daemon": "no `relay node` answers here; start eessi-relay-node.service, or look at its log",
    "daemon-runs": "another `relay node` has this folder; stop it first",
    "no-folder": "the relay's folder cannot be used; it must belong to root and be writable by nobody else",
    "refused": "the relay's daemon refused",
    "no-environment": "the environment names no job; call this from slurmd's Prolog or Epilog, or inside a job",
}


def sentence(fault: Fault) -> str:
    """What happened and what to do, as one sentence for a person."""
    text = SENTENCES[fault.code]
    return f"{text} ({fault.detail})" if fault.detail else text
