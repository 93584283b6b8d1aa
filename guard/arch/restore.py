# SPDX-License-Identifier: GPL-2.0-or-later
"""The environment that the loaded modules give on this node: sent to the helper, and what comes back.

Seed guard-design, "What runs" 2: the helper is the same file, started as `python3 -I -X utf8 <file> --restore`, with
JSON on stdin and stdout, one Latin-1 character for each byte.
"""

import json
import os

from guard.arch.request import Target
from guard.base import child
from guard.base.deadline import Deadline
from guard.base.faults import SENTENCES, Fault, JobFault, NodeFault, SiteFault
from guard.base.limits import HELPER_OUTPUT_MAX_BYTES, LMOD_LINE_MAX_BYTES
from guard.base.watch import Watch

# Set where Lmod is initialised, not by any module: a purge does not undo them. Lmod 8.6.19 init/bash.
_LMOD_PLACES = (b"LMOD_CMD", b"LMOD_DIR", b"LMOD_PKG", b"LMOD_ROOT", b"MODULESHOME")
# Who must act on what the helper found.
_HELPER_FAULTS: "dict[str, type[Fault]]" = {"lmod-unavailable": SiteFault, "modules-missing": JobFault}


def environment(
    environ: "dict[bytes, bytes]",
    names: "list[bytes]",
    was: Target,
    now: Target,
    file: str,
    deadline: Deadline,
    watch: Watch,
) -> "dict[bytes, bytes]":
    """environ after a purge and a load of names on this node, as Lmod leaves it.

    Takes: names - checked (request.module_names); now - the target that EESSI's module must select; file - this
    program, which python3 can run.
    Raises: SiteFault(lmod-unavailable), JobFault(modules-missing), NodeFault(restore-failed, timeout, terminated).
    Touches: a child.
    """
    question = {
        "environment": {_text(k): _text(v) for k, v in for_family(environ, was.cpu, now.cpu).items()},
        "modules": [_text(name) for name in names],
        "cpu": _text(now.cpu),
        "accel": now.accel and _text(now.accel),
    }
    # The program that runs this, and not sys.executable: that obeys PYTHONEXECUTABLE, even with -I (CPython 3.11).
    argv = [os.readlink("/proc/self/exe"), "-I", "-X", "utf8", file, "--restore"]
    try:
        helper = child.program(
            [argument.encode("utf-8", "surrogateescape") for argument in argv],
            # Nothing of the job's: the helper is deaf to LD_PRELOAD and the like until it starts Lmod.
            {b"PATH": b"/usr/bin:/bin"},
            {1: HELPER_OUTPUT_MAX_BYTES, 2: LMOD_LINE_MAX_BYTES},
            stdin=json.dumps(question).encode("ascii"),
        )
    except OSError as error:
        raise NodeFault("restore-failed", f"no process could be started: {error.strerror}") from error
    child.wait([helper], deadline, watch)
    return _answer(helper)


def for_family(environ: "dict[bytes, bytes]", was_cpu: bytes, now_cpu: bytes) -> "dict[bytes, bytes]":
    """environ with Lmod's own paths moved from the compatibility layer of one CPU family to that of another.

    Login nodes of x86_64 and compute nodes of aarch64 share one CVMFS, and each has its own Lmod in it: the one that
    LMOD_CMD names cannot run here.
    """
    was, now = (b"/compat/linux/%s/" % cpu.split(b"/")[0] for cpu in (was_cpu, now_cpu))
    moved = {name: environ[name].replace(was, now) for name in _LMOD_PLACES if name in environ}
    return {**environ, **moved}


def _answer(helper: child.Child) -> "dict[bytes, bytes]":
    try:
        answer = json.loads(helper.outputs[1])
        if answer.get("code") in SENTENCES:
            fault = _HELPER_FAULTS.get(answer["code"], NodeFault)
            raise fault(answer["code"], str(answer["detail"]))
        return {_raw(name): _raw(value) for name, value in answer["environment"].items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        last = bytes(helper.outputs[2]).decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
        raise NodeFault("restore-failed", f"the helper ended with status {helper.status}: {last}") from error


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _raw(text: str) -> bytes:
    return text.encode("latin-1")
