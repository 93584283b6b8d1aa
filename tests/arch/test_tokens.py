# SPDX-License-Identifier: GPL-2.0-or-later
"""Every token of EESSI_ARCH_GUARD_FAILED made to happen for real, in both modes, on the built .pyz: exit 0, the marker,
one line that says what to do, and the environment as it was."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.base.faults import SENTENCES
from guard.base.limits import POST_KILL_WAIT_SECONDS
from tests.arch import slurm_reader
from tests.conftest import need_program
from tests.eessi.tree import ZEN2, ZEN4, Tree

Environ = dict[bytes, bytes]
MODES = ["prolog", "shell"]


@pytest.fixture
def moved(tree: Tree) -> Environ:
    """A user's environment from a zen4 node, on a zen2 node."""
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    environ[b"SLURM_JOB_START_TIME"] = b"1"
    return environ


def read(mode: str, environ: Environ, out: bytes, err: bytes) -> "tuple[Environ, bytes]":
    """The task's environment and what its user is told."""
    if mode == "prolog":
        assert err == b""
        return slurm_reader.applied(environ, out, slurm_reader.WHOLE)
    script = b'eval "$(/bin/cat)"; exec /usr/bin/env -0'
    run = subprocess.run(["/bin/bash", "--norc", "-c", script], input=out, env=environ, stdout=subprocess.PIPE)
    return dict(entry.partition(b"=")[::2] for entry in run.stdout.split(b"\0")[:-1]), err


def assert_failed(mode: str, environ: Environ, run: "subprocess.CompletedProcess[bytes]", token: str) -> None:
    after, told = read(mode, environ, run.stdout, run.stderr)
    marker = b"x86_64/amd/zen4->" + token.encode()
    assert run.returncode == 0
    assert after.pop(b"EESSI_ARCH_GUARD_FAILED", None) == marker, (run.stdout[-500:], run.stderr[-500:])
    own = {b"_", b"SHLVL", b"PWD", b"OLDPWD"}
    assert {k: v for k, v in after.items() if k not in own} == {k: v for k, v in environ.items() if k not in own}
    assert told.count(b"\n") == 1
    assert told.startswith(b"eessi-arch-guard: NOT reloaded on ")
    assert SENTENCES[token].encode() in told


