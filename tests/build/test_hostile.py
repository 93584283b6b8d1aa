# SPDX-License-Identifier: GPL-2.0-or-later
"""The built .pyz deaf to the job's environment: whatever the job has set, the right output and exit 0, in each mode and
under each sh that may be /bin/sh."""

import contextlib
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.arch import slurm_reader
from tests.conftest import need_program
from tests.eessi.test_against_lmod import crashing_tools
from tests.eessi.tree import ZEN2, ZEN4, Tree

Environ = dict[bytes, bytes]
MODES = ["prolog", "shell", "chain"]
MARKER = b"EESSI_ARCH_GUARD_RELOADED=x86_64/amd/zen4->x86_64/amd/zen2"


@pytest.fixture
def moved(tree: Tree) -> Environ:
    tree.node(ZEN4)
    environ = {**tree.login(), b"SLURM_JOB_START_TIME": b"1"}
    tree.node(ZEN2)
    return environ


def arguments(mode: str, folder: Path) -> "list[str]":
    if mode != "chain":
        return ["--shell"] if mode == "shell" else []
    prolog = folder / "site_prolog"
    prolog.write_text("#!/bin/dash\necho export SITE=1\n")
    prolog.chmod(0o755)
    return ["--chain", str(prolog)]


def assert_right(mode: str, run: "subprocess.CompletedProcess[bytes]") -> None:
    assert run.returncode == 0, run
    assert (b"export " + MARKER.replace(b"=", b"='" if mode == "shell" else b"=")) in run.stdout, run
    assert (b"export SITE=1\n" in run.stdout) == (mode == "chain")
    said = run.stderr if mode == "shell" else run.stdout
    assert b"eessi-arch-guard: reloaded 5 modules on " in said


FAKE = b"raise SystemExit(9)\n"


def fake_modules(folder: Path) -> bytes:
    for name in ("os", "json", "sitecustomize", "usercustomize", "encodings", "guard", "select", "marshal"):
        (folder / f"{name}.py").write_bytes(FAKE)
    return os.fsencode(folder)


def broken_libraries(folder: Path) -> bytes:
    """What Debian's Python is linked with, and neither sh, bash nor Lmod's Lua is, as a file that no loader takes."""
    (folder / "libexpat.so.1").write_bytes(b"built for another machine")
    return os.fsencode(folder)


