# SPDX-License-Identifier: GPL-2.0-or-later
"""What this node is and what EESSI has for it: both detector runs at once, then the walks, all in children.

World room. No EESSI path is touched by this process: a CVMFS mount that hangs then hangs a child, and a child can be
given up. Source: design section 4; EESSI software-layer-scripts a45043f, init/eessi_archdetect.sh 1.2.0.
"""

import marshal

from guard.arch import walk
from guard.arch.request import Target
from guard.base import child
from guard.base.deadline import Deadline
from guard.base.faults import NodeFault, SiteFault
from guard.base.limits import DETECTOR_OUTPUT_MAX_BYTES
from guard.base.watch import Watch

SYSTEM_BASH = b"/bin/bash"
# First in a child's PATH: the job's own begins with tools built for the other target; nvidia-smi may only be there.
SYSTEM_PATH = b"/usr/bin:/bin:/usr/sbin:/sbin"
# What makes a bash run other code than its script, or leave it early.
_BASH_STARTUP = (b"BASH_ENV", b"ENV", b"SHELLOPTS", b"BASHOPTS")

_PART = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-"
_DIGITS = b"0123456789"
_HEX_DIGITS = b"0123456789abcdef"


class Survey:
    """What was found. walked: the walks; options: CPU targets that the node can run, best first; accel: its
    accelerator or None; remark: what a person should know of the accelerator's detection, may be empty."""

    __slots__ = ("accel", "options", "remark", "walked")

    def __init__(self, walked: walk.Walked, options: "list[bytes]", accel: "bytes | None", remark: str) -> None:
        self.walked = walked
        self.options = options
        self.accel = accel
        self.remark = remark


def survey(environ: "dict[bytes, bytes]", deadline: Deadline, watch: Watch) -> Survey:
    """What this node is and what EESSI has for it.

    Raises: SiteFault(archdetect-failed) - no usable answer about the CPU; NodeFault(timeout), NodeFault(terminated).
    Touches: children.
    """
    runs: list[child.Child] = []
    cpu_run = accel_run = None
    try:
        if b"EESSI_ARCHDETECT_OPTIONS_OVERRIDE" not in environ:
            runs.append(cpu_run := _run(environ, b"-a", b"cpupath"))
        if b"EESSI_ACCELERATOR_TARGET_OVERRIDE" not in environ:
            runs.append(accel_run := _run(environ, b"accelpath"))
    except OSError as error:
        child.abandon(runs, watch)
        raise NodeFault("archdetect-failed", f"no process could be started: {error.strerror}") from error
    child.wait(runs, deadline, watch)
    if cpu_run is None:
        options = cpu_options(environ[b"EESSI_ARCHDETECT_OPTIONS_OVERRIDE"], 0)
    else:
        options = cpu_options(bytes(cpu_run.outputs[1]), cpu_run.status)
    if accel_run is None:
        accel, remark = accel_override(environ[b"EESSI_ACCELERATOR_TARGET_OVERRIDE"])
    else:
        accel, remark = accel_answer(bytes(accel_run.outputs[1]), accel_run.status)
    return Survey(_walk(environ, options, accel, deadline, watch), options, accel, remark)


def _run(environ: "dict[bytes, bytes]", *arguments: bytes) -> child.Child:
    init = environ.get(b"EESSI_INIT_PREFIX", b"")
    if not init.startswith(b"/"):
        raise SiteFault("archdetect-failed", "EESSI_INIT_PREFIX is not an absolute path")
    # By bash and not by its own first line: that is `env bash`, and the exec would touch CVMFS.
    argv = [SYSTEM_BASH, init + b"/eessi_archdetect.sh", *arguments]
    return child.program(argv, child_environ(environ), {1: DETECTOR_OUTPUT_MAX_BYTES})


def child_environ(environ: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """The task's environment for a bash of ours: system folders first in PATH, nothing that bash would run."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _BASH_STARTUP and not name.startswith(b"BASH_FUNC_")
    }
    path = environ.get(b"PATH", b"")
    kept[b"PATH"] = SYSTEM_PATH + b":" + path if path else SYSTEM_PATH
    return kept


def cpu_options(answer: bytes, status: "int | None") -> "list[bytes]":
    """CPU targets, best first, from what `eessi_archdetect.sh -a cpupath` printed and its status.

    Raises: SiteFault(archdetect-failed) - another status than 0, or not a colon-separated list of targets.
    """
    text = answer.rstrip(b"\n")
    options = text.split(b":")
    if status == 0 and all(_is_path(option) for option in options):
        return options
    raise SiteFault("archdetect-failed", f"status {status}, answer {_quoted(text)}")


def accel_answer(answer: bytes, status: "int | None") -> "tuple[bytes | None, str]":
    """The accelerator, None for none, and a remark, from what `eessi_archdetect.sh accelpath` printed.

    Status 2 is no nvidia-smi, 3 one that failed; its error text comes out on stdout (eessi_archdetect.sh 1.2.0). Only
    the exact grammar counts: EESSI's own wrapper takes the whole answer, so junk before a target finds no folder.
    """
    text = answer.rstrip(b"\n")
    if status == 0 and is_accel(text):
        return text, ""
    if status == 2 and not text:
        return None, ""
    return None, f"no accelerator: the detector ended with status {status} and said {_quoted(text)}"


def accel_override(value: bytes) -> "tuple[bytes | None, str]":
    """The accelerator that EESSI_ACCELERATOR_TARGET_OVERRIDE names. EESSI's module takes it unchecked; so any relative
    path of plain parts is, and an empty value is none."""
    if not value or _is_path(value):
        return value or None, ""
    return None, f"no accelerator: EESSI_ACCELERATOR_TARGET_OVERRIDE is {_quoted(value)}"


def is_accel(text: bytes) -> bool:
    """Whether text is accel/nvidia/cc<digits> or accel/amd/gfx<hex> (eessi_archdetect.sh 1.2.0, accelpath)."""
    for start, digits in ((b"accel/nvidia/cc", _DIGITS), (b"accel/amd/gfx", _HEX_DIGITS)):
        if text.startswith(start) and len(text) > len(start) and not text[len(start) :].strip(digits):
            return True
    return False


def _is_path(text: bytes) -> bool:
    parts = text.split(b"/")
    return len(parts) > 1 and all(part and not part.strip(_PART) and part not in (b".", b"..") for part in parts)


def _quoted(text: bytes) -> str:
    return repr(text[:120].decode("utf-8", "backslashreplace"))


def _walk(
    environ: "dict[bytes, bytes]", options: "list[bytes]", accel: "bytes | None", deadline: Deadline, watch: Watch
) -> walk.Walked:
    if not environ.get(b"EESSI_PREFIX", b"").startswith(b"/"):
        raise SiteFault("no-software-dir", "EESSI_PREFIX is not an absolute path")

    def answer() -> bytes:
        walked = walk.present(environ, options, accel, walk.has_folder)
        target = (walked.target.cpu, walked.target.accel) if walked.target else None
        return marshal.dumps((target, walked.tried, walked.sick))

    try:
        run = child.call(answer, DETECTOR_OUTPUT_MAX_BYTES)
    except OSError as error:
        raise NodeFault("no-software-dir", f"no process could be started: {error.strerror}") from error
    child.wait([run], deadline, watch)
    if run.status != 0 or run.overflowed:
        raise SiteFault("no-software-dir", f"the walk over the software folders ended with status {run.status}")
    # marshal: our own fork wrote it, a moment ago, for the same interpreter.
    target, tried, sick = marshal.loads(run.outputs[1])
    return walk.Walked(Target(*target) if target else None, tried, sick)
