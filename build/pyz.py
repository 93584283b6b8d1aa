# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the .pyz: staged files -> shiv -> sh header, our own start, bytecode -> a check of what came out.

    python build/pyz.py dist/eessi-arch-guard.pyz [--python /path/to/python3 ...]

shiv bundles; its bootstrap is left out: it unpacks into ~/.shiv, obeys SHIV_* from the job's environment and
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
BOOT = ROOT / "build" / "boot.py"
# What a task of the guard may run; build/boot.py takes it from one member, `<cache tag>/hot`.
HOT = re.compile(r"guard/(__init__|__main__|(arch|base)/[a-z_]+)\.py")
# Offset in the file and size in bytes of 8 bytes of a hash and the bytecode that it is of; the magic number that its
# Python must have; those 8 bytes.
Place = tuple[int, int, str, str]
# The zip format's first day; shiv --reproducible uses it as well.
DATE = (1980, 1, 1, 0, 0, 0)
SYSTEM_PYTHONS = [f"/usr/bin/python3.{minor}" for minor in range(9, 15)]
# Run by each Python: sources on stdin as a zip, the same with bytecode on stdout. Unchecked hashes: the sources lie in
# the same archive, and an import must not read both. Without docstrings: less to read at each start.
COMPILE = """
import hashlib, importlib._bootstrap_external as external, importlib.util as util, io, marshal, sys, zipfile
given = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))
made = io.BytesIO()
tag = sys.implementation.cache_tag
hot = {}
with zipfile.ZipFile(made, "w") as out:
    for name in given.namelist():
        source = given.read(name)
        code = compile(source, "eessi-arch-guard.pyz/" + name, "exec", dont_inherit=True, optimize=2)
        data = external._code_to_hash_pyc(code, util.source_hash(source), False)
        if name in sys.argv[1:]:
            package = name.endswith("/__init__.py")
            module = name[: -len("/__init__.py")] if package else name[: -len(".py")]
            hot[module.replace("/", ".")] = package, data[16:]
        else:
            out.writestr(tag + "/" + name + "c", data)
    data = marshal.dumps(hot)
    out.writestr(tag + "/hot", external.MAGIC_NUMBER + hashlib.sha256(data).digest()[:8] + data)
sys.stdout.buffer.write(made.getvalue())
"""
ALLOWED = re.compile(r"(__main__\.py|environment\.json|(cpython-3\d+/)?guard/[a-z_0-9/]+\.pyc?|cpython-3\d+/hot)")


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
            [python, "-I", "-S", "-c", COMPILE, *filter(HOT.fullmatch, sorted(sources))],
            input=archive(sources),
            stdout=subprocess.PIPE,
            check=True,
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


def boot(file: str, hot: "dict[str, Place]") -> str:
    """build/boot.py filled in. file - the expression for the .pyz's path; hot - cache tag to the place of its bytecode.
    As long for any offset and size."""
    places = ", ".join(
        f'"{tag}": ({at:9d}, {size:7d}, "{magic}", "{name}")' for tag, (at, size, magic, name) in sorted(hot.items())
    )
    text = re.sub(r"^#.*\n", "", BOOT.read_text(), flags=re.MULTILINE)
    return text.replace("@HOT@", "{" + places + "}").replace("@FILE@", file).strip() + "\n"


def header(version: str, build: str, pythons: "list[str]", hot: "dict[str, Place]") -> bytes:
    """The sh header. pythons - a site's own interpreters, tried first."""
    for python in pythons:
        if not re.fullmatch(r"/[A-Za-z0-9._/+-]+", python):
            raise SystemExit(f"--python takes an absolute path of plain characters, not {python!r}")
    start = boot("sys.argv.pop(1)", hot).replace("sys.argv.pop(1)", "sys.argv[0] = sys.argv.pop(1)", 1)
    text = HEADER.read_text()
    for mark, value in (("@VERSION@", version), ("@BUILD@", build), ("@PYTHON@", " ".join(pythons)), ("@BOOT@", start)):
        text = text.replace(mark, value.strip())
    return text.encode("ascii")


def joined(version: str, pythons: "list[str]", members: "dict[str, bytes]") -> "tuple[bytes, str]":
    """The finished file and its build id. Put together twice: the second time with the places of the bytecode, which
    the first has shown and which do not move."""
    build = hashlib.sha256(archive(members)).hexdigest()[:16]
    hot = {
        name.partition("/")[0]: (0, 0, data[:4].hex(), data[4:12].hex())
        for name, data in members.items()
        if name.endswith("/hot")
    }
    for _ in range(2):
        head = header(version, build, pythons, hot)
        body = archive({**members, "__main__.py": boot("sys.path[0]", hot).encode("ascii")})
        with zipfile.ZipFile(io.BytesIO(body)) as made:
            for tag, (_, _, magic, name) in hot.items():
                entry = made.getinfo(f"{tag}/hot")
                # A local file header is 30 bytes and the name; then the magic number, the hash's 8 bytes, the bytecode.
                at = len(head) + entry.header_offset + 30 + len(entry.filename) + 4
                hot[tag] = (at, entry.file_size - 4, magic, name)
    return head + body, build


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
    members.update(bytecode(sources, pythons))
    version = re.search(rb'__version__ = "([^"]+)"', members["guard/__init__.py"])
    if not version:
        raise SystemExit("guard/__init__.py names no version")
    data, build = joined(version[1].decode(), options.python, members)
    listing = check(data)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.output.with_name(f".{options.output.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.chmod(0o755)
    temporary.replace(options.output)
    if options.list:
        print("\n".join(listing))
    print(f"{options.output}: {len(data)} bytes, build {build}, bytecode for {' '.join(pythons) or 'no Python'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