HOSTILE: "dict[str, Callable[[Path], Environ]]" = {
    "SHIV_ROOT": lambda folder: {b"SHIV_ROOT": b"/proc/1"},
    "SHIV_ENTRY_POINT": lambda folder: {b"SHIV_ENTRY_POINT": b"os:abort"},
    "SHIV_INTERPRETER": lambda folder: {b"SHIV_INTERPRETER": b"1"},
    "SHIV_MODULE": lambda folder: {b"SHIV_MODULE": b"this"},
    "SHIV_PREPEND_PYTHONPATH": lambda folder: {b"SHIV_PREPEND_PYTHONPATH": fake_modules(folder)},
    "PYTHONHOME": lambda folder: {b"PYTHONHOME": b"/nonexistent"},
    "PYTHONPATH": lambda folder: {b"PYTHONPATH": fake_modules(folder)},
    "PYTHONSTARTUP and the like": lambda folder: {
        b"PYTHONSTARTUP": fake_modules(folder) + b"/os.py",
        b"PYTHONINSPECT": b"1",
        b"PYTHONWARNINGS": b"error",
        b"PYTHONVERBOSE": b"1",
        b"PYTHONDEBUG": b"1",
        b"PYTHONIOENCODING": b"xx",
        b"PYTHONUTF8": b"x",
        b"PYTHONMALLOC": b"xx",
        b"PYTHONTRACEMALLOC": b"5",
        b"PYTHONUSERBASE": fake_modules(folder),
        b"PYTHONPLATLIBDIR": b"xx",
        b"PYTHONEXECUTABLE": b"/nonexistent",
        b"PYTHONCASEOK": b"1",
    },
    "LD_LIBRARY_PATH": lambda folder: {b"LD_LIBRARY_PATH": broken_libraries(folder)},
    "LUA_INIT": lambda folder: {b"LUA_INIT": b"os.exit(3)", b"LUA_INIT_5_3": b"os.exit(3)"},
    "LUA_PATH": lambda folder: {b"LUA_PATH": b"/x", b"LUA_CPATH": b"/x"},
    "BASH_ENV that exits": lambda folder: {b"BASH_ENV": b"/dev/stdin"},
    "ENV": lambda folder: {b"ENV": fake_modules(folder) + b"/os.py"},
    "SHELLOPTS": lambda folder: {b"SHELLOPTS": b"noexec:errexit:nounset:xtrace:noglob", b"BASHOPTS": b"extdebug"},
    "IFS, CDPATH, PS4": lambda folder: {b"IFS": b"/e", b"CDPATH": b"/", b"PS4": b"export EVIL=1 "},
    "crashing tools first in PATH": lambda folder: {b"PATH": crashing_tools(folder / "crash") + b":/usr/bin:/bin"},
    "no PATH": lambda folder: {b"PATH": b""},
    "a locale that is not there": lambda folder: {b"LC_ALL": b"xx", b"LANG": b"yy", b"LANGUAGE": b"zz"},
    "TMPDIR a file": lambda folder: {b"TMPDIR": fake_modules(folder) + b"/os.py", b"SLURM_JOB_ID": b"1"},
    "TMPDIR missing": lambda folder: {b"TMPDIR": b"/nonexistent", b"SLURM_JOB_ID": b"2"},
    "TMPDIR relative": lambda folder: {b"TMPDIR": b"../..", b"SLURM_JOB_ID": b"3"},
    "TMPDIR with a line break": lambda folder: {b"TMPDIR": b"/tmp\n/x", b"SLURM_JOB_ID": b"4"},
    "TMPDIR read-only": lambda folder: {b"TMPDIR": b"/proc", b"SLURM_JOB_ID": b"5"},
    "no HOME": lambda folder: {b"HOME": b""},
    "POSIXLY_CORRECT": lambda folder: {b"POSIXLY_CORRECT": b"1"},
    "a bad Slurm rank": lambda folder: {b"SLURM_LOCALID": b"0", b"SLURM_JOB_ID": b"../../x\n", b"SLURM_STEP_ID": b"/"},
    "GREP_OPTIONS and LS_COLORS": lambda folder: {b"GREP_OPTIONS": b"-v", b"GREP_COLORS": b"x"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_environment(pyz: Path, moved: Environ, tmp_path: Path, what: str, mode: str) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    environ = {**moved, **HOSTILE[what](folder)}
    before = set(os.listdir("/tmp"))
    run = subprocess.run(
        [str(pyz), *arguments(mode, tmp_path)], env=environ, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert_right(mode, run)
    assert b"EVIL" not in run.stdout + run.stderr
    for name in set(os.listdir("/tmp")) - before:
        if name.startswith(f".eessi-arch-guard.{os.getuid()}."):
            Path("/tmp", name).unlink(missing_ok=True)  # another worker's, perhaps, who sees ours


def test_a_job_that_has_no_home_and_a_deleted_working_folder(pyz: Path, moved: Environ, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    del moved[b"HOME"]
    script = f'cd "{gone}" && rmdir "{gone}" && exec "{pyz}"'
    assert_right("prolog", subprocess.run(["/bin/dash", "-c", script], env=moved, capture_output=True))


def limited(which: int, value: int) -> "Callable[[], None]":
    return lambda: resource.setrlimit(which, (value, value))


LIMITS: "dict[str, Callable[[], object]]" = {
    "umask 777": lambda: os.umask(0o777),
    "16 open files": limited(resource.RLIMIT_NOFILE, 16),
    "no file may grow": limited(resource.RLIMIT_FSIZE, 0),
    "no core": limited(resource.RLIMIT_CORE, 0),
    "SIGPIPE, SIGCHLD and SIGTERM ignored": lambda: [
        signal.signal(number, signal.SIG_IGN) for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM)
    ],
    "all signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", LIMITS)
def test_limits_and_signals_that_the_job_brought(
    pyz: Path, moved: Environ, tmp_path: Path, what: str, mode: str
) -> None:
    call = [str(pyz), *arguments(mode, tmp_path)]
    moved.update({b"SLURM_JOB_ID": b"1", b"TMPDIR": os.fsencode(tmp_path)})
    for _ in range(2):
        run = subprocess.run(call, env=moved, capture_output=True, preexec_fn=LIMITS[what], restore_signals=False)
        assert_right(mode, run)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user whose processes nobody else counts")
@pytest.mark.parametrize("allowed", [1, 2, 3])
def test_where_no_process_can_be_had_the_job_is_told_and_unharmed(
    pyz: Path, moved: Environ, tree: Tree, tmp_path: Path, allowed: int
) -> None:
    copy = Path(f"/tmp/guard-nproc-{os.getpid()}.pyz")
    shutil.copy(pyz, copy)

    def drop() -> None:
        os.setgroups([])
        os.setgid(40077)
        os.setuid(40077)
        resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))

    try:
        run = subprocess.run(["/bin/sh", str(copy)], env=moved, capture_output=True, preexec_fn=drop, timeout=60)
    finally:
        copy.unlink()
    after, _ = slurm_reader.applied(moved, run.stdout, slurm_reader.WHOLE)
    after.pop(b"EESSI_ARCH_GUARD_FAILED", None)
    assert run.returncode in (0, 2)  # 2: a dash that cannot fork is beyond any script
    assert after == moved


def test_a_noexec_or_read_only_mount(pyz: Path, moved: Environ, tmp_path: Path) -> None:
    copy = tmp_path / "guard.pyz"
    shutil.copyfile(pyz, copy)
    copy.chmod(0o444)
    for call in (["/usr/bin/python3", "-I", str(copy)], ["/bin/sh", str(copy)]):
        assert_right("prolog", subprocess.run(call, env=moved, capture_output=True))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o444
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("guard", "__"))) == ["guard.pyz"]


