# SPDX-License-Identifier: GPL-2.0-or-later
"""From what a node can run to what EESSI has for it: the two walks over software folders, as EESSI's module does them.

Source: design section 4; EESSI software-layer-scripts a45043f, init/modules/EESSI/2023.06.lua, archdetect_cpu() and
the accelerator part below it.
"""

import errno
import os
import stat

from guard.arch.request import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Any other errno is a sick mount (EIO, ENOTCONN, ESTALE, EACCES, EPERM, ELOOP ...): it says nothing of what is there.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


class Walked:
    """What the walks found. target: None when no folder fits; tried: (path, is it a folder) in order;
    sick: the path and errno that ended the walk, None when none did."""

    __slots__ = ("sick", "target", "tried")

    def __init__(
        self, target: "Target | None", tried: "list[tuple[bytes, bool]]", sick: "tuple[bytes, int] | None"
    ) -> None:
        self.target = target
        self.tried = tried
        self.sick = sick


def present(
    environ: "dict[bytes, bytes]", options: "list[bytes]", accel: "bytes | None", has_folder: "Callable[[bytes], bool]"
) -> Walked:
    """The best target that EESSI has software for.

    Takes: options - CPU targets, best first; accel - the accelerator found, None for none; has_folder - whether a path
    is a folder, OSError for "cannot be known". Touches: nothing but has_folder.
    """
    base = b"%s/software/%s" % (environ.get(b"EESSI_PREFIX", b""), environ.get(b"EESSI_OS_TYPE", b"linux"))
    tried: list[tuple[bytes, bool]] = []

    def is_there(path: bytes) -> bool:
        tried.append((path, False))
        found = has_folder(path)
        tried[-1] = (path, found)
        return found

    try:
        cpu = next((option for option in options if is_there(b"%s/%s/software" % (base, option))), None)
        if cpu is None:
            return Walked(None, tried, None)
        below = environ.get(b"EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE", cpu)
        # The module's fall-back to the major version: cc89 -> cc80, and the last character whatever it is.
        names = () if accel is None else (accel, accel[:-1] + b"0")
        found = (name for name in dict.fromkeys(names) if is_there(b"%s/%s/%s/modules/all" % (base, below, name)))
        return Walked(Target(cpu, next(found, None)), tried, None)
    except OSError as error:
        return Walked(None, tried, (tried[-1][0], error.errno or 0))


def has_folder(path: bytes) -> bool:
    """Whether path is a folder; links are followed, as Lmod's isDir does. Raises: OSError - it cannot be known."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
