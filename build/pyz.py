# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the .pyz: staged files -> shiv -> sh header, our own start, bytecode -> a check of what came out.

    python build/pyz.py dist/eessi-arch-guard.pyz [--python /path/to/python3 ...]

shiv stages and bundles; its bootstrap is left out: it unpacks into ~/.shiv, obeys SHIV_* from the job's environment and
exits 1 where it cannot write, which kills the task from Slurm 22.05 on (design section 7). The same tree gives the same
bytes, in whatever folder and at whatever time: sorted members, one date, one mode.
"""

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "build" / "header.sh"
# The zip format's first day; shiv --reproducible uses it as well.
DATE = (1980, 1, 1, 0, 0, 0)
SYSTEM_PYTHONS = [f"/usr/bin/python3.{minor}" for minor in range(9, 15)]
# What the header runs: $1 is the .pyz. Bytecode of this very Python first, sources for every other.
BOOT = (
    "import sys; f = sys.argv[1]; del sys.argv[0]; "
    "sys.path[:0] = [f + chr(47) + sys.implementation.cache_tag, f]; "
    "from guard.__main__ import start; start()"
)
MAIN = """# SPDX-License-Identifier: GPL-2.0-or-later
import sys

sys.path.insert(0, sys.path[0] + "/" + sys.implementation.cache_tag)
from guard.__main__ import start

start()
"""
# Run by each Python: sources on stdin as a zip, the same with bytecode on stdout. Unchecked hashes: the sources lie in
# the same archive, and an import must not read both.
COMPILE = """
import importlib._bootstrap_external as external, importlib.util as util, io, sys, zipfile
given = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))
made = io.BytesIO()
with zipfile.ZipFile(made, "w") as out:
    for name in given.namelist():
        source = given.read(name)
        code = compile(source, "eessi-arch-guard.pyz/" + name, "exec", dont_inherit=True)
        data = external._code_to_hash_pyc(code, util.source_hash(source), False)
        out.writestr(sys.implementation.cache_tag + "/" + name + "c", data)
sys.stdout.buffer.write(made.getvalue())
"""
ALLOWED = re.compile(r"(__main__\.py|environment\.json|(cpython-3\d+/)?guard/[a-z_0-9/]+\.pyc?)")


def staged(folder: Path) -> Path:
    """A clean copy of the tracked files of the package: nothing untracked, no build folder's path."""
    listed = subprocess.run(["git", "ls-files", "-z", "guard"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    return folder


def bundled(stage: Path, file: Path) -> "dict[str, bytes]":
    """What shiv makes of the staged package: its environment.json and our sources, by their name in the archive."""
    shiv = Path(sys.executable).parent / "shiv"
    command = [str(shiv), "--site-packages", str(stage), "--entry-point", "guard.__main__:start"]
    command += ["--reproducible", "--uncompressed", "--output-file", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    sources = {
        name[len("site-packages/") :]: data
        for name, data in members.items()
        if name.startswith("site-packages/guard/") and name.endswith(".py")
    }
    return {"environment.json": members["environment.json"], **sources}


def bytecode(sources: "dict[str, bytes]", pythons: "list[str]") -> "dict[str, bytes]":
    """The sources as bytecode of each Python, one folder for each cache tag."""
    made: dict[str, bytes] = {}
    for python in pythons:
        run = subprocess.run(
            [python, "-I", "-S", "-c", COMPILE], input=archive(sources), stdout=subprocess.PIPE, check=True
        )
        with zipfile.ZipFile(io.BytesIO(run.stdout)) as answer:
            made.update({name: answer.read(name) for name in answer.namelist() if name not in made})
    return made


def archive(members: "dict[str, bytes]") -> bytes:
    """An uncompressed zip (CVMFS compresses) that depends on nothing but members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for name, data in sorted(members.items()):
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            target.writestr(entry, data)
    return out.getvalue()


def header(version: str, build: str, pythons: "list[str]") -> bytes:
    """The sh header; pythons - a site's own interpreters, tried first."""
    for python in pythons:
        if not re.fullmatch(r"/[A-Za-z0-9._/+-]+", python):
            raise SystemExit(f"--python takes an absolute path of plain characters, not {python!r}")
    text = HEADER.read_text()
    # In the same form as the others: a pattern that matches only itself, so that a missing one is passed over.
    first = " ".join(f"{python[:-1]}[{python[-1]}]" for python in pythons)
    for mark, value in (("@VERSION@", version), ("@BUILD@", build), ("@PYTHON@", first), ("@BOOT@", BOOT)):
        text = text.replace(mark, value)
    return text.encode("ascii")


def check(data: bytes) -> "list[str]":
    """A listing of the finished archive. Raises: SystemExit - something is in it that should not be."""
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        names = made.namelist()
        odd = [name for name in names if not ALLOWED.fullmatch(name)]
        if odd or made.testzip():
            raise SystemExit(f"unexpected members: {odd}")
        if os.fsencode(ROOT) in data:
            raise SystemExit(f"the archive names the folder it was built in: {ROOT}")
        return [f"{made.getinfo(name).file_size:8d} {name}" for name in names]


def main() -> int:
    """Builds, checks and writes; prints the listing with --list."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("output", type=Path)
    parser.add_argument("--python", action="append", default=[], help="an interpreter that the header tries first")
    parser.add_argument("--list", action="store_true", help="print what is in the archive")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        members = bundled(staged(Path(folder) / "stage"), Path(folder) / "shiv.pyz")
    sources = {name: data for name, data in members.items() if name.endswith(".py")}
    pythons = [python for python in [*options.python, *SYSTEM_PYTHONS] if os.access(python, os.X_OK)]
    members.update(bytecode(sources, pythons), **{"__main__.py": MAIN.encode()})
    version = re.search(rb'__version__ = "([^"]+)"', members["guard/__init__.py"])
    if not version:
        raise SystemExit("guard/__init__.py names no version")
    build = hashlib.sha256(archive(members)).hexdigest()[:16]
    data = header(version[1].decode(), build, options.python) + archive(members)
    listing = check(data)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.output.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.chmod(0o755)
    temporary.replace(options.output)
    if options.list:
        print("\n".join(listing))
    print(f"{options.output}: {len(data)} bytes, build {build}, bytecode for {' '.join(pythons) or 'no Python'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
