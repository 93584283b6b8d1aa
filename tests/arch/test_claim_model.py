# SPDX-License-Identifier: GPL-2.0-or-later
"""Every interleaving of the step cache's protocol: the real code of claim, cache and files on a file system that stops
before each system call, with a crash possible at each, and the deadline at each wait for the lock.

Two tasks with crashes and deadlines, three without. A state that was reached before, by whatever order, is not explored
again; what makes a state is the file system and what each task has been answered so far.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import greenlet  # type: ignore[import-untyped]
import pytest

from guard.arch import cache, claim
from guard.arch.emit import Outcome
from guard.base import files
from guard.base.deadline import Deadline
from guard.base.faults import NodeFault

PATH = b"/tmp/name"
Action = "tuple[str, int]"


class Inode:
    def __init__(self) -> None:
        self.data = b""
        self.locked_by: "tuple[int, int] | None" = None


class Task:
    """One task: a greenlet that stops before each system call and tells which one it is about to make."""

    def __init__(self, world: "World", number: int) -> None:
        self.fds: dict[int, tuple[Inode, int]] = {}
        self.answers: list[object] = []
        self.next_call: "tuple[object, ...]" = ("start",)
        self.end: "object" = None
        self.green = greenlet.greenlet(lambda: self._run(world, number))

    def _run(self, world: "World", number: int) -> None:
        def decide() -> "tuple[Outcome, bool]":
            world.stop("decide")
            world.decided.append(number)
            return Outcome(b"export BY=%d\n" % number, b"", b""), True

        watch = SimpleNamespace(is_stopped=lambda: False)
        try:
            outcome, _ = claim.decided(PATH, decide, Deadline(100), watch)  # type: ignore[arg-type]
            self.end = outcome.directives
        except NodeFault as fault:
            self.end = fault.code


class World:
    """The file system, the tasks on it, and which of them runs."""

    def __init__(self, count: int) -> None:
        self.names: dict[bytes, Inode] = {}
        self.decided: list[int] = []
        self.crashed: set[int] = set()
        self.hub = greenlet.getcurrent()
        self.running = -1
        self.interrupted = False
        self.tasks = [Task(self, number) for number in range(count)]

    # What the scheduler does.

    def actions(self, with_crashes: bool, with_deadlines: bool) -> "list[tuple[str, int]]":
        found: list[tuple[str, int]] = []
        for number, task in enumerate(self.tasks):
            if task.end is not None or number in self.crashed:
                continue
            waits = task.next_call[0] == "lock" and self._is_locked(number, task.next_call)
            if not waits:
                found.append(("run", number))
            elif with_deadlines:
                found.append(("deadline", number))
            if with_crashes and task.next_call[0] != "start":
                found.append(("crash", number))
        return found

    def do(self, action: "tuple[str, int]") -> None:
        kind, number = action
        task = self.tasks[number]
        if kind == "crash":
            self.crashed.add(number)
            for fd in list(task.fds):
                self._forget(number, fd)
            task.green.throw(greenlet.GreenletExit)
            return
        self.running = number
        self.interrupted = kind == "deadline"
        task.green.switch()

    def key(self) -> object:
        return (
            tuple(sorted((name, inode.data, inode.locked_by) for name, inode in self.names.items())),
            tuple((task.next_call, tuple(task.answers), task.end) for task in self.tasks),
            tuple(sorted(self.crashed)),
        )

    def _is_locked(self, number: int, call: "tuple[object, ...]") -> bool:
        inode, _ = self.tasks[number].fds[int(str(call[1]))]
        return inode.locked_by not in (None, (number, call[1]))

    def _forget(self, number: int, fd: int) -> None:
        inode, _ = self.tasks[number].fds.pop(fd)
        if inode.locked_by == (number, fd):
            inode.locked_by = None

    # What the code under test calls, each of them a place to stop.

    def stop(self, *call: object) -> "Task":
        task = self.tasks[self.running]
        if task.green.dead:
            raise OSError(errno.EBADF, "crashed")
        task.next_call = call
        self.hub.switch()
        return self.tasks[self.running]

    def answered(self, answer: object) -> None:
        self.tasks[self.running].answers.append(answer)

    def open(self, path: bytes, flags: int, _mode: int) -> int:
        task = self.stop("open", path, flags)
        if path not in self.names and not flags & os.O_CREAT:
            self.answered("ENOENT")
            raise FileNotFoundError(errno.ENOENT, "no", path)
        if path in self.names and flags & os.O_EXCL:
            self.answered("EEXIST")
            raise FileExistsError(errno.EEXIST, "there", path)
        fd = len(task.answers) + 100
        task.fds[fd] = (self.names.setdefault(path, Inode()), 0)
        self.answered(fd)
        return fd

    def fstat(self, fd: int) -> object:
        inode, _ = self.tasks[self.running].fds[fd]
        mode = stat.S_IFREG | 0o600
        return SimpleNamespace(st_mode=mode, st_uid=0, st_nlink=1, st_size=len(inode.data))

    def read(self, fd: int, size: int) -> bytes:
        task = self.stop("read", fd)
        inode, at = task.fds[fd]
        data = inode.data[at : at + size]
        task.fds[fd] = (inode, at + len(data))
        self.answered(data)
        return data

    def write(self, fd: int, data: bytes) -> int:
        task = self.stop("write", fd)
        inode, _ = task.fds[fd]
        piece = bytes(data[: max(1, len(data) // 2) if len(data) > 60 else len(data)])
        inode.data += piece
        self.answered(len(piece))
        return len(piece)

    def close(self, fd: int) -> None:
        if fd in self.tasks[self.running].fds:
            self.stop("close", fd)
            self._forget(self.running, fd)

    def rename(self, old: bytes, new: bytes) -> None:
        self.stop("rename", old, new)
        self.names[new] = self.names.pop(old)
        self.answered("renamed")

    def unlink(self, path: bytes) -> None:
        self.stop("unlink", path)
        self.names.pop(path, None)

    def flock(self, fd: int, how: int) -> None:
        if how & fcntl.LOCK_NB:
            task = self.stop("try", fd)
            if self._is_locked(self.running, ("try", fd)):
                self.answered("EWOULDBLOCK")
                raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        else:
            task = self.stop("lock", fd)
            if self.interrupted:
                self.answered("deadline")
                raise claim._Interrupt
        task.fds[fd][0].locked_by = (self.running, fd)
        self.answered("locked")


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Callable[[int], World]]":
    current: list[World] = []

    def call(name: str) -> "Callable[..., object]":
        return lambda *arguments: getattr(current[-1], name)(*arguments)

    fake_os = SimpleNamespace(
        **{name: getattr(os, name) for name in dir(os) if name.startswith("O_")},
        **{name: call(name) for name in ("open", "fstat", "read", "write", "close", "rename", "unlink")},
        strerror=os.strerror,
        umask=lambda mask: mask,
        getuid=lambda: 0,
        urandom=lambda size: bytes([current[-1].running]) * size,
    )
    fake_fcntl = SimpleNamespace(flock=call("flock"), LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
    no_signals = SimpleNamespace(
        signal=lambda *_: None, setitimer=lambda *_: None, SIGALRM=14, ITIMER_REAL=0, SIG_DFL=0
    )
    monkeypatch.setattr(files, "os", fake_os)
    monkeypatch.setattr(claim, "os", fake_os)
    monkeypatch.setattr(claim, "fcntl", fake_fcntl)
    monkeypatch.setattr(claim, "_signal", no_signals)

    def make(count: int) -> World:
        current[:] = [World(count)]
        return current[-1]

    yield make


def explore(
    make_world: "Callable[[int], World]", count: int, with_crashes: bool, with_deadlines: bool
) -> "tuple[int, list[tuple[list[tuple[str, int]], World]]]":
    """Every reachable state once; gives how many there are, and each ended world with the schedule that led to it."""
    seen: set[object] = set()
    ended: list[tuple[list[tuple[str, int]], World]] = []
    todo: list[list[tuple[str, int]]] = [[]]
    while todo:
        schedule = todo.pop()
        world = make_world(count)
        for action in schedule:
            world.do(action)
        key = world.key()
        if key in seen:
            continue
        seen.add(key)
        actions = world.actions(with_crashes and len(world.crashed) < count, with_deadlines)
        todo += [[*schedule, action] for action in actions]
        if not actions:
            ended.append((schedule, world))
    return len(seen), ended


CASES = [(1, True, False), (2, False, True), (2, True, True), (3, False, False)]


@pytest.mark.parametrize(("count", "with_crashes", "with_deadlines"), CASES)
def test_one_decision_whole_files_and_nobody_left_waiting(
    make_world: "Callable[[int], World]", count: int, with_crashes: bool, with_deadlines: bool
) -> None:
    states, ended = explore(make_world, count, with_crashes, with_deadlines)
    assert states > 20
    assert ended
    for schedule, world in ended:
        ends = [task.end for number, task in enumerate(world.tasks) if number not in world.crashed]
        # Nobody is left over: whoever has not crashed came to an end, also when the holder died.
        assert None not in ends, schedule
        outcomes = {end for end in ends if end != "timeout"}
        decisions = len(world.decided)
        # A second decision only where the first one's task died; and all who were answered were answered alike.
        assert decisions <= 1 + len(world.crashed), schedule
        assert len(outcomes) <= 1, schedule
        if not with_crashes and not with_deadlines:
            assert decisions == 1
            assert len(ends) == count
        if not world.crashed:
            # No temporary file stays, and what is published is whole.
            assert sorted(world.names) == [PATH, PATH + cache.LOCK_SUFFIX], schedule
        if PATH in world.names:
            found = cache.unpack(world.names[PATH].data, b"name")
            assert found, schedule
            assert not outcomes or outcomes == {found.directives}, schedule


def test_the_model_finds_a_protocol_without_the_second_look(
    make_world: "Callable[[int], World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test of the test: a task that does not read again under the lock decides a second time.
    monkeypatch.setattr(cache, "stored", lambda _path: None)
    _, ended = explore(make_world, 2, False, False)
    assert any(len(world.decided) > 1 for _, world in ended)
