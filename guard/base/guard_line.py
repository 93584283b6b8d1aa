# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard's line to people, read back. The other half of guard.base.message, which holds the grammar. Pure.

RELOADED and FAILED are plain enough for Python's re and for RE2, so that the SQL of docs/report.md uses the same text.
"""

import re

from guard.base import message

# A node's name has no blank and no colon (slurm.conf). The loaded side of a marker is whatever the job's environment
# said, so it may hold anything printable; the other side is a target or a token, whose letters are known.
_NODE = r"([^ :]+)"
_NOW = r"([A-Za-z0-9_.+/-]+(?: (?:no accel|accel/[A-Za-z0-9_.+/-]+))?)"
RELOADED = rf"^eessi-arch-guard: reloaded ([0-9]+) modules on {_NODE}: (.*)->{_NOW}$"
FAILED = rf"^eessi-arch-guard: NOT reloaded on {_NODE}: (.*?)->{_NOW}: (.*)$"
_RELOADED = re.compile(RELOADED)
_FAILED = re.compile(FAILED)
# The reason of a failure whose marker shows a target instead of one (guard.base.faults).
MISSING = "modules-missing"


class Said:
    """One line of the guard. kind: "reloaded", "failed", "skipped" or "nothing"; node, was, now: empty where the kind
    has none; reason: of a failure its code, else what the line says; count: of modules; sentence: what to do."""

    __slots__ = ("count", "kind", "node", "now", "reason", "sentence", "was")

    def __init__(
        self,
        kind: str,
        node: str = "",
        was: str = "",
        now: str = "",
        reason: str = "",
        count: int = 0,
        sentence: str = "",
    ) -> None:
        self.kind = kind
        self.node = node
        self.was = was
        self.now = now
        self.reason = reason
        self.count = count
        self.sentence = sentence


def parse(body: str) -> "Said | None":
    """What the guard said in a line of job output, None when it is not a line of the guard.

    Takes: body - of a log record, with or without its newline. Anybody can print such a line: what it says is a claim.
    """
    if not body.startswith(message.PREFIX):
        return None
    text = body[:-1] if body.endswith("\n") else body
    found = _RELOADED.fullmatch(text)
    if found:
        return Said("reloaded", found[2], found[3], found[4], count=int(found[1]))
    found = _FAILED.fullmatch(text)
    if found:
        reason = MISSING if "/" in found[3] else found[3]
        return Said("failed", found[1], found[2], found[3], reason, sentence=found[4])
    rest = text[len(message.PREFIX) :]
    for start, kind in (("skipped, ", "skipped"), ("nothing to do, ", "nothing")):
        if rest.startswith(start):
            return Said(kind, reason=rest[len(start) :])
    return None
