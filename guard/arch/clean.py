# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes away step-cache files: this job's when it ends (`--clean`), and this user's old ones now and then.

World room. Names are taken from the folder itself and removed below its open fd: no link is followed, nothing outside
of it is touched, and a file must belong to the user that its name names.
"""

import os
import stat
import time

from guard.arch import cache
from guard.base.limits import CACHE_AGE_MAX_S, SWEEP_ENTRIES_MAX_COUNT, SWEEP_FILES_MAX_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main(environ: "dict[bytes, bytes]") -> int:
    """Removes this job's files on this node, from TMPDIR and /tmp: the calling user's, and for root any user's.

    For Epilog and TaskEpilog: always 0. Without SLURM_JOB_ID it does nothing. In a het job every task's SLURM_JOB_ID is
    the leader's (task.c, exec_task), but an Epilog's is its own component's (prep_script_slurmd.c): both are taken. Up
    to 20.11 nothing tells an Epilog the leader's, and its files are left to the sweep.
    """
    if not environ.get(b"SLURM_JOB_ID"):
        return 0
    # A TaskEpilog has the node's name from 21.08.3 on (mgr.c); before, its place in the topology, which ends with it.
    node = environ.get(b"SLURMD_NODENAME") or environ.get(b"SLURM_TOPOLOGY_ADDR", b"").rpartition(b".")[2]
    ids = [environ[name] for name in (b"SLURM_JOB_ID", b"SLURM_HET_JOB_ID") if environ.get(name)]
    uids = None if os.geteuid() == 0 else b"%d" % os.getuid()
    prefixes = [cache.job_prefix({b"SLURMD_NODENAME": node, b"SLURM_JOB_ID": job_id}, b"") for job_id in ids]
    wanted = tuple(prefix[len(cache.PREFIX) :] + b"." for prefix in prefixes)

    def is_of_job(name: bytes, _found: os.stat_result) -> bool:
        uid, _, rest = name[len(cache.PREFIX) :].partition(b".")
        return (uids is None or uid == uids) and (b"." + rest).startswith(wanted)

    for folder in dict.fromkeys((cache.folder(environ), cache.FALLBACK_FOLDER)):
        _remove(folder, is_of_job, None, None)
    return 0


def sweep(folder: bytes) -> None:
    """Removes this user's files of steps older than CACHE_AGE_MAX_S: bounded work, never an error."""
    oldest_s = time.time() - CACHE_AGE_MAX_S
    own = b"%d" % os.getuid()

    def is_old(name: bytes, found: os.stat_result) -> bool:
        return name[len(cache.PREFIX) :].partition(b".")[0] == own and found.st_mtime < oldest_s

    _remove(folder, is_old, SWEEP_ENTRIES_MAX_COUNT, SWEEP_FILES_MAX_COUNT)


def _remove(
    folder: bytes,
    is_wanted: "Callable[[bytes, os.stat_result], bool]",
    entries_max_count: "int | None",
    files_max_count: "int | None",
) -> None:
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with os.scandir(folder_fd) as entries:
            removed = 0
            for looked, entry in enumerate(entries, 1):
                name = os.fsencode(entry.name)
                if name.startswith(cache.PREFIX) and _removed(folder_fd, name, is_wanted):
                    removed += 1
                if looked == entries_max_count or removed == files_max_count:
                    return
    except OSError:
        pass
    finally:
        os.close(folder_fd)


def _removed(folder_fd: int, name: bytes, is_wanted: "Callable[[bytes, os.stat_result], bool]") -> bool:
    try:
        found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        owner = name[len(cache.PREFIX) :].partition(b".")[0]
        if not stat.S_ISREG(found.st_mode) or owner != b"%d" % found.st_uid or not is_wanted(name, found):
            return False
        os.unlink(name, dir_fd=folder_fd)
        return True
    except OSError:
        return False
