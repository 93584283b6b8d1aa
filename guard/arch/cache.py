# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a step's decision lies on this node, and the finished outcome as bytes.

Seed guard-emits, "One decision per step".
A task that finds it does nothing else; so what is stored is what will be written, and reading it parses nothing.
"""

import _stat as stat
import posix as os  # what a cached answer needs of it, without the 0.9 ms that os costs at each start

from guard.arch.emit import Outcome
from guard.base import files
from guard.base.limits import CACHE_FILE_MAX_BYTES

try:  # CPython 3.9 to 3.11, then 3.12 on; hashlib would load OpenSSL for 200 bytes
    from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

PREFIX = b".eessi-arch-guard."
LOCK_SUFFIX = b".lock"
FALLBACK_FOLDER = b"/tmp"
KEY = (
    b"EESSI_SOFTWARE_SUBDIR",
    b"EESSI_ACCEL_SUBDIR",
    b"LOADEDMODULES",
    b"MODULEPATH",
    b"EESSI_INIT_PREFIX",
    b"EESSI_PROC_CPUINFO",
    b"PATH",
)
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
# Change it with the layout below: a file of another layout is not read.
_MAGIC = b"eessi-arch-guard outcome 1\n"
_DIGEST_BYTES = 32
_SIZE_BYTES = 8


def path(environ: "dict[bytes, bytes]", mode: str) -> "bytes | None":
    """The cache file of this task's step, on this node, for this output mode; None outside of Slurm."""
    if not environ.get(b"SLURM_JOB_ID"):
        return None
    digest = sha256(b"\0".join(environ.get(name, b"") for name in KEY)).hexdigest()[:16]
    step = part(environ.get(b"SLURM_STEP_ID", b"batch"))
    name = b".".join((job_prefix(environ, b"%d" % os.getuid()), step, mode.encode("ascii"), digest.encode("ascii")))
    return b"%s/%s" % (folder(environ), name)


def job_prefix(environ: "dict[bytes, bytes]", uid: bytes) -> bytes:
    """What the names of all this job's files on this node begin with, without the dot that follows."""
    return PREFIX + b".".join((uid, part(environ.get(b"SLURMD_NODENAME", b"")), part(environ[b"SLURM_JOB_ID"])))


def part(text: bytes) -> bytes:
    """text as a part of a file name: as it is when plain, else a 16-character SHA-256 prefix."""
    if 1 <= len(text) <= 64 and not text.strip(_PLAIN):
        return text
    return b"%.16s" % sha256(text).hexdigest().encode("ascii")


def folder(environ: "dict[bytes, bytes]") -> bytes:
    """TMPDIR when it is an absolute path of a folder that can be written to, else /tmp.

    In a prolog it may not be there yet: slurmstepd makes a per-job TMPDIR afterwards (task.c, _make_tmpdir).
    """
    chosen = environ.get(b"TMPDIR", b"")
    if not chosen.startswith(b"/"):
        return FALLBACK_FOLDER
    try:
        usable = stat.S_ISDIR(os.stat(chosen).st_mode) and os.access(chosen, os.W_OK | os.X_OK)
    except (OSError, ValueError):
        usable = False
    return chosen if usable else FALLBACK_FOLDER


def stored(path: bytes) -> "Outcome | None":
    """The outcome that a task of the step has left at path. Raises: files.Unusable."""
    data = files.read(path, CACHE_FILE_MAX_BYTES)
    return None if data is None else unpack(data, path.rpartition(b"/")[2])


def publish(path: bytes, outcome: Outcome) -> bool:
    """Leaves an outcome for the step's other tasks; False where that cannot be done safely."""
    data = pack(outcome, path.rpartition(b"/")[2])
    try:
        if len(data) <= CACHE_FILE_MAX_BYTES:
            files.publish(path, data)
            return True
    except files.Unusable:
        pass
    return False


def pack(outcome: Outcome, name: bytes) -> bytes:
    """An outcome as the content of the file called name (its last path component)."""
    parts = (outcome.directives, outcome.message, outcome.detail)
    sizes = b"".join(len(piece).to_bytes(_SIZE_BYTES, "big") for piece in parts)
    body = sizes + b"".join(parts)
    return b"%s%s%s" % (_MAGIC, sha256(name + b"\0" + body).digest(), body)


def unpack(data: bytes, name: bytes) -> "Outcome | None":
    """The outcome in the content of the file called name; None when it is cut, changed, or another file's."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC) or sha256(name + b"\0" + body).digest() != data[len(_MAGIC) : start]:
        return None
    pieces = []
    at = 3 * _SIZE_BYTES
    for index in range(3):
        size = int.from_bytes(body[index * _SIZE_BYTES : (index + 1) * _SIZE_BYTES], "big")
        pieces.append(body[at : at + size])
        at += size
    return Outcome(*pieces)
