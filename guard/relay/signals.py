# SPDX-License-Identifier: GPL-2.0-or-later
"""Signals to `relay exec`, with who sent them, as something to poll. World room.

A handler in Python does not learn the sender, and that decides whether the command has had the signal already: from the
terminal, and from slurmstepd, which signals every process of a step (proctrack_p_signal), both get it. So the
signals are blocked and one thread takes them by sigwaitinfo.
"""

import _thread
import os
import signal
import struct

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
    signal.SIGPWR,
    *range(signal.SIGRTMIN + 1, signal.SIGRTMAX + 1),
)
# SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT keep their default: the shell's job control moves us and the command as one group.
_TAKEN = (*FORWARDED, signal.SIGCHLD, signal.SIGWINCH)
_SI_KERNEL = 0x80  # siginfo.h; the terminal's own signals have it
_NOTE = struct.Struct("iii")


class Signals:
    """From open() on no signal that is forwarded ends this process; read() tells of each that came."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self.old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)

    def start(self) -> None:
        """Begins to take signals. After the command's fork: a fork wants no other thread."""
        _thread.start_new_thread(self._take, ())

    def _take(self) -> None:
        while True:
            found = signal.sigwaitinfo(_TAKEN)
            os.write(self._write_fd, _NOTE.pack(found.si_signo, found.si_code, found.si_pid))

    def read(self) -> "list[tuple[int, int, int]]":
        """signal, si_code, the sender's pid: of each that came since the last call."""
        try:
            return list(_NOTE.iter_unpack(os.read(self.fd, _NOTE.size * 256)))
        except BlockingIOError:
            return []


def is_forwarded(number: int, code: int, is_from_command: bool, is_from_slurm: bool, is_own_session: bool) -> bool:
    """Whether the command has not had this signal yet, so that it must be passed on. Pure."""
    if number not in FORWARDED or is_from_command:
        return False
    return is_own_session or not (code == _SI_KERNEL or is_from_slurm)


def is_slurmstepd(pid: int) -> bool:
    """Whether this is Slurm's step daemon, by name and root."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read(15).startswith(b"slurmstepd") and os.fstat(file.fileno()).st_uid == 0
    except OSError:
        return False


def die_by(number: int) -> None:
    """Ends this process by the signal that ended the command, without a second core file. Returns if that fails."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    except (OSError, ValueError):
        pass