def test_from_the_folder_that_it_lies_in(pyz: Path, moved: Environ) -> None:
    for call in ([f"./{pyz.name}"], ["/bin/sh", pyz.name]):
        assert_right("prolog", subprocess.run(call, env=moved, capture_output=True, cwd=pyz.parent))


# The header, under each sh.

SHELLS = ["dash", "bash as sh", "busybox sh"]
FUNCTIONS = [
    "exec",
    "test",
    "[",
    "command",
    "uname",
    "echo",
    "unset",
    "export",
    "exit",
    "trap",
    "set",
    "case",
    "printf",
    "eval",
]


def shell(name: str, folder: Path) -> "list[str]":
    if name == "busybox sh":
        return [need_program("busybox"), "sh"]
    if name == "bash as sh":
        (folder / "sh").symlink_to("/bin/bash")
        return [str(folder / "sh")]
    return [need_program("dash")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SHELLS)
def test_exported_functions_change_nothing(pyz: Path, moved: Environ, tmp_path: Path, name: str, mode: str) -> None:
    functions = {f"BASH_FUNC_{function}%%".encode(): b"() {  kill -9 $$; }" for function in FUNCTIONS}
    call = [*shell(name, tmp_path), str(pyz), *arguments(mode, tmp_path)]
    run = subprocess.run(call, env={**moved, **functions}, capture_output=True)
    if name == "bash as sh":
        # It complains of `case`, which is a reserved word; Slurm, whose pipe that is too, finds no directive in it.
        assert slurm_reader.applied({}, run.stderr, slurm_reader.WHOLE) == ({}, b"")
    assert_right(mode, run)
    for silent in ({b"PATH": b"/usr/bin"}, {**moved, b"EESSI_ARCH_GUARD": b"off"}):
        quiet = subprocess.run(
            [*call[: -len(arguments(mode, tmp_path)) or None]], env={**silent, **functions}, capture_output=True
        )
        assert (quiet.returncode, quiet.stdout) == (0, b"")


