# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages for users and admins say what the code does: names, options, tokens and numbers, and blocks that work."""

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.arch import cache, delta, emit
from guard.base import limits, message
from guard.base.faults import SENTENCES, Fault
from tests.conftest import need_program

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ENVIRONMENT = (DOCS / "environment.md").read_text()
INSTALL = (DOCS / "site-install.md").read_text()
GUARD = "/cvmfs/software.eessi.io/eessi-arch-guard/current/eessi-arch-guard.pyz"
FOLDER = "/etc/slurm/eessi-arch-guard"
SITE = "/etc/slurm/site-taskprolog"
COMMAND = "/usr/local/bin/eessi-arch-guard"

_VARIABLE = re.compile(r"(?:EESSI|SLURMD?|LMOD)_[A-Z_]*[A-Z]")
_SWITCH = re.compile(r"EESSI_ARCH_GUARD(?:_[A-Z_]*[A-Z])?")


def constants(*files: Path) -> "Iterator[str]":
    """Every text and bytes constant in these sources but the docstrings, as text."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                yield node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value


def switches() -> "set[str]":
    """Every EESSI_ARCH_GUARD name that the code knows, sh included."""
    files = [*(ROOT / "guard").rglob("*.py"), *(ROOT / "build").glob("*.sh")]
    return {name for file in files for name in _SWITCH.findall(file.read_text())}


def options() -> "set[str]":
    """Every command-line option that the guard knows."""
    files = [ROOT / "guard" / "__main__.py", *((ROOT / "guard" / "arch" / name) for name in ("options.py", "check.py"))]
    return {word for text in constants(*files) for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}


def test_every_variable_of_the_guards_own_is_in_the_reference() -> None:
    assert switches() - set(_SWITCH.findall(ENVIRONMENT)) == set()
    assert len(switches()) > 6


def test_the_reference_has_no_variable_that_the_code_does_not_know() -> None:
    assert set(_SWITCH.findall(ENVIRONMENT)) - switches() == set()


def test_every_variable_that_the_guard_reads_is_in_the_reference() -> None:
    known = {text for text in constants(*(ROOT / "guard" / "arch").glob("*.py")) if _VARIABLE.fullmatch(text)}
    assert known - set(_VARIABLE.findall(ENVIRONMENT)) == set()
    assert len(known) > 15


def test_every_option_is_in_the_reference() -> None:
    assert options() - set(re.findall(r"--[a-z][a-z-]*", ENVIRONMENT)) == set()
    assert {"--chain", "--shell", "--check", "--clean", "--prolog-line-max"} < options()


def test_every_token_is_in_the_reference() -> None:
    tokens = set(re.findall(r"^\| `([a-z][a-z-]*)` \|", ENVIRONMENT, re.MULTILINE))
    assert tokens == SENTENCES.keys() - {"modules-missing"}
    assert "`modules-missing`" in ENVIRONMENT


def test_every_name_that_is_never_changed_is_in_the_reference() -> None:
    section = ENVIRONMENT.partition("never changes\n")[2].partition("\n## ")[0]
    first, second = section.strip().split("\n\n")
    listed = set(re.findall(r"`(\w+)`", first))
    assert listed == {name.decode() for name in (*delta.EXCLUDED, *delta.EXCLUDED_PREFIXES)}
    assert {name.decode() for name in emit.PROMPTS} <= set(re.findall(r"`(\w+)`", second))


def test_the_caches_key_and_name_are_those_of_the_code() -> None:
    key = ENVIRONMENT.partition("joined by NUL: ")[2].partition(".\n")[0]
    assert re.findall(r"`(\w+)`", key) == [name.decode() for name in cache.KEY]
    path = cache.path({b"SLURM_JOB_ID": b"7", b"SLURM_STEP_ID": b"0", b"SLURMD_NODENAME": b"n1"}, "prolog")
    assert path
    shown = re.search(r"^    (\.eessi-arch-guard\.<.*)$", ENVIRONMENT, re.MULTILINE)
    assert shown
    values = {"uid": f"{os.getuid()}", "node": "n1", "job": "7", "step": "0", "mode": "prolog"}
    values["digest"] = path.decode()[-16:]
    assert path.decode() == "/tmp/" + re.sub(r"<(\w+)>", lambda part: values[part[1]], shown[1])
    assert f"`{cache.LOCK_SUFFIX.decode()}`" in ENVIRONMENT


def test_the_numbers_are_those_of_the_code() -> None:
    for number, text in (
        (limits.DEADLINE_DEFAULT_S, "default 60"),
        (limits.DEADLINE_MIN_S, "from 1 to"),
        (limits.DEADLINE_MAX_S, "to 600"),
        (limits.POST_KILL_WAIT_SECONDS * 3, "15 seconds more"),
        (limits.PROLOG_LINE_MAX, "4,094 bytes"),
        (limits.SLURM_ENTRY_MAX_BYTES, "below 131,072"),
        (limits.MODULE_NAME_MAX_BYTES, "at most 255 bytes"),
        (limits.CACHE_FILE_MAX_BYTES >> 20, "more than 8 MiB"),
        (limits.CACHE_AGE_MAX_S, "86,400 seconds"),
    ):
        assert f"{number:,.0f}" in text
        assert text in ENVIRONMENT


@pytest.mark.parametrize("page", [ENVIRONMENT, INSTALL])
def test_the_lines_that_are_shown_are_lines_of_the_guard(page: str) -> None:
    was, now = "x86_64/amd/zen4", "x86_64/amd/zen3"
    known = {
        message.reloaded(34, "n1", f"{was}->{now}"),
        message.skipped("unknown option '--x'"),
        message.nothing("target already matches this node"),
        *(message.failed("n1", f"{was}->{code}", Fault(code).sentence()) for code in SENTENCES),
    }
    shown = re.findall(r"^    (eessi-arch-guard: .*)$", page, re.MULTILINE)
    assert len(shown) >= 2
    assert set(shown) <= known


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target, anchor in re.findall(r"\]\(([\w.-]*)(?:#([\w-]+))?\)", page.read_text()):
            linked = DOCS / target if target else page
            assert linked.is_file(), f"{page.name}: {target}"
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert not anchor or anchor in {title.lower().replace(" ", "-") for title in titles}


# --- the blocks of the installation, followed -----------------------------------------------------------------------


def blocks(page: str, kind: str) -> "list[str]":
    """The fenced blocks of a page that are marked so."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_block_of_sh_is_sh(page: Path) -> None:
    for block in blocks(page.read_text(), "sh"):
        assert subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True).stderr == ""


@pytest.fixture
def installed(tmp_path: Path, pyz: Path) -> Path:
    """A folder in which the page was followed word by word, with its paths in that folder."""
    (tmp_path / "site").write_text('#!/bin/sh\necho "export SITE=1"\nexit ${SITE_STATUS:-0}\n')
    (tmp_path / "site").chmod(0o755)
    shutil.copy(pyz, tmp_path / "guard.pyz")
    for block in blocks(INSTALL, "sh"):
        if re.search(r"\b(scontrol|srun)\b", block):
            continue
        text = block.replace(GUARD, f"{tmp_path}/guard.pyz").replace(FOLDER, f"{tmp_path}/local")
        text = text.replace(SITE, f"{tmp_path}/site").replace(COMMAND, f"{tmp_path}/eessi-arch-guard")
        subprocess.run(["sh", "-eu"], input=text, text=True, check=True, cwd=ROOT)
    for name in re.findall(r"^(?:TaskProlog|Epilog)=(.*)$", "".join(blocks(INSTALL, "slurm.conf")), re.MULTILINE):
        assert name == GUARD or os.access(name.replace(FOLDER, f"{tmp_path}/local"), os.X_OK)
    return tmp_path


def told(program: Path, **environ: str) -> "tuple[int, str]":
    """The status and the lines of a TaskProlog."""
    done = subprocess.run([program], env=environ, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


LOADED = {"EESSI_SOFTWARE_SUBDIR": "x86_64/generic", "EESSI_INIT_PREFIX": "x"}
FAILED = "export EESSI_ARCH_GUARD_FAILED=x86_64/generic->archdetect-failed\n"


@pytest.mark.parametrize("name", ["taskprolog", "taskprolog-syslog", "taskprolog-22.05"])
def test_the_wrapper_runs_the_guard_and_outlives_it(installed: Path, name: str) -> None:
    wrapper = installed / "local" / name
    assert told(wrapper) == (0, "")
    assert told(wrapper, **LOADED)[1].startswith(FAILED)
    # Where the file is cannot be changed by a job.
    assert told(wrapper, **LOADED, EESSI_ARCH_GUARD_FILE="/nonexistent")[1].startswith(FAILED)
    (installed / "guard.pyz").unlink()
    line = f"print eessi-arch-guard: skipped, {installed}/guard.pyz cannot be read on this node\n"
    assert told(wrapper, **LOADED) == (0, line)
    assert told(wrapper, **LOADED, SLURM_LOCALID="1") == (0, "")


def test_the_sites_own_prolog_always_runs_and_its_status_counts(installed: Path) -> None:
    wrapper = installed / "local" / "taskprolog-chain"
    for status in (0, 3):
        assert told(wrapper, SITE_STATUS=str(status)) == (status, "export SITE=1\n")
        got, lines = told(wrapper, **LOADED, SITE_STATUS=str(status))
        assert got == status
        assert lines.startswith("export SITE=1\n" + FAILED)
    (installed / "guard.pyz").unlink()
    status, lines = told(wrapper, **LOADED, SITE_STATUS="3")
    assert status == 3
    assert lines.endswith("/guard.pyz cannot be read on this node\nexport SITE=1\n")


@pytest.mark.parametrize("name", ["taskprolog", "taskprolog-chain"])
def test_a_file_with_a_size_and_no_content_is_one_that_cannot_be_read(installed: Path, name: str) -> None:
    # CVMFS without its server: stat goes well, open fails.
    guard = installed / "guard.pyz"
    strace = [need_program("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=openat:error=EIO", "-P", str(guard)]
    done = subprocess.run([*strace, installed / "local" / name], env=LOADED, capture_output=True, text=True)
    site = "export SITE=1\n" if name == "taskprolog-chain" else ""
    line = f"print eessi-arch-guard: skipped, {guard} cannot be read on this node\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line + site, "")


def test_the_epilog_cleans_and_never_fails(installed: Path) -> None:
    epilog = installed / "local" / "epilog"
    environ = {"SLURM_JOB_ID": "77", "SLURMD_NODENAME": "docs-test", "TMPDIR": str(installed)}
    file = installed / f".eessi-arch-guard.{os.getuid()}.docs-test.77.0.prolog.0123456789abcdef"
    other = installed / file.name.replace(".77.", ".78.")
    file.touch(0o600)
    other.touch(0o600)
    assert told(epilog, **environ) == (0, "")
    assert (file.exists(), other.exists()) == (False, True)
    (installed / "guard.pyz").unlink()
    done = subprocess.run([epilog], env=environ, capture_output=True)
    assert done.returncode == 0


def test_the_command_for_users_is_the_guard(installed: Path) -> None:
    done = subprocess.run([installed / "eessi-arch-guard", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("eessi-arch-guard ")