def run(pyz: Path, mode: str, environ: Environ, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    call = [str(pyz), *(["--shell"] if mode == "shell" else []), *arguments]
    return subprocess.run(call, env=environ, capture_output=True, check=False)


def detector(tree: Tree, text: str) -> None:
    (tree.init / "eessi_archdetect.sh").write_text(text)


def no_folder(tree: Tree, environ: Environ) -> None:
    for cpu in tree.cpus:
        (tree.software(cpu) / "software").rename(tree.software(cpu) / "moved")


def loop(tree: Tree, environ: Environ) -> None:
    (tree.software(ZEN2) / "software").rename(tree.software(ZEN2) / "moved")
    (tree.software(ZEN2) / "software").symlink_to("software")


def lmod_at(path: str) -> "Callable[[Tree, Environ], None]":
    def change(tree: Tree, environ: Environ) -> None:
        (tree.root / "plain").touch()
        environ[b"LMOD_CMD"] = path.replace("ROOT", str(tree.root)).encode()

    return change


def without_lmod(tree: Tree, environ: Environ) -> None:
    del environ[b"LMOD_CMD"]


def one_byte_too_long(tree: Tree, environ: Environ) -> None:
    # The one length that the kernel still takes (name + value + 2 <= 131,072) and Slurm does not.
    lmod = tree.root / "lmod"
    real = environ[b"LMOD_CMD"].decode()
    lmod.write_text(f'#!/bin/sh\n"{real}" "$@"\n[ "$2" != load ] || echo "export BIG=$(printf %0131067d 0)"\n')
    lmod.chmod(0o755)
    environ[b"LMOD_CMD"] = os.fsencode(lmod)


def loaded(names: str) -> "Callable[[Tree, Environ], None]":
    def change(tree: Tree, environ: Environ) -> None:
        environ[b"LOADEDMODULES"] = names.encode()

    return change


def lmod_says(text: str) -> "Callable[[Tree, Environ], None]":
    def change(tree: Tree, environ: Environ) -> None:
        lmod = tree.root / "lmod"
        lmod.write_text("#!/bin/sh\n" + text)
        lmod.chmod(0o755)
        environ[b"LMOD_CMD"] = os.fsencode(lmod)

    return change


WAYS: "dict[str, tuple[str, Callable[[Tree, Environ], None]]]" = {
    "no folder for any target": ("no-software-dir", no_folder),
    "a link loop where the software should be": ("no-software-dir", loop),
    "EESSI_PREFIX relative": ("no-software-dir", lambda _, environ: environ.update({b"EESSI_PREFIX": b"../x"})),
    "EESSI_PREFIX missing": ("no-software-dir", lambda _, environ: environ.__delitem__(b"EESSI_PREFIX")),
    "EESSI_PREFIX elsewhere": ("no-software-dir", lambda _, environ: environ.update({b"EESSI_PREFIX": b"/a\nb"})),
    "a detector that fails": ("archdetect-failed", lambda tree, _: detector(tree, "exit 1")),
    "a detector that prints junk": ("archdetect-failed", lambda tree, _: detector(tree, "echo export A=1")),
    "no detector": ("archdetect-failed", lambda tree, _: (tree.init / "eessi_archdetect.sh").unlink()),
    "a directive in a name": ("unsafe-module-name", loaded("EESSI/2023.06:a\nexport X=1")),
    "no EESSI module": ("unsafe-module-name", loaded("App/1.0")),
    "two EESSI modules": ("unsafe-module-name", loaded("EESSI/2023.06:EESSI/2025.06")),
    "an option as a name": ("unsafe-module-name", loaded("EESSI/2023.06:--force")),
    "a value too long for any environment": ("unsafe-environment", one_byte_too_long),
    "LMOD_CMD missing": ("lmod-unavailable", without_lmod),
    "LMOD_CMD relative": ("lmod-unavailable", lmod_at("lmod")),
    "LMOD_CMD of another node": ("lmod-unavailable", lmod_at("/nonexistent/lmod")),
    "LMOD_CMD a folder": ("lmod-unavailable", lmod_at("ROOT")),
    "LMOD_CMD not executable": ("lmod-unavailable", lmod_at("ROOT/plain")),
    "Lmod that ends the reload shell": ("restore-failed", lmod_says("echo exit 9")),
    "Lmod that kills the reload shell": ("restore-failed", lmod_says("echo 'kill -9 $$'")),
    "Lmod that kills the helper": ("restore-failed", lmod_says("echo 'kill -9 $PPID; sleep 60'")),
    "a detector that hangs": ("timeout", lambda tree, _: detector(tree, "sleep 1000")),
    "Lmod that hangs": ("timeout", lmod_says("exec sleep 1000")),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_each_token(pyz: Path, tree: Tree, moved: Environ, way: str, mode: str) -> None:
    token, change = WAYS[way]
    change(tree, moved)
    arguments = ["--timeout", "2"] if token == "timeout" else []
    assert_failed(mode, moved, run(pyz, mode, moved, *arguments), token)


def test_no_token_is_left_out() -> None:
    shown = {token for token, _ in WAYS.values()} | {"terminated", "modules-missing"}
    assert shown == set(SENTENCES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", ["EIO", "ENOTCONN", "ESTALE", "EPERM"])
def test_a_sick_mount_under_the_walk(pyz: Path, tree: Tree, moved: Environ, mode: str, number: str) -> None:
    strace = need_program("strace")
    path = tree.software(ZEN2) / "software"
    inject = f"inject=?stat,newfstatat,statx:error={number}"
    call = [strace, "-f", "-qq", "-o", "/dev/null", "-e", inject, "-P", str(path), str(pyz)]
    done = subprocess.run([*call, *(["--shell"] if mode == "shell" else [])], env=moved, capture_output=True)
    assert_failed(mode, moved, done, "no-software-dir")
    assert os.strerror(getattr(__import__("errno"), number)).encode() in done.stdout + done.stderr


# Deadlines in seconds: the first that is long enough to come as far as a test wants on this machine.
TIMEOUTS = ["2", "8", "32", "128"]
PHASES: "dict[str, Callable[[Tree, Environ, str], None]]" = {
    "detecting": lambda tree, _, flag: detector(tree, f'trap "" TERM; touch "{flag}"; sleep 1000'),
    "purging": lambda tree, environ, flag: lmod_says(f'[ "$2" = load ] || touch "{flag}"; exec sleep 1000')(
        tree, environ
    ),
    "loading": lambda tree, environ, flag: lmod_says(f'[ "$2" = --force ] && exit; touch "{flag}"; exec sleep 1000')(
        tree, environ
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["deadline", "SIGTERM"])
def test_the_deadline_and_sigterm_at_each_phase(
    pyz: Path, tree: Tree, moved: Environ, phase: str, mode: str, how: str
) -> None:
    flag = tree.root / "reached"
    PHASES[phase](tree, moved, str(flag))
    # Straight in Python: the signal is for the guard, not for the sh that waits for it.
    call = [sys.executable, "-I", str(pyz), *(["--shell"] if mode == "shell" else []), "--timeout"]
    for timeout in TIMEOUTS if how == "deadline" else ["600"]:
        with subprocess.Popen([*call, timeout], env=moved, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as guard:
            while not flag.exists() and guard.poll() is None:
                time.sleep(0.01)
            if how == "SIGTERM":
                guard.send_signal(signal.SIGTERM)
            out, err = guard.communicate(timeout=240)
        done = subprocess.CompletedProcess(call, guard.returncode, out, err)
        assert_failed(mode, moved, done, "timeout" if how == "deadline" else "terminated")
        if flag.exists():
            break
    assert flag.exists()
    # Killed is not yet gone; what was missed by the kill would sleep on.
    end_s = time.monotonic() + 120
    while processes_with(str(tree.root)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not processes_with(str(tree.root))


def processes_with(text: str) -> "list[str]":
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(command)
    return found


def test_a_mount_that_hangs_under_the_walk_ends_at_the_deadline(pyz: Path, tree: Tree, moved: Environ) -> None:
    strace = need_program("strace")
    # Not for ever: strace itself waits until its delay is over, also when what it delays has been killed.
    inject = "inject=?stat,newfstatat,statx:delay_enter=6000000"
    call = [strace, "-f", "-qq", "-o", "/dev/null", "-e", inject, "-P", str(tree.software(ZEN2) / "software")]
    done = subprocess.run([*call, str(pyz), "--timeout", "2"], env=moved, stdout=subprocess.PIPE, timeout=120)
    assert_failed("prolog", moved, subprocess.CompletedProcess(call, done.returncode, done.stdout, b""), "timeout")


@pytest.mark.parametrize("mode", MODES)
def test_a_detector_that_ignores_sigterm_and_leaves_a_grandchild_with_its_stdout(
    pyz: Path, tree: Tree, moved: Environ, mode: str
) -> None:
    detector(tree, 'trap "" TERM; setsid sleep 1000 & sleep 1000')
    begin = time.monotonic()
    done = run(pyz, mode, moved, "--timeout", "1")
    assert_failed(mode, moved, done, "timeout")
    # The seed's worst case; the grandchild, in a session of its own, is beyond the kill.
    assert time.monotonic() - begin < 1 + 3 * POST_KILL_WAIT_SECONDS
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "cmdline").exists():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(tree.root) in environ:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)


def test_a_failure_of_a_passing_kind_is_told_again_by_the_next_task_and_a_lasting_one_is_not_repeated(
    pyz: Path, tree: Tree, moved: Environ
) -> None:
    moved.update({b"SLURM_JOB_ID": b"9", b"TMPDIR": os.fsencode(tree.root)})
    detector(tree, f"echo x >>{tree.root}/calls; sleep 1000")
    for timeout in TIMEOUTS:
        (tree.root / "calls").write_text("")
        for _ in range(2):
            assert_failed("prolog", moved, run(pyz, "prolog", moved, "--timeout", timeout), "timeout")
        calls = (tree.root / "calls").read_text().count("x")
        if calls == 4:
            break
    assert calls == 4  # both detectors, twice
    detector(tree, f"echo x >>{tree.root}/calls; exit 1")
    for _ in range(2):
        assert_failed("prolog", moved, run(pyz, "prolog", moved), "archdetect-failed")
    assert (tree.root / "calls").read_text().count("x") == calls + 2