@pytest.mark.parametrize("name", SHELLS)
def test_without_any_python_it_is_one_line_and_exit_0(pyz: Path, moved: Environ, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "x.pyz"
    copy.write_bytes(pyz.read_bytes().replace(b"/usr/bin/python3.", b"/usr/bin/nothing."))
    start = [*shell(name, tmp_path), str(copy)]
    line = b"eessi-arch-guard: skipped, no Python from 3.9 on was found\n"
    run = subprocess.run(start, env=moved, capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"print " + line, b"")
    run = subprocess.run(start, env={**moved, b"SLURM_LOCALID": b"4"}, capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    run = subprocess.run([*start, "--shell"], env=moved, capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", line)


@contextlib.contextmanager
def first_python(pyz: Path, folder: Path) -> "Iterator[tuple[Path, Path]]":
    """A copy that tries another interpreter first: one whose path is as long as the first in the list, so that the
    places in the archive stay right."""
    first = b"/usr/bin/python3.14"
    python = Path(f"/tmp/python{os.getpid() % 10**8:08d}")
    assert len(os.fsencode(python)) == len(first)
    copy = folder / "x.pyz"
    copy.write_bytes(pyz.read_bytes().replace(first, os.fsencode(python), 1))
    try:
        yield copy, python
    finally:
        if python.is_dir():
            python.rmdir()
        else:
            python.unlink()


DAMAGES = ["cut", "empty archive", "zeroed bytecode"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_file_costs_no_task_and_keeps_the_sites_prolog(
    pyz: Path, moved: Environ, tmp_path: Path, damage: str, mode: str
) -> None:
    data = pyz.read_bytes()
    at = data.index(b"PK\3\4")
    copy = tmp_path / "x.pyz"
    if damage == "cut":
        copy.write_bytes(data[: at + 5000])
    elif damage == "empty archive":
        copy.write_bytes(data[:at])
    else:
        places = re.findall(rb'"cpython-\d+": \( *(\d+), *(\d+),', data)
        assert places
        for place in places:
            start, size = int(place[0]) + 100, int(place[1]) - 200
            data = data[:start] + bytes(size) + data[start + size :]
        copy.write_bytes(data)
    run = subprocess.run(["/bin/sh", str(copy), *arguments(mode, tmp_path)], env=moved, capture_output=True)
    assert run.returncode == 0
    if mode == "chain":
        assert run.stdout == b"export SITE=1\n"
    else:
        told = run.stderr if mode == "shell" else run.stdout
        assert re.search(rb"eessi-arch-guard: skipped, /usr/bin/python3\.\d+ ended with status 138\n", told)


def test_where_the_bytecodes_place_does_not_fit_its_modules_are_found_all_the_same(pyz: Path, tmp_path: Path) -> None:
    # As between two versions, when `current` is switched after the header was read.
    data = pyz.read_bytes()
    at = data.index(b"PK\3\4")
    copy = tmp_path / "x.pyz"
    copy.write_bytes(data[:at] + b"x" * 77 + data[at:])
    for command in (["/bin/sh", str(copy)], ["/usr/bin/python3", "-I", str(copy)]):
        told = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert (told.returncode, told.stdout, told.stderr) == (0, "eessi-arch-guard 0.1.0\n", "")


DEATHS = ["kill -ILL $$", "kill -SEGV $$", "kill -BUS $$", "kill -ABRT $$", "kill -KILL $$", "exit 1", "exit 3"]


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("death", DEATHS)
def test_a_python_that_dies_does_not_cost_the_task(
    pyz: Path, moved: Environ, tmp_path: Path, death: str, name: str
) -> None:
    with first_python(pyz, tmp_path) as (copy, python):
        python.write_text(f"#!/bin/dash\n{death}\n")
        python.chmod(0o755)
        run = subprocess.run([*shell(name, tmp_path), str(copy)], env=moved, capture_output=True)
    assert run.returncode == 0
    after, printed = slurm_reader.applied(moved, run.stdout + run.stderr, slurm_reader.WHOLE)
    assert after == moved
    assert printed.startswith(b"eessi-arch-guard: skipped, /tmp/")
    assert b" ended with status " in printed


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(
    "kind", ["a dangling link", "a folder", "not executable", "exec format error", "a missing loader"]
)
def test_an_interpreter_that_is_none_is_passed_over(
    pyz: Path, moved: Environ, tmp_path: Path, kind: str, name: str
) -> None:
    start = shell(name, tmp_path)
    with first_python(pyz, tmp_path) as (copy, python):
        if kind == "a dangling link":
            python.symlink_to("/nonexistent")
        elif kind == "a folder":
            python.mkdir()
        else:
            python.write_bytes(b"#!/nonexistent/loader\n" if "loader" in kind else b"\x7fELF\1\2\3")
            python.chmod(0o644 if kind == "not executable" else 0o755)
        for mode in ("prolog", "chain"):
            run = subprocess.run([*start, str(copy), *arguments(mode, tmp_path)], env=moved, capture_output=True)
            assert run.returncode == 0
            assert b"export " + MARKER in run.stdout
            assert run.stdout.count(b"export SITE=1") == (mode == "chain")


@pytest.mark.parametrize("name", SHELLS)
def test_the_environment_comes_through_the_header_unchanged(pyz: Path, tmp_path: Path, name: str) -> None:
    given = {
        b"PATH": b"/usr/bin:/bin",
        b"EESSI_SOFTWARE_SUBDIR": b"x86_64/amd/zen4",
        b"LD_LIBRARY_PATH": b"/nonexistent:",
        b"LD_PRELOAD": b"",
        b"ODD": b"a\nb \xff'\"$(id)`id`",
        b"EMPTY": b"",
    }
    prolog = tmp_path / "site"
    prolog.write_text(
        "#!/usr/bin/python3 -IS\nimport os, posix\nos.write(1, repr(sorted(posix.environ.items())).encode())\n"
    )
    prolog.chmod(0o755)
    call = [*shell(name, tmp_path), str(pyz), "--chain", str(prolog)]
    run = subprocess.run(call, env=given, capture_output=True)
    got = dict(eval(run.stdout.partition(b"]")[0] + b"]"))
    own = {b"_", b"PWD", b"OLDPWD", b"SHLVL", b"LC_CTYPE"}
    assert {k: v for k, v in got.items() if k not in own} == given


# What a start costs, as system calls and not as time.


def traced(call: "list[str]", environ: Environ, folder: Path) -> "list[str]":
    strace = need_program("strace")
    out = folder / "trace"
    subprocess.run(
        [
            strace,
            "-f",
            "-qq",
            "-o",
            str(out),
            "-e",
            "trace=execve,openat,?open,clone,clone3,?fork,?vfork",
            "-s",
            "300",
            *call,
        ],
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [line.partition(" ")[2].strip() for line in out.read_text().splitlines()]


def opened(lines: "list[str]") -> "list[str]":
    found = []
    for line in lines:
        match = re.match(r'(?:openat|open)\((?:AT_FDCWD, )?"([^"]*)".*\) = \d', line)
        if match and not re.match(r"/(lib|usr/lib|etc/|usr/share/locale|proc/self)|/dev/null", match[1]):
            found.append(match[1])
    return found


def test_a_task_without_eessi_starts_no_process_and_opens_nothing_but_the_file(pyz: Path, tmp_path: Path) -> None:
    lines = traced([str(pyz)], {b"PATH": b"/usr/bin:/bin"}, tmp_path)
    assert [line.split('"')[1] for line in lines if line.startswith("execve")] == [str(pyz)]
    assert [line for line in lines if re.match(r"clone|fork|vfork", line)] == []
    assert opened(lines) == [str(pyz)]


def test_a_cached_task_starts_one_python_and_opens_the_archive_once_and_the_outcome(
    pyz: Path, moved: Environ, tmp_path: Path
) -> None:
    moved.update({b"SLURM_JOB_ID": b"1", b"TMPDIR": os.fsencode(tmp_path)})
    subprocess.run([str(pyz)], env=moved, check=True, stdout=subprocess.DEVNULL)
    lines = traced([str(pyz)], moved, tmp_path)
    programs = [line.split('"')[1] for line in lines if line.startswith("execve")]
    assert programs == [str(pyz), "/usr/bin/python3.11"] or programs[1].startswith("/usr/bin/python3.")
    assert len([line for line in lines if re.match(r"(clone|clone3|fork|vfork)\(", line)]) == 1
    files = [path for path in opened(lines) if not path.endswith((".so", "pyvenv.cfg"))]
    (outcome,) = [name for name in os.listdir(tmp_path) if name.startswith(".eessi") and not name.endswith(".lock")]
    assert files == [str(pyz), str(pyz), f"{tmp_path}/{outcome}"]
