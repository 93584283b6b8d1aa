# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading a file of text to which another process appends. World room."""

import os


def pread(fd: int, size_bytes: int, offset: int) -> bytes:
    """What is there, at most size_bytes, less at the present end. Raises: OSError.

    Up to Linux 6.8 a read beside an append may, where memory is ordered weakly (aarch64), see its new size before its
    new content: zeros, which no text has. What is read once more after them is what stands in the file.
    """
    data = os.pread(fd, size_bytes, offset)
    return os.pread(fd, size_bytes, offset) if b"\0" in data else data
