# SPDX-License-Identifier: GPL-2.0-or-later
"""The one runner of children: what they write comes back as bytes, and none outlives the deadline unkilled.

World room. A child never has our fds 0, 1 or 2, nor any other: Slurm from 22.05.1 on reads stdout and stderr of a
TaskProlog from one pipe, as directives, until every holder has closed it (run_command.c). fork and exec, not
posix_spawn: that waits in the parent until the exec is done, and an exec from a hanging CVMFS never is.
"""

import _signal  # type: ignore[import-not-found]
import os
import select
import time

from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.base.limits import POST_KILL_WAIT_SECONDS
from guard.base.watch import STOPPING, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Python ignores these; a child that inherits that loses the usual death of a writer to a closed pipe.
_IGNORED_BY_PYTHON = (_signal.SIGPIPE, _signal.SIGXFSZ)
# 1 MiB a look: a pipe holds 64 KiB, at most fs.pipe-max-size = 1 MiB, pipe(7).
_PIECE_BYTES = 65536
_PIECES_A_LOOK = 16
# How often a lingering child's end of patience is looked at, in seconds.
_LINGER_LOOK_S = 0.1
# poll() takes milliseconds as an int; a wait without a deadline (a chained prolog's) looks again after this.
_POLL_MAX_S = 3600.0
_BECAUSE_OF_DEADLINE = "timeout"
_BECAUSE_OF_SIGNAL = "terminated"


class Child:
    """A started process. outputs: fd in the child -> bytes so far; status: exit code, -signal, None while it runs."""

    __slots__ = ("_linger_s", "_own_session", "_pipes", "_stdin", "outputs", "overflowed", "pid", "status")

    def __init__(self, pid: int, own_session: bool, linger_s: float) -> None:
        self.pid = pid
        self.status: "int | None" = None
        self.outputs: dict[int, bytearray] = {}
        self.overflowed = False
        self._own_session = own_session
        self._linger_s = linger_s
        self._pipes: dict[int, tuple[int, int]] = {}
        self._stdin: "tuple[int, memoryview] | None" = None


def program(
    argv: "list[bytes]",
    environ: "dict[bytes, bytes]",
    output_max_bytes: "dict[int, int]",
    stdin: bytes = b"",
    own_session: bool = True,
    merge_stderr: bool = False,
    linger_s: float = 0.0,
) -> Child:
    """A running program, started from argv with exactly environ.

    Takes: argv - argv[0] an absolute path; output_max_bytes - for each fd of the child that is wanted, how many
    bytes of it are kept (fds 1 and 2 go to /dev/null if not named); merge_stderr - fd 2 is a copy of the child's fd 1;
    own_session False - the child stays in our process group, so that whoever kills us kills it; linger_s - how long
    its pipes are still read after it has ended, for descendants that finish what it began.
    Gives: the child; an exec that fails is a child that ends with status 127.
    Raises: OSError - no process or pipe could be had.
    """

    def execute() -> None:
        os.execve(argv[0], argv, environ)

    return _start(execute, output_max_bytes, stdin, own_session, merge_stderr, linger_s)


def call(function: "Callable[[], bytes]", output_max_bytes: int) -> Child:
    """A fork of this process that runs function() -> bytes; the answer is the child's output on fd 1.

    For system calls that may never return: the fork can be given up, this process cannot.
    """

    def execute() -> None:
        answer = function()
        while answer:
            answer = answer[os.write(1, answer) :]
        os._exit(0)

    return _start(execute, {1: output_max_bytes}, b"", True, False, 0.0)


def _start(
    execute: "Callable[[], None]",
    output_max_bytes: "dict[int, int]",
    stdin: bytes,
    own_session: bool,
    merge_stderr: bool,
    linger_s: float,
) -> Child:
    opened: list[int] = []
    try:
        ends = {}
        for fd in output_max_bytes:
            ends[fd] = os.pipe()
            opened += ends[fd]
        stdin_ends = os.pipe() if stdin else None
        opened += stdin_ends or ()
        # A signal between fork and setsid would find our handlers in the child and be lost.
        old_mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, STOPPING)
        try:
            pid = os.fork()
            if pid == 0:
                places = {fd: write_fd for fd, (_, write_fd) in ends.items()}
                if stdin_ends:
                    places[0] = stdin_ends[0]
                _become(execute, places, own_session, merge_stderr)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, old_mask)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    child = Child(pid, own_session, linger_s)
    for fd, (read_fd, write_fd) in ends.items():
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        child.outputs[fd] = bytearray()
        child._pipes[read_fd] = (fd, output_max_bytes[fd])
    if stdin_ends:
        os.close(stdin_ends[0])
        os.set_blocking(stdin_ends[1], False)
        child._stdin = (stdin_ends[1], memoryview(stdin))
    return child


