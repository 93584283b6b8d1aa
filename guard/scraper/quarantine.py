# SPDX-License-Identifier: GPL-2.0-or-later
"""What could not be taken or delivered, kept for a person to look at: one JSON object a line, bounded. World room."""

import os

from guard.scraper import line
from guard.scraper.limits import QUARANTINE_MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Quarantine:
    """One file and the one before it, path and path.1, together at most twice max_bytes."""

    def __init__(self, path: str, max_bytes: int = QUARANTINE_MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def keep(self, time_ns: int, reason: str, raw: bytes, **more: "Any") -> bool:
        """Appends one entry; gives whether there was room for it. raw is kept as text, its odd bytes as \\xNN."""
        entry = line.whole({"time": time_ns, "reason": reason, **more, "raw": raw.decode("utf-8", "backslashreplace")})
        try:
            # Opened for each: this is rare, and an admin may move the file away at any time.
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes + len(entry) > self._max_bytes:
                if len(entry) > self._max_bytes:
                    return False
                os.rename(self._path, self._path + ".1")
                return self.keep(time_ns, reason, raw, **more)
            if os.write(fd, entry) != len(entry):
                os.ftruncate(fd, size_bytes)
                return False
            return True
        except OSError:
            return False
        finally:
            os.close(fd)
