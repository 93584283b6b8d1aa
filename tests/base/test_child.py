# SPDX-License-Identifier: GPL-2.0-or-later
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.base import child
from guard.base.deadline import Deadline
from guard.base.faults import NodeFault
from guard.base.limits import POST_KILL_WAIT_SECONDS
from guard.base.watch import Watch

ROOT = Path(__file__).parent.parent.parent
SH = b"/bin/sh"
ENVIRON = {b"PATH": b"/usr/bin:/bin"}


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch() as opened:
        yield opened


def sh(script: bytes, bounds: "dict[int, int] | None" = None, **more: object) -> child.Child:
    return child.program([SH, b"-c", script], ENVIRON, {1: 1000} if bounds is None else bounds, **more)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    end_s = time.monotonic() + 120
    while is_alive(pid) and time.monotonic() < end_s:
        time.sleep(0.01)
    return not is_alive(pid)


def test_a_program_gets_exactly_its_arguments_and_environment_and_gives_its_output(watch: Watch) -> None:
    run = child.program(
        [b"/usr/bin/env", b"-0"], {b"A": b"\xff\n", b"PATH": b"/usr/bin"}, {1: 1000, 2: 1000}, stdin=b"unread"
    )
    child.wait([run], Deadline(120), watch)
    assert (run.status, bytes(run.outputs[1]), bytes(run.outputs[2])) == (0, b"A=\xff\n\0PATH=/usr/bin\0", b"")


@pytest.mark.parametrize(
    ("script", "status"), [(b"exit 3", 3), (b"kill -9 $$", -9), (b"kill -ILL $$", -signal.SIGILL), (b"", 0)]
)
def test_the_status_is_the_exit_code_or_minus_the_signal(watch: Watch, script: bytes, status: int) -> None:
    run = sh(script)
    child.wait([run], Deadline(120), watch)
    assert run.status == status


def test_a_program_that_is_not_there_ends_with_127(watch: Watch) -> None:
    run = child.program([b"/nonexistent"], {}, {1: 10})
    child.wait([run], Deadline(120), watch)
    assert run.status == 127


def test_stdin_larger_than_a_pipe_reaches_the_program(watch: Watch) -> None:
    run = child.program([b"/usr/bin/wc", b"-c"], ENVIRON, {1: 100}, stdin=b"x" * 1_000_000)
    child.wait([run], Deadline(120), watch)
    assert run.outputs[1] == b"1000000\n"


def test_a_program_has_no_fd_but_those_it_was_given(watch: Watch) -> None:
    inherited = [os.dup(0) for _ in range(5)]
    for fd in inherited:
        os.set_inheritable(fd, True)
    run = sh(b"n=0; while [ $n -lt 40 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n + 1)); done", {1: 100, 3: 100})
    child.wait([run], Deadline(120), watch)
    for fd in inherited:
        os.close(fd)
    assert run.outputs[1].split() == [b"0", b"1", b"2", b"3"]


def test_a_program_starts_with_pythons_ignored_signals_at_their_default(watch: Watch) -> None:
    run = sh(b"grep SigIgn /proc/self/status; grep SigBlk /proc/self/status")
    child.wait([run], Deadline(120), watch)
    ignored, blocked = (int(line.split()[1], 16) for line in run.outputs[1].splitlines())
    ours = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    # Of any other, whoever started us may think as he likes.
    assert not ignored & sum(1 << (number - 1) for number in ours)
    assert blocked == 0


def test_only_the_tail_of_a_long_output_is_kept_and_that_is_said(watch: Watch) -> None:
    run = sh(b"i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i + 1)); done", {1: 100})
    child.wait([run], Deadline(120), watch)
    assert run.overflowed
    assert len(run.outputs[1]) == 100
    assert run.outputs[1].endswith(b"2998\n2999\n")


def test_merged_stderr_comes_in_order_with_stdout(watch: Watch) -> None:
    run = sh(b"echo a; echo b >&2; echo c", merge_stderr=True)
    child.wait([run], Deadline(120), watch)
    assert run.outputs[1] == b"a\nb\nc\n"


def test_a_call_gives_what_the_function_gives(watch: Watch) -> None:
    run = child.call(lambda: b"\0answer" * 20000, 1_000_000)
    child.wait([run], Deadline(120), watch)
    assert (run.status, bytes(run.outputs[1])) == (0, b"\0answer" * 20000)


def test_a_call_that_raises_ends_with_127(watch: Watch) -> None:
    run = child.call(lambda: (_ for _ in ()).throw(OSError("no")), 10)
    child.wait([run], Deadline(120), watch)
    assert run.status == 127


def test_a_call_that_never_returns_is_killed_at_the_deadline(watch: Watch) -> None:
    def never() -> bytes:
        time.sleep(1000)
        return b""

    run = child.call(never, 10)
    with pytest.raises(NodeFault) as caught:
        child.wait([run], Deadline(0.2), watch)
    assert caught.value.code == "timeout"
    assert gone(run.pid)


