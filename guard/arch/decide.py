# SPDX-License-Identifier: GPL-2.0-or-later
"""Does the node's target differ from the loaded one. Pure."""

import os

from guard.arch.detect import Survey
from guard.arch.request import Target
from guard.base.faults import SiteFault

MATCH = "target already matches this node"


def choose(loaded: Target, survey: Survey) -> "Target | None":
    """The target to reload for, or None when the loaded one is this node's.

    Raises: SiteFault(no-software-dir) - EESSI has nothing for this node, or a folder could not be looked at.
    """
    walked = survey.walked
    if walked.sick:
        path, number = walked.sick
        raise SiteFault("no-software-dir", f"{_text(path)}: {os.strerror(number)}")
    if walked.target is None:
        raise SiteFault("no-software-dir", f"tried {' '.join(_text(path) for path, _ in walked.tried)}")
    return None if walked.target == loaded else walked.target


def label(was: Target, now: "Target | bytes") -> bytes:
    """The text of both markers: was->now, or was->token. Seed guard-emits, "Markers"."""
    if isinstance(now, bytes):
        text = was.cpu + b"->" + now
    elif was.accel == now.accel:
        text = was.cpu + b"->" + now.cpu
    else:
        text = b"%s %s->%s %s" % (was.cpu, was.accel or b"no accel", now.cpu, now.accel or b"no accel")
    # The loaded side is whatever the environment says: a line break in it would be a directive of its own.
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in text)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