def _become(execute: "Callable[[], None]", places: "dict[int, int]", own_session: bool, merge_stderr: bool) -> None:
    """In the child, never returns: fds, session and signals as a fresh program expects them, then execute()."""
    try:
        _signal.set_wakeup_fd(-1)
        for number in (*STOPPING, _signal.SIGCHLD, *_IGNORED_BY_PYTHON):
            _signal.signal(number, _signal.SIG_DFL)
        if own_session:
            os.setsid()
        null_fd = os.open(os.devnull, os.O_RDWR)
        # High first, so that no dup2 lands on an end that is still to be moved.
        top = max(places, default=2) + 1
        aside = {fd: _above(end, top) for fd, end in places.items()}
        null_fd = _above(null_fd, top)
        for fd in (0, 1, 2):
            os.dup2(aside.get(fd, null_fd), fd)
        for fd, end in aside.items():
            os.dup2(end, fd)
        if merge_stderr:
            os.dup2(1, 2)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in places:
                try:
                    os.close(int(name))
                except OSError:
                    pass  # the one that listed the folder
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        execute()
    except BaseException:
        pass  # the outermost door of this process: the status tells the parent
    finally:
        os._exit(127)


def _above(fd: int, top: int) -> int:
    while fd < top:
        fd = os.dup(fd)
    return fd


def wait(children: "list[Child]", deadline: Deadline, watch: Watch) -> None:
    """Waits until every child has ended and what it wrote has been read; fills outputs and status.

    A descendant that keeps a pipe open is not waited for: the child's own end counts (Slurm waits for the pipe).
    Raises: NodeFault(timeout), NodeFault(terminated) - after the children's groups have been killed and waited for,
    at most POST_KILL_WAIT_SECONDS.
    """
    code = _pump(children, deadline, watch, heed_stop=True)
    if code:
        abandon(children, watch)
        raise NodeFault(code)


def abandon(children: "list[Child]", watch: Watch) -> None:
    """Kills the children's groups and waits for them, at most POST_KILL_WAIT_SECONDS; reads no more of them."""
    for child in children:
        _kill(child)
    _pump(children, Deadline(POST_KILL_WAIT_SECONDS), watch, heed_stop=False)
    for child in children:
        _close(child)


def _kill(child: Child) -> None:
    if child.status is None:
        # Both: the group exists only once the child has come as far as setsid.
        for send in (os.kill, os.killpg) if child._own_session else (os.kill,):
            try:
                send(child.pid, _signal.SIGKILL)
            except OSError:
                pass


def _pump(children: "list[Child]", deadline: Deadline, watch: Watch, heed_stop: bool) -> "str | None":
    """Moves bytes until all children have ended; gives why it stopped before that, or None."""
    until_s: dict[int, float] = {}
    while True:
        watch.drain()
        for child in children:
            if child.status is None and _has_ended(child):
                until_s[child.pid] = time.monotonic() + child._linger_s
            if child.status is not None:
                _read(child)
                if time.monotonic() >= until_s.get(child.pid, 0.0):
                    _close(child)
        running = [child for child in children if child.status is None or child._pipes]
        if not running:
            return None
        if heed_stop and watch.is_stopped():
            return _BECAUSE_OF_SIGNAL
        left_s = deadline.left_s()
        if not left_s:
            return _BECAUSE_OF_DEADLINE
        poll = select.poll()
        poll.register(watch.fd, select.POLLIN)
        for child in running:
            for fd in child._pipes:
                poll.register(fd, select.POLLIN)
            if child._stdin:
                poll.register(child._stdin[0], select.POLLOUT)
        lingers = any(child.status is not None for child in running)
        poll.poll(min(left_s, _LINGER_LOOK_S if lingers else _POLL_MAX_S) * 1000 + 1)
        for child in running:
            _read(child)
            _feed(child)


def _has_ended(child: Child) -> bool:
    try:
        pid, raw = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:
        child.status = 127  # reaped by nobody we know; its output is all there is
        return True
    if pid:
        child.status = -os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)
    return bool(pid)


def _read(child: Child) -> None:
    """Takes what is there, at most a pipe's largest content a call: a flood must not keep the deadline waiting."""
    for read_fd, (fd, bound) in list(child._pipes.items()):
        kept = child.outputs[fd]
        for _ in range(_PIECES_A_LOOK):
            try:
                piece = os.read(read_fd, _PIECE_BYTES)
            except BlockingIOError:
                break
            if not piece:
                os.close(read_fd)
                del child._pipes[read_fd]
                break
            kept += piece
            if len(kept) > bound:
                child.overflowed = True
                # The tail is what tells why a program failed; a head that was cut is refused by whoever parses it.
                del kept[: len(kept) - bound]


def _feed(child: Child) -> None:
    if child._stdin:
        fd, rest = child._stdin
        try:
            rest = rest[os.write(fd, rest[:_PIECE_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            rest = rest[:0]  # the child does not read on; its status tells why
        child._stdin = (fd, rest) if rest else None
        if not rest:
            os.close(fd)


def _close(child: Child) -> None:
    for read_fd in child._pipes:
        os.close(read_fd)
    child._pipes.clear()
    if child._stdin:
        os.close(child._stdin[0])
        child._stdin = None
