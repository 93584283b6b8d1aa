# SPDX-License-Identifier: GPL-2.0-or-later
"""`--check`: what the guard sees on this node, what it would do and why. For people; nothing is applied or cached.

Design section 2. Gathered as one value, shown as text or as JSON. The stages are those of the real run, in its order.
"""

import json
import os
import sys

from guard import __version__
from guard.arch import cache, decide, delta, detect, emit, request, restore
from guard.arch.options import PROLOG, Options, parse
from guard.base.deadline import Deadline
from guard.base.faults import Fault, JobFault
from guard.base.limits import SLURM_ENTRY_MAX_BYTES
from guard.base.watch import Watch

_LONGEST_COUNT = 10


def main(arguments: "list[str]", environ: "dict[bytes, bytes]", file: str) -> int:
    """Prints the report and gives 0 when all is well, 1 when something is to be fixed, 2 for a wrong call."""
    is_json = "--json" in arguments
    options = parse([argument for argument in arguments if argument != "--json"])
    if options.fault or options.chain or options.mode != PROLOG:
        print(f"usage: eessi-arch-guard --check [--json], with the site's modifiers; {options.fault}", file=sys.stderr)
        return 2
    found = report(environ, options, file)
    print(json.dumps(found, indent=2) if is_json else as_text(found))
    return 1 if found["fix"] else 0


def report(environ: "dict[bytes, bytes]", options: Options, file: str) -> "dict[str, object]":
    """Everything as plain values; bytes of the environment as text for a person. `fix` is "" when all is well."""
    line_max = emit.line_max_bytes(environ, options)
    seconds, remark = request.deadline_s(environ, options.timeout_s)
    lmod = _text(environ.get(b"LMOD_CMD", b""))
    found: dict[str, object] = {
        "guard": f"{__version__} at {file}",
        "python": f"{sys.version.split()[0]} at {sys.executable}",
        "deadline_s": seconds,
        "deadline_remark": remark,
        "line_max_bytes": line_max,
        "lmod": lmod,
        "lmod_runs": os.path.isfile(lmod) and os.access(lmod, os.X_OK),
        "cache_folder": _text(cache.folder(environ)),
        "cache_file": _text(cache.path(environ, PROLOG) or b""),
        "action": "",
        "fix": "",
    }
    reason = request.skip_reason(environ)
    if reason:
        found["action"] = f"nothing to do, {reason}"
        return found
    try:
        with Watch() as watch:
            _stages(found, environ, file, line_max, Deadline(seconds), watch)
    except Fault as fault:
        found["action"] = f"would change nothing and set EESSI_ARCH_GUARD_FAILED ({fault.code})"
        found["fix"] = fault.sentence()
    return found


def _stages(
    found: "dict[str, object]",
    environ: "dict[bytes, bytes]",
    file: str,
    line_max: "int | None",
    deadline: Deadline,
    watch: Watch,
) -> None:
    """Adds what each stage gives, so that what came before a fault is shown as well."""
    was = request.loaded_target(environ)
    names, why = request.module_names(environ)
    found["loaded"] = _shown(was)
    found["modules"] = [_text(name) for name in names]
    survey = detect.survey(environ, deadline, watch)
    found["cpu_options"] = [_text(option) for option in survey.options]
    found["accelerator"] = _text(survey.accel or b"none")
    found["accelerator_remark"] = survey.remark
    found["tried"] = [{"folder": _text(path), "there": there} for path, there in survey.walked.tried]
    if survey.walked.target:
        found["selected"] = _shown(survey.walked.target)
    now = decide.choose(was, survey)
    if now is None:
        found["action"] = f"nothing to do, {decide.MATCH}"
        return
    if why:
        raise JobFault("unsafe-module-name", why)
    after = restore.environment(environ, names, was, now, file, deadline, watch)
    changes = delta.between(environ, after)
    found["changes"] = len(changes)
    sizes = sorted(((len(name) + len(value or b"") + 2, name) for name, value in changes), reverse=True)
    found["longest"] = [
        {"name": _text(name), "bytes": size, "fits": _fits(size, line_max)} for size, name in sizes[:_LONGEST_COUNT]
    ]
    emit.render(changes, PROLOG, line_max)
    found["action"] = f"reload {len(names)} modules, {_text(decide.label(was, now))}"


def _fits(size_bytes: int, line_max: "int | None") -> bool:
    """Whether a variable of name + value + 2 bytes can be exported: the line is longer by `export `, and has no NUL."""
    return size_bytes < SLURM_ENTRY_MAX_BYTES and (line_max is None or size_bytes + len("export ") <= line_max)


def as_text(found: "dict[str, object]") -> str:
    """The report as lines for a terminal, in the order in which it was gathered; the sentence to act on comes last."""
    lines = []
    for key, value in found.items():
        label = key.replace("_", " ").ljust(20)
        if isinstance(value, list):
            lines.append(f"{label}{len(value)}")
            lines += [f"    {_item(item)}" for item in value]
        elif key not in ("action", "fix") and value not in ("", None):
            lines.append(f"{label}{value}")
    if found["line_max_bytes"] is None:
        lines.append(f"{'line max bytes'.ljust(20)}none, this Slurm reads whole lines")
    lines.append(f"{'action'.ljust(20)}{found['action']}")
    lines.append(f"{'fix'.ljust(20)}{found['fix'] or 'nothing'}")
    return "\n".join(lines)


def _item(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    if "folder" in item:
        return f"{'yes' if item['there'] else 'no '} {item['folder']}"
    return f"{item['bytes']:7d} bytes {'fits' if item['fits'] else 'TOO LONG'} {item['name']}"


def _shown(target: request.Target) -> str:
    return _text(target.cpu) + " " + _text(target.accel or b"no accel")


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(character if character.isprintable() else "?" for character in text)
