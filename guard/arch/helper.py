# SPDX-License-Identifier: GPL-2.0-or-later
"""The restore helper: purge and load through Lmod in a bash of its own, and judge what came of it.

Runs as `--restore`, in the session that the guard made for it and kills as a whole. Design section 5.
"""

import binascii
import json
import os
import sys

from guard.arch.detect import SYSTEM_BASH
from guard.arch.emit import is_name
from guard.base import child
from guard.base.deadline import Deadline
from guard.base.faults import Fault, JobFault, NodeFault, SiteFault
from guard.base.limits import DEADLINE_MAX_S, HELPER_OUTPUT_MAX_BYTES, LMOD_LINE_MAX_BYTES, LMOD_OUTPUT_MAX_BYTES
from guard.base.watch import Watch

# The system's tools under a name that no PATH has of its own, so that it can stand first while modules are loaded and
# be cut out afterwards. Refused: a folder of links in TMPDIR (design section 5) - something to make, to protect and
# to remove; and /usr/bin itself - not to be told from the job's own entry.
TOOLS = (b"/proc/self/root/usr/bin", b"/proc/self/root/bin")
# Lmod's own knobs while the helper runs: no user cache is written into HOME. Lmod 8.6.19, Cache.lua.
_WHILE_LOADING = {b"LMOD_SHORT_TIME": b"86400"}
_WITHOUT_CACHE = {b"LMOD_IGNORE_CACHE": b"1"}
# Never given to the reload shell: what makes bash or lua run other code first, and variables that bash turns into
# something else on arrival (bash 5.2 variables.c); likewise names that are none in
# a shell. Absent before and after, they stay what the task has.
_WITHHELD = frozenset(
    b"""BASH_ENV ENV SHELLOPTS BASHOPTS BASH_XTRACEFD PS4 POSIXLY_CORRECT CDPATH GLOBIGNORE IFS LINENO RANDOM SRANDOM
    SECONDS UID EUID PPID BASHPID BASH_SUBSHELL BASH_COMMAND BASH_ARGV0 BASH_COMPAT BASH_LOADABLES_PATH HISTCMD
    COMP_WORDBREAKS EXECIGNORE""".split()
)
_LMOD_ERROR = "Lmod has detected the following error:"
# How many missing modules are named; all the others are counted.
_LISTED_COUNT = 5
_WITHHELD_PREFIXES = (b"BASH_FUNC_", b"LUA_INIT")
# "$@" is the module names. With an override set since the load, EESSI's answers about another node outlive the purge,
# and its module would prefer them (2023.06.lua, archdetect_cpu). fd 3 is ours, whatever a module prints.
_SCRIPT = b"""eval "$("$LMOD_CMD" bash --force purge)"
[ -z "${EESSI_ARCHDETECT_OPTIONS_OVERRIDE+x}" ] || unset EESSI_ARCHDETECT_OPTIONS
[ -z "${EESSI_ACCELERATOR_TARGET_OVERRIDE+x}" ] || unset EESSI_ACCEL_SUBDIR
eval "$("$LMOD_CMD" bash load "$@")"
exec /usr/bin/env -0 >&3 3>&-
"""


def main() -> int:
    """Answers one question from stdin on stdout, as restore.environment asks it. Always 0 when it could answer."""
    question = json.loads(sys.stdin.buffer.read())
    environ = {_raw(name): _raw(value) for name, value in question["environment"].items()}
    names = [_raw(name) for name in question["modules"]]
    accel = question["accel"] and _raw(question["accel"])
    answer: dict[str, object]
    try:
        after = reloaded(environ, names, _raw(question["cpu"]), accel)
        answer = {"environment": {name.decode("latin-1"): value.decode("latin-1") for name, value in after.items()}}
    except Fault as fault:
        answer = {"code": fault.code, "detail": fault.detail}
    data = json.dumps(answer).encode("ascii")
    while data:
        data = data[os.write(1, data) :]
    return 0


def reloaded(
    environ: "dict[bytes, bytes]", names: "list[bytes]", cpu: bytes, accel: "bytes | None"
) -> "dict[bytes, bytes]":
    """environ after purge and load of names, when every name is loaded and EESSI selected cpu and accel.

    Lmod's exit status is no evidence in either direction (Lmod 8.6.19: a warning gives 1 with everything loaded, a
    failed dependency 0). Its user cache can be stale: what is missing is looked for once more without it.
    Raises: SiteFault(lmod-unavailable), JobFault(modules-missing), NodeFault(restore-failed).
    """
    _need_lmod(environ.get(b"LMOD_CMD", b""))
    with Watch() as watch:
        after, said = _in_bash(environ, names, _WHILE_LOADING, watch)
        missing = _missing(names, after)
        if missing:
            after, said = _in_bash(environ, names, {**_WHILE_LOADING, **_WITHOUT_CACHE}, watch)
            missing = _missing(names, after)
    if missing:
        listed = b" ".join(missing[:_LISTED_COUNT]).decode("latin-1")
        more = f" and {len(missing) - _LISTED_COUNT} more" if len(missing) > _LISTED_COUNT else ""
        raise JobFault("modules-missing", f"Lmod: {said}; not loaded: {listed}{more}")
    got = after.get(b"EESSI_SOFTWARE_SUBDIR"), after.get(b"EESSI_ACCELERATOR_TARGET") or None
    if got != (cpu, accel):
        found = " ".join((part or b"no accel").decode("latin-1") for part in got)
        raise JobFault("modules-missing", f"EESSI's module selected {found}; Lmod: {said}")
    return after


