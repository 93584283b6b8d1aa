# SPDX-License-Identifier: GPL-2.0-or-later
"""The copy loop outside slurmstepd, watched by sanitizers and valgrind, with the real daemon and worker."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, need, need_program
from tests.relay.rig import JOB_ID, Rig, eventually
from tests.spank.site import output
from tests.spank.standin import standin

pytestmark = pytest.mark.xdist_group("spank-slurm")

_SOURCE = ROOT / "build" / "spank"
_TASKS = 6
_TEXT = (
    "i=0; while [ $i -lt 15 ]; do seq -f $0.$i.%060.0f 300; echo err $0.$i >&2; i=$((i+1)); sleep 0.02; done;"
    " head -c 200000 /dev/zero | tr '\\0' z"
)
# Wrappers: ThreadSanitizer's places in memory are fixed, the kernel's are not; valgrind sees what is never written.
WATCHERS = {
    "address": (["-fsanitize=address,undefined"], []),
    "thread": (["-fsanitize=thread"], ["setarch", "-R"]),
    "valgrind": ([], ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--track-fds=yes"]),
}
# Valgrind 3.16 tells of those too that are open in every program.
INHERITED = re.compile(
    r"==\d+== FILE DESCRIPTORS: 3 open at exit\.\n"
    r"(==\d+== Open file descriptor [012]:.*\n==\d+==    <inherited from parent>\n==\d+== \n)+==\d+== \n"
)


def _whole(task: int) -> bytes:
    lines = (f"{task}.{block}.{line:060}\n" for block in range(15) for line in range(1, 301))
    return "".join(lines).encode() + b"z" * 200_000


@pytest.fixture
def rig() -> "Iterator[Rig]":
    made = Rig()
    made.start()
    assert made.event("job_start") == 0
    yield made
    made.close()


def _built(tmp_path: Path, flags: "list[str]", source: Path = _SOURCE) -> Path:
    step = tmp_path / "step"
    sources = [source / name for name in ("frames.c", "link.c", "handover.c", "copier.c")]
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-tsan"]
    subprocess.run(
        ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", f"-I{source}", *warnings, *flags]
        + ["-o", step, ROOT / "tests" / "spank" / "step.c", *sources],
        check=True,
    )
    return step


@pytest.mark.parametrize("is_killed", [False, True], ids=["undisturbed", "worker-killed"])
@pytest.mark.parametrize("name", WATCHERS)
def test_the_copy_loop_is_clean_and_each_file_is_whole_at_its_drain(
    rig: Rig, tmp_path: Path, name: str, is_killed: bool
) -> None:
    need(name, name != "valgrind" or shutil.which("valgrind"))
    flags, wrapper = WATCHERS[name]
    step = _built(tmp_path, flags)
    command = [*wrapper, str(step), str(rig.folder / "control.sock"), str(JOB_ID), str(_TASKS), str(tmp_path)]
    process = subprocess.Popen(
        [*command, "sh", "-c", _TEXT, "number"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if is_killed:
        eventually(lambda: (tmp_path / "f.0").exists() and (tmp_path / "f.0").stat().st_size > 50_000)
        for worker in rig.workers():
            os.kill(worker, signal.SIGKILL)
    said, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    if name == "valgrind":
        error = INHERITED.sub("", error)
    # A worker that is killed takes what it had with it; what the tap itself could not send it says.
    assert is_killed or error == ""
    assert not any(word in error for word in ("Sanitizer", "runtime error", "==")), error
    sizes = dict(line.split() for line in said.splitlines())
    assert sizes == {str(task): str(len(_whole(task))) for task in range(_TASKS)}
    assert [(tmp_path / f"f.{task}").read_bytes() for task in range(_TASKS)] == [_whole(task) for task in range(_TASKS)]
    written = sorted((tmp_path / "err").read_text().splitlines())
    assert written == sorted(f"err {task}.{block}" for task in range(_TASKS) for block in range(15))
    rig.ended()
    if not is_killed:
        records = rig.records()
        assert [output(records, task=task + 100, step_id="0") for task in range(_TASKS)] == [
            _whole(task) for task in range(_TASKS)
        ]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGCONT], ids=["stopped", "running"])
def test_a_step_that_the_daemon_does_not_take_is_left_alone(rig: Rig, tmp_path: Path, number: signal.Signals) -> None:
    step = _built(tmp_path, ["-fsanitize=address,undefined"])
    assert rig.node
    rig.node.send_signal(number)
    unknown = str(JOB_ID + 1)
    ran = subprocess.run([step, rig.folder / "control.sock", unknown, "1", tmp_path, "true", "x"], capture_output=True)
    rig.node.send_signal(signal.SIGCONT)
    assert ran.returncode == 3
    assert (b"does not take the step" in ran.stderr) == (number == signal.SIGSTOP)


# What a step may be held in all, and what a busy machine may add, in s. Without a cap it would be held for ever, or for
# the five seconds of its end.
_HELD_S = 2.0
_SLACK_S = 2.0


def _lines(size_bytes: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(size_bytes // 10))


def _run(
    folder: Path, step: Path, pauses_s: "Callable[[int], float | None] | None", written: bytes
) -> "tuple[float, subprocess.CompletedProcess[bytes], bytes]":
    """How long a step took, in s, whose task writes this; what came of it; what it sent to a stand-in."""
    folder.mkdir()
    (folder / "written").write_bytes(written)
    # In pieces as long as a pipe takes: frames are as long as they can be.
    task = ("sh", "-c", 'cat "$0"', str(folder / "written"), "number")
    with standin(folder / "control.sock", pauses_s) as relay:
        begun_s = time.monotonic()
        ran = subprocess.run([step, folder / "control.sock", "1", "1", folder, *task], capture_output=True, timeout=240)
        took_s = time.monotonic() - begun_s
        return took_s, ran, relay.data()


def test_a_daemon_that_never_answers_holds_a_step_for_a_moment(tmp_path: Path) -> None:
    took_s, ran, _ = _run(tmp_path / "run", _built(tmp_path, []), None, b"")
    assert ran.returncode == 3 and b"does not take the step" in ran.stderr
    assert took_s < _HELD_S / 2 + _SLACK_S


@pytest.mark.parametrize(
    ("pauses_s", "size_bytes"),
    [([], 1_000_000), ([1.5, 0.0, 0.0, 0.0, 0.0, 0.0] * 3, 1_500_000), ([], 300_000)],
    ids=["that takes nothing", "that hangs again and again", "that takes nothing, seen at the step's end only"],
)
def test_a_worker_holds_a_step_two_seconds_in_all(tmp_path: Path, pauses_s: "list[float]", size_bytes: int) -> None:
    step, written = _built(tmp_path, []), _lines(size_bytes)
    usual_s, _, _ = _run(tmp_path / "usual", step, lambda _: 0.0, written)
    pauses = iter(pauses_s)
    took_s, ran, data = _run(tmp_path / "hung", step, lambda _: next(pauses, None), written)
    assert ran.returncode == 0
    assert (tmp_path / "hung" / "f.0").read_bytes() == written
    assert written.startswith(data) and len(data) < len(written)
    assert took_s - usual_s < _HELD_S + _SLACK_S


def test_a_worker_that_is_slow_but_takes_frames_is_never_given_up(tmp_path: Path) -> None:
    """64 KiB in 0.12 s: three such frames fill its socket, which is not writable before all three are taken."""
    written = _lines(2_000_000)
    took_s, ran, data = _run(tmp_path / "run", _built(tmp_path, []), lambda size: 0.12 * size / 65536, written)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert data == (tmp_path / "run" / "f.0").read_bytes() == written
    assert took_s > _HELD_S


def test_gcc_finds_nothing_to_say(tmp_path: Path) -> None:
    said = subprocess.run(["gcc", "-dumpversion"], stdout=subprocess.PIPE, check=True).stdout
    if int(said.split(b".")[0]) < 12:
        pytest.skip("gcc 10 takes what a structure holds for lost")
    subprocess.run(["make", "-s", "-C", _SOURCE, "analyze"], check=True)


def test_numbers_that_both_sides_have_are_the_same() -> None:
    from guard.relay import frames, limits

    words = [line.split() for line in (_SOURCE / "limits.h").read_text().splitlines() if line.startswith("#define")]
    ours = {name: value for _, name, value, *_ in (word for word in words if len(word) == 3)}
    theirs = {**vars(limits), "FRAME_HEADER_BYTES": frames.HEADER_BYTES}
    shared = {name: int(value) for name, value in ours.items() if name in theirs}
    assert len(shared) == 15
    assert shared == {name: theirs[name] for name in shared}


def test_a_file_whose_server_hangs_is_waited_for_past_the_limit_as_its_task_would(tmp_path: Path) -> None:
    strace = need_program("strace")
    source = tmp_path / "source"
    shutil.copytree(_SOURCE, source)
    limits = (source / "limits.h").read_text()
    assert "ORIGINAL_MOST_MS 300000\n" in limits
    (source / "limits.h").write_text(limits.replace("ORIGINAL_MOST_MS 300000", "ORIGINAL_MOST_MS 2000"))
    step, written = _built(tmp_path, [], source), _lines(60_000)  # it all fits into the pipe
    (tmp_path / "written").write_bytes(written)
    call = [strace, "-f", "-qq", "-o", "/dev/null", "-P", str(tmp_path / "f.0")]
    call += ["-e", "inject=write:delay_enter=6000000:when=1", str(step), str(tmp_path / "control.sock"), "1", "1"]
    with standin(tmp_path / "control.sock", lambda _: 0.0) as relay:
        command = [*call, str(tmp_path), "sh", "-c", 'cat "$0"', str(tmp_path / "written"), "number"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (ran.returncode, ran.stdout) == (0, f"0 {len(written)}\n")
        assert relay.data() == written
    assert ran.stderr == "log: relay: a file of the step takes nothing, the step waits for it as its task would\n"
