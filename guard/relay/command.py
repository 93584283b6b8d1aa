# SPDX-License-Identifier: GPL-2.0-or-later
"""This process becomes a command. World room."""

import errno
import os
import signal

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def become(command: "list[bytes]", environ: "dict[bytes, bytes]") -> int:
    """Replaces this process by command. Returns, with the status that a shell gives, only if that cannot be."""
    # Python ignores these; a program that inherits that loses the usual death of a writer to a closed pipe.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        text = f"relay exec: {os.fsdecode(command[0])}: {error.strerror}\n"
        try:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # nobody to tell
        return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE
