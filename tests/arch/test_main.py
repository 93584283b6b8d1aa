# SPDX-License-Identifier: GPL-2.0-or-later
"""The outermost door, on the built .pyz: calls that have nothing to do, wrong calls, bugs, odd fds, and --chain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arch import slurm_reader
from tests.eessi.tree import ZEN2, ZEN4, Tree

ROOT = Path(__file__).parent.parent.parent
PLAIN = {b"PATH": b"/usr/bin:/bin", b"HOME": b"/nonexistent"}
# Enough for the guard to try to do something, and to fail at it.
BROKEN = {**PLAIN, b"EESSI_SOFTWARE_SUBDIR": b"x86_64/amd/zen4"}


def run(pyz: Path, environ: "dict[bytes, bytes]", *arguments: str) -> "tuple[int, bytes, bytes]":
    done = subprocess.run([str(pyz), *arguments], env=environ, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


SILENT = [
    ([], PLAIN),
    (["--shell"], PLAIN),
    (["--timeout", "5"], PLAIN),
    (["--prolog-line-max=9000"], PLAIN),
    ([], {**PLAIN, b"EESSI_SOFTWARE_SUBDIR": b""}),
    *(([], {**BROKEN, b"EESSI_ARCH_GUARD": off}) for off in (b"0", b"off", b"OFF", b"No", b"false")),
    (["--shell"], {**BROKEN, b"EESSI_ARCH_GUARD": b"0"}),
]


@pytest.mark.parametrize(("arguments", "environ"), SILENT)
def test_where_there_is_nothing_to_do_nothing_is_said(
    pyz: Path, arguments: "list[str]", environ: "dict[bytes, bytes]"
) -> None:
    assert run(pyz, environ, *arguments) == (0, b"", b"")
    checkout = [sys.executable, "-I", str(ROOT / "guard" / "__main__.py"), *arguments]
    assert subprocess.run(checkout, env=environ, capture_output=True).stdout == b""


REASONS = [
    (PLAIN, b"EESSI is not loaded"),
    ({**BROKEN, b"EESSI_ARCH_GUARD": b"off"}, b"switched off by EESSI_ARCH_GUARD"),
    ({**PLAIN, b"EESSI_ARCH_GUARD_TIMEOUT": b"x"}, b"EESSI_ARCH_GUARD_TIMEOUT is not a number"),
]


@pytest.mark.parametrize(("environ", "reason"), REASONS)
def test_verbose_tells_the_reason_on_stderr_and_to_rank_0(
    pyz: Path, environ: "dict[bytes, bytes]", reason: bytes
) -> None:
    verbose = {**environ, b"EESSI_ARCH_GUARD_VERBOSE": b"1"}
    status, out, err = run(pyz, verbose)
    assert (status, out) == (0, b"print " + err)
    assert reason in err
    assert run(pyz, {**verbose, b"SLURM_LOCALID": b"3"}) == (0, b"", err)
    assert run(pyz, verbose, "--shell") == (0, b"", err)


def test_verbose_tells_that_the_target_matches(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    environ = {**tree.login(), b"EESSI_ARCH_GUARD_VERBOSE": b"1"}
    line = b"eessi-arch-guard: nothing to do, target already matches this node\n"
    assert run(pyz, environ) == (0, b"print " + line, line)


BAD_CALLS = [["--unknown"], ["extra"], ["--timeout", "0"], ["--prolog-line-max", "x"], ["--shell", "--chain", "/x"]]


@pytest.mark.parametrize("arguments", BAD_CALLS)
@pytest.mark.parametrize("mode", ["prolog", "shell"])
def test_a_wrong_call_is_one_skip_line_and_exit_0(pyz: Path, arguments: "list[str]", mode: str) -> None:
    status, out, err = run(pyz, BROKEN, *(["--shell"] if mode == "shell" else []), *arguments)
    assert status == 0
    is_shell = mode == "shell" or "--shell" in arguments
    told, silent = (err, out) if is_shell else (out, err)
    assert silent == b""
    assert told.startswith(b"eessi-arch-guard: skipped, " if is_shell else b"print eessi-arch-guard: skipped, ")
    assert told.count(b"\n") == 1


def broken_checkout(tmp_path: Path, line: str) -> Path:
    """A copy of the package in which the miss path begins with line."""
    copy = tmp_path / "guard"
    subprocess.run(["cp", "-r", str(ROOT / "guard"), str(copy)], check=True)
    settle = copy / "arch" / "settle.py"
    settle.write_text(settle.read_text().replace("import os\n", f"import os\n{line}\n", 1))
    return copy / "__main__.py"


BUGS = [
    "raise ValueError('a\\nb')",
    "raise MemoryError",
    "raise KeyboardInterrupt",
    "import nonexistent",
    "raise SystemExit(3)",
]


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("mode", ["prolog", "shell"])
def test_a_bug_is_one_skip_line_and_exit_0(tmp_path: Path, bug: str, mode: str) -> None:
    main = broken_checkout(tmp_path, bug)
    call = [sys.executable, "-I", str(main), *(["--shell"] if mode == "shell" else [])]
    done = subprocess.run(call, env=BROKEN, capture_output=True)
    assert done.returncode == 0
    told, silent = (done.stderr, done.stdout) if mode == "shell" else (done.stdout, done.stderr)
    assert silent == b""
    prefix = b"" if mode == "shell" else b"print "
    assert told.startswith(prefix + b"eessi-arch-guard: skipped, ")
    assert told.count(b"\n") == 1
    if mode == "prolog":
        quiet = subprocess.run(call, env={**BROKEN, b"SLURM_LOCALID": b"1"}, capture_output=True)
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b"")


FDS = ["<&- 2>&-", "<&-", "2>&-", "<&- >&- 2>&-", ">&-", ">/dev/full", "2>/dev/full", "</dev/full"]


@pytest.mark.parametrize("redirect", FDS)
@pytest.mark.parametrize("option", ["", "--shell"])
def test_closed_and_full_fds_do_no_harm(pyz: Path, tree: Tree, redirect: str, option: str) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    command = f'"{pyz}" {option} {redirect}; echo "status $?" >&3'
    read_fd, write_fd = os.pipe()
    script = f"exec 3>&{write_fd}; exec {write_fd}>&-; {command}"
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", script], env=environ, stdout=subprocess.PIPE, pass_fds=[write_fd]
    )
    os.close(write_fd)
    with open(read_fd, "rb") as stream:
        assert stream.read() == b"status 0\n"
    if ">&-" not in redirect.replace("2>&-", "") and not redirect.startswith(">"):
        assert b"EESSI_ARCH_GUARD_RELOADED=" in done.stdout


def test_a_stderr_that_slurm_has_closed_means_that_it_cuts_lines(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    environ = {**tree.login(), b"SLURM_JOB_START_TIME": b"1"}
    environ[b"PATH"] += b":/" + 5000 * b"x"
    tree.node(ZEN2)
    outs = {}
    for redirect in ("", "2>&-"):
        command = ["/bin/sh", "-c", f"exec {pyz} --prolog-line-max 131072 {redirect}"]
        outs[redirect] = subprocess.run(command, env=environ, capture_output=True).stdout
    assert b"\nexport EESSI_ARCH_GUARD_RELOADED=" in outs[""] and max(map(len, outs[""].split(b"\n"))) > 5000
    marker, line = outs["2>&-"].splitlines()
    assert marker == b"export EESSI_ARCH_GUARD_FAILED=x86_64/amd/zen4->unsafe-environment"
    assert b"PATH is the longest of" in line


@pytest.mark.parametrize("option", ["", "--shell"])
def test_a_reader_that_has_gone_does_no_harm(pyz: Path, tree: Tree, option: str) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    command = f'("{pyz}" {option} 2>&1; echo "status $?" >&3) | true'
    done = subprocess.run(["/bin/bash", "-c", f"exec 3>&1; {command}"], env=environ, stdout=subprocess.PIPE)
    assert done.stdout == b"status 0\n"


def test_only_local_rank_0_prints(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    outs = {rank: run(pyz, {**environ, b"SLURM_LOCALID": rank})[1] for rank in (b"0", b"1")}
    head, _, line = outs[b"0"].rpartition(b"print ")
    assert head == outs[b"1"]
    assert line.startswith(b"eessi-arch-guard: reloaded 5 modules on ")


# --chain


def site_prolog(tmp_path: Path, text: str) -> str:
    path = tmp_path / "site_prolog"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_a_chained_prologs_bytes_come_first_and_untouched(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    own = b"export SITE=1\nprint  hello \xff\nunset GONE\n\nnoise\n"
    (tmp_path / "own").write_bytes(own)
    status, out, err = run(pyz, environ, "--chain", site_prolog(tmp_path, f"cat {tmp_path}/own"))
    assert (status, err) == (0, b"")
    assert out.startswith(own + b"export ")
    assert b"EESSI_ARCH_GUARD_RELOADED" in out


def test_a_chained_last_line_without_its_end_is_not_glued_to_ours(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    _, out, _ = run(pyz, environ, "--chain", site_prolog(tmp_path, "printf 'export SITE=1'"))
    after, _ = slurm_reader.applied(environ, out, slurm_reader.FGETS)
    assert after[b"SITE"] == b"1"


CHAINED = [
    ("echo export EESSI_ARCH_GUARD=off", b"export EESSI_ARCH_GUARD=off\n"),
    ("echo unset EESSI_SOFTWARE_SUBDIR", b"unset EESSI_SOFTWARE_SUBDIR\n"),
]


@pytest.mark.parametrize(("text", "out"), CHAINED)
def test_the_guard_judges_the_environment_after_the_chained_prolog(
    pyz: Path, tree: Tree, tmp_path: Path, text: str, out: bytes
) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    assert run(pyz, environ, "--chain", site_prolog(tmp_path, text)) == (0, out, b"")


def test_a_chained_prolog_can_switch_the_guard_on(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tree.node(ZEN4)
    environ = {**tree.login(), b"EESSI_ARCH_GUARD": b"0"}
    tree.node(ZEN2)
    _, out, _ = run(pyz, environ, "--chain", site_prolog(tmp_path, "echo export EESSI_ARCH_GUARD=1"))
    assert b"EESSI_ARCH_GUARD_RELOADED" in out


@pytest.mark.parametrize(("text", "status"), [("exit 3", 3), ("kill -9 $$", 1), ("exit 127", 127), ("exit 200", 200)])
def test_a_failing_chained_prolog_is_the_only_way_to_another_status(
    pyz: Path, tmp_path: Path, text: str, status: int
) -> None:
    prolog = site_prolog(tmp_path, f"echo export SITE=1; {text}")
    # Without EESSI the site's prolog is all there is: the header becomes it, and its death by a signal is seen as such.
    expected = -9 if "kill" in text else status
    assert run(pyz, PLAIN, "--chain", prolog) == (expected, b"export SITE=1\n", b"")
    assert run(pyz, PLAIN, "--timeout=5", f"--chain={prolog}") == (expected, b"export SITE=1\n", b"")
    assert run(pyz, BROKEN, "--chain", prolog)[0] == status
    # A wrong option beside it changes nothing of that: the site's prolog is the site's.
    assert run(pyz, BROKEN, "--wrong", "--chain", prolog)[0] == status


@pytest.mark.parametrize("path", ["/nonexistent", "/etc", "relative"])
def test_a_chained_prolog_that_cannot_be_run_is_one_line_and_the_guard_goes_on(
    pyz: Path, tree: Tree, path: str
) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    status, out, err = run(pyz, environ, "--chain", path)
    assert (status, err) == (0, b"")
    assert out.startswith(b"print eessi-arch-guard: skipped, chained prolog ")
    assert b"EESSI_ARCH_GUARD_RELOADED" in out


def test_a_chained_prologs_stderr_goes_where_slurm_sends_it(pyz: Path, tmp_path: Path) -> None:
    prolog = site_prolog(tmp_path, "echo export A=1 >&2; echo export B=2")
    merged = subprocess.run([str(pyz), "--chain", prolog], env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert merged.stdout == b"export A=1\nexport B=2\n"
    closed = subprocess.run(["/bin/sh", "-c", f'exec "{pyz}" --chain {prolog} 2>&-'], env=PLAIN, stdout=subprocess.PIPE)
    assert closed.stdout == b"export B=2\n"


def test_version_and_help(pyz: Path) -> None:
    status, out, _ = run(pyz, PLAIN, "--version")
    assert (status, out) == (0, b"eessi-arch-guard 0.1.0\n")
    status, out, _ = run(pyz, PLAIN, "--help")
    assert status == 0
    assert out.startswith(b"usage: ")