def _need_lmod(path: bytes) -> None:
    where = path.decode("utf-8", "backslashreplace")
    if not path.startswith(b"/"):
        raise SiteFault("lmod-unavailable", f"LMOD_CMD is {where!r}")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise SiteFault("lmod-unavailable", f"{where} is no program that can be run here")


def _in_bash(
    environ: "dict[bytes, bytes]", names: "list[bytes]", extra: "dict[bytes, bytes]", watch: Watch
) -> "tuple[dict[bytes, bytes], str]":
    """The environment after purge and load, without a trace of us, and the last line on stderr."""
    argv = [SYSTEM_BASH, b"--noprofile", b"--norc", b"-c", _SCRIPT, b"eessi-arch-guard", *names]
    given = {name: value for name, value in environ.items() if not _is_withheld(name)}
    given.update(extra)
    given[b"PATH"] = b":".join((*TOOLS, *((environ[b"PATH"],) if environ.get(b"PATH") else ())))
    try:
        shell = child.program(argv, given, {2: LMOD_OUTPUT_MAX_BYTES, 3: HELPER_OUTPUT_MAX_BYTES}, own_session=False)
    except OSError as error:
        raise NodeFault("restore-failed", f"no process could be started: {error.strerror}") from error
    child.wait([shell], Deadline(DEADLINE_MAX_S), watch)  # the guard's own deadline kills us first
    said = telling_line(bytes(shell.outputs[2]))
    entries = bytes(shell.outputs[3]).split(b"\0")
    if shell.status or (shell.overflowed and len(shell.outputs[3]) >= HELPER_OUTPUT_MAX_BYTES) or entries.pop():
        raise NodeFault("restore-failed", f"the reload shell ended with status {shell.status}: {said}")
    after = dict(_pair(entry) for entry in entries)
    for name, value in extra.items():
        if after.get(name) == value:
            del after[name]
            if name in environ:
                after[name] = environ[name]
    after.update((name, value) for name, value in environ.items() if _is_withheld(name) and name not in after)
    return {name: without_tools(name, value) for name, value in after.items()}, said


def telling_line(said: bytes) -> str:
    """What of Lmod's stderr tells a person most: its own error up to the first empty line, else the last line; at most
    LMOD_LINE_MAX_BYTES characters. An error of Lmod 8.6.19 ends in advice on spelling and `#%Module`."""
    text = said.decode("utf-8", "backslashreplace").strip()
    error = text.partition(_LMOD_ERROR)[2].partition("\n\n")[0]
    return " ".join((error or text.rpartition("\n")[2] or "nothing").split())[:LMOD_LINE_MAX_BYTES]


def _pair(entry: bytes) -> "tuple[bytes, bytes]":
    name, _, value = entry.partition(b"=")
    return name, value


def _is_withheld(name: bytes) -> bool:
    return name in _WITHHELD or name.startswith(_WITHHELD_PREFIXES) or not is_name(name)


def _missing(names: "list[bytes]", after: "dict[bytes, bytes]") -> "list[bytes]":
    loaded = after.get(b"LOADEDMODULES", b"").split(b":")
    return [name for name in names if name not in loaded]


def without_tools(name: bytes, value: bytes) -> bytes:
    """value as Lmod would have left it had TOOLS never been in PATH.

    They are in PATH, in Lmod's counts (`entry:count;`) and in what a module copied from either; in Lmod's stacks
    (pushenv) each entry is base64. Lmod 8.6.19, Var.lua and MasterControl.lua.
    """
    if name.startswith(b"__LMOD_STACK_"):
        return b":".join(_without_tools_in_base64(piece) for piece in value.split(b":"))
    if not any(tool in value for tool in TOOLS):
        return value
    separator = b";" if name.startswith(b"__LMOD_REF_COUNT_") else b":"
    return separator.join(entry for entry in value.split(separator) if entry.partition(b":")[0] not in TOOLS)


def _without_tools_in_base64(piece: bytes) -> bytes:
    try:
        plain = binascii.a2b_base64(piece)
    except binascii.Error:
        return piece
    if not any(tool in plain for tool in TOOLS):
        return piece
    return binascii.b2a_base64(without_tools(b"", plain), newline=False)


def _raw(text: str) -> bytes:
    return text.encode("latin-1")