def test_a_program_that_ignores_sigterm_dies_with_its_group(watch: Watch, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = b'trap "" TERM; sleep 1000 & echo $$ $! >%s.new; mv %s.new %s; sleep 1000' % ((os.fsencode(pids),) * 3)
    run = sh(script)
    while not pids.exists():
        time.sleep(0.01)
    with pytest.raises(NodeFault):
        child.wait([run], Deadline(0.1), watch)
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_daemon_that_keeps_the_pipe_open_is_not_waited_for(watch: Watch) -> None:
    run = sh(b"setsid sleep 1000 & echo $!")
    begin = time.monotonic()
    child.wait([run], Deadline(120), watch)
    pid = int(run.outputs[1])
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)
    # No timing of ours: a wait for end of file would have lasted until the deadline.
    assert time.monotonic() - begin < 110


def test_a_lingering_reader_waits_for_what_a_descendant_still_writes(watch: Watch) -> None:
    run = sh(b"(sleep 0.5; echo late) & echo early", linger_s=30)
    child.wait([run], Deadline(120), watch)
    assert run.outputs[1] == b"early\nlate\n"


def test_a_lingering_reader_gives_up_on_a_descendant_that_stays(watch: Watch) -> None:
    run = sh(b"sleep 1000 & echo $!", linger_s=0.3)
    child.wait([run], Deadline(120), watch)
    os.kill(int(run.outputs[1]), signal.SIGKILL)
    assert run.status == 0


def test_a_flood_does_not_keep_the_deadline_waiting(watch: Watch) -> None:
    run = child.program([b"/usr/bin/yes"], ENVIRON, {1: 1000})
    assert select.select(list(run._pipes), [], [], 120)[0]
    with pytest.raises(NodeFault) as caught:
        child.wait([run], Deadline(0.3), watch)
    assert caught.value.code == "timeout"
    assert len(run.outputs[1]) == 1000


def test_a_program_that_does_not_read_its_stdin_is_still_waited_for(watch: Watch) -> None:
    run = child.program([SH, b"-c", b"exit 4"], ENVIRON, {1: 10}, stdin=b"x" * 1_000_000)
    child.wait([run], Deadline(120), watch)
    assert run.status == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_stop_kills_the_children_and_is_told_from_the_deadline(watch: Watch, number: int) -> None:
    run = sh(b"sleep 1000")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(NodeFault) as caught:
        child.wait([run], Deadline(120), watch)
    timer.join()
    assert caught.value.code == "terminated"
    assert gone(run.pid)


def test_a_signal_that_came_before_the_wait_is_not_lost(watch: Watch) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    run = sh(b"sleep 1000")
    with pytest.raises(NodeFault) as caught:
        child.wait([run], Deadline(120), watch)
    assert caught.value.code == "terminated"


def test_a_child_that_outlives_its_kill_is_given_up_after_the_post_kill_wait(watch: Watch) -> None:
    # A process that cannot be killed cannot be had here; one that is not ours to see dying is as good: its session is
    # its own, and the pid that we wait for is stopped from ever being reaped by a fake kill.
    run = sh(b"sleep 1000")
    real_kill, real_killpg = os.kill, os.killpg
    try:
        os.kill = os.killpg = lambda *_: None
        begin = time.monotonic()
        with pytest.raises(NodeFault):
            child.wait([run], Deadline(0.1), watch)
        assert time.monotonic() - begin >= POST_KILL_WAIT_SECONDS
        assert run.status is None
    finally:
        os.kill, os.killpg = real_kill, real_killpg
        os.killpg(run.pid, signal.SIGKILL)
        os.waitpid(run.pid, 0)


HARNESS = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from guard.arch.main import hold_standard_fds
from guard.base import child
from guard.base.deadline import Deadline
from guard.base.watch import Watch
hold_standard_fds()
with Watch() as watch:
    run = child.program([b"/bin/sh", b"-c", b"echo export A=1; echo export B=2 >&2; exit 5"], {{}}, {{}})
    child.wait([run], Deadline(120), watch)
os.write(1, b"status %d" % run.status)
"""


@pytest.mark.parametrize("redirect", ["", "<&- 2>&-", "<&-", "2>&-"])
def test_a_child_cannot_write_to_our_stdout_or_stderr(tmp_path: Path, redirect: str) -> None:
    script = tmp_path / "harness.py"
    script.write_text(HARNESS)
    command = f"exec {sys.executable} -I {script} {redirect}"
    run = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.stdout == b"status 5"


def test_no_fd_is_left_behind(watch: Watch) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        runs = [sh(b"echo a", {1: 10, 2: 10, 3: 10}, stdin=b"x"), child.call(lambda: b"b", 10)]
        child.wait(runs, Deadline(120), watch)
        with pytest.raises(NodeFault):
            child.wait([sh(b"sleep 9", stdin=b"x" * 100_000)], Deadline(0.05), watch)
    # Threads of other tests may have closed what they had.
    assert set(os.listdir("/proc/self/fd")) <= set(before)
