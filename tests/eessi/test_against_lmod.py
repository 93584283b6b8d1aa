# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard against Lmod itself: a task then has what `module --force purge; module load` gives on that node."""

import base64
import mmap
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from guard.arch import delta, helper
from tests.arch import slurm_reader
from tests.eessi.tree import CC80, EESSI, GENERIC, HASWELL, ZEN2, ZEN4, Tree

MARKERS = {b"EESSI_ARCH_GUARD_RELOADED", b"EESSI_ARCH_GUARD_FAILED"}
Environ = "dict[bytes, bytes]"


def prolog(pyz: Path, environ: Mapping[bytes, bytes], *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """One run of the .pyz as TaskProlog of a new enough Slurm."""
    run = subprocess.run(
        [str(pyz), *arguments],
        env={b"SLURM_JOB_START_TIME": b"1", **environ},
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")
    return run


def task_after(environ: "dict[bytes, bytes]", output: bytes) -> "dict[bytes, bytes]":
    return slurm_reader.applied(environ, output, slurm_reader.WHOLE)[0]


def differing(
    one: Mapping[bytes, bytes], other: Mapping[bytes, bytes]
) -> "dict[bytes, tuple[bytes | None, bytes | None]]":
    """What differs, on the names that may change. Of Lmod's module table the lines count: Lua has no order for them."""
    one, other = ({**environ, b"_ModuleTable_": module_table(environ)} for environ in (one, other))
    return {
        name: (one.get(name), other.get(name))
        for name in {*one, *other}
        if delta.may_change(name) and name not in MARKERS and one.get(name) != other.get(name)
        if not re.fullmatch(rb"_ModuleTable\d{3}_", name)
    }


def module_table(environ: Mapping[bytes, bytes]) -> bytes:
    names = sorted(name for name in environ if re.fullmatch(rb"_ModuleTable\d{3}_", name))
    text = base64.b64decode(b"".join(environ[name] for name in names))
    return b"%d pieces\n" % len(names) + b"\n".join(sorted(text.split(b"\n")))


def assert_reloaded(pyz: Path, tree: Tree, environ: "dict[bytes, bytes]", marker: bytes) -> "dict[bytes, bytes]":
    """Runs the guard, holds the task against the reference, and gives the task's environment."""
    reference = tree.fresh(environ)
    output = prolog(pyz, environ).stdout
    task = task_after(environ, output)
    assert task.get(b"EESSI_ARCH_GUARD_RELOADED") == marker, output[-600:]
    assert differing(task, reference) == {}
    assert not [name for name, value in task.items() if helper.TOOLS[0] in value or b"/proc/self" in value]
    return task


ZEN4_TO_ZEN2 = b"x86_64/amd/zen4->x86_64/amd/zen2"


def moved(
    tree: Tree, extra: Mapping[bytes, bytes] = {}, names: "tuple[str, ...]" = (EESSI, "App/1.0"), before: str = ""
) -> "dict[bytes, bytes]":
    """The environment of a user who loaded names on a zen4 node, seen from a zen2 node."""
    tree.node(ZEN4)
    environ = tree.login(names, extra, before)
    tree.node(ZEN2)
    return environ


def test_plain_modules_move_to_the_nodes_target(pyz: Path, tree: Tree) -> None:
    task = assert_reloaded(pyz, tree, moved(tree), ZEN4_TO_ZEN2)
    assert b"zen2/software/App/1.0/bin" in task[b"PATH"]
    assert not any(b"zen4" in value for name, value in task.items() if name not in MARKERS)


def test_a_newer_node_is_a_reload_too(pyz: Path, tree: Tree) -> None:
    tree.node(GENERIC)
    environ = tree.login()
    tree.node(HASWELL)
    assert_reloaded(pyz, tree, environ, b"x86_64/generic->x86_64/intel/haswell")


def test_on_a_node_of_the_same_target_nothing_is_written(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    assert prolog(pyz, tree.login()).stdout == b""


@pytest.mark.parametrize("count", [34, 120])
def test_many_modules_with_long_paths(pyz: Path, tree: Tree, count: int) -> None:
    names = [f"Package-number-{number}/2023.1.{number}-gompi-2023b-with-a-long-suffix" for number in range(count - 2)]
    for cpu in (ZEN4, ZEN2):
        for name in names:
            tree.add(cpu, name)
    environ = moved(tree, {b"EESSI_ARCH_GUARD_TIMEOUT": b"600"}, (EESSI, "GCCcore/12.3.0", *names))
    assert environ[b"LOADEDMODULES"].count(b":") == count - 1
    task = assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)
    assert len(task[b"PATH"]) > 4094


def test_fewer_module_table_pieces_leave_none_of_the_old_behind(pyz: Path, tree: Tree) -> None:
    # The same names, but loaded here as dependencies of nothing: the table gets shorter.
    for number in range(40):
        tree.add(ZEN4, f"M{number}/1", lua='LmodMessage("x")\n')
        tree.add(ZEN2, f"M{number}/1")
    names = (EESSI, *(f"M{number}/1" for number in range(40)))
    environ = moved(tree, {b"EESSI_ARCH_GUARD_TIMEOUT": b"600"}, names)
    stale = {b"_ModuleTable%03d_" % number: b"stale" for number in range(80, 90)}
    task = assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)
    assert not stale.keys() & task.keys()
    pieces = sum(bool(re.fullmatch(rb"_ModuleTable\d{3}_", name)) for name in task)
    assert task[b"_ModuleTable_Sz_"] == b"%d" % pieces


def test_a_sticky_site_module_and_a_sticky_eessi_come_back(pyz: Path, tree: Tree) -> None:
    site = tree.root / "site"
    (site / "cluster").mkdir(parents=True)
    (site / "cluster" / "n.lua").write_text('add_property("lmod", "sticky")\nsetenv("SITE_SCRATCH", "/scratch")\n')
    environ = moved(tree, {b"EESSI_MODULE_STICKY": b"1"}, ("cluster/n", EESSI, "App/1.0"), before=f"module use {site}")
    task = assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)
    assert task[b"SITE_SCRATCH"] == b"/scratch"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_users_own_module_folder(pyz: Path, tree: Tree, when: str) -> None:
    own = tree.root / "own"
    (own / "mine").mkdir(parents=True)
    (own / "mine" / "1.lua").write_text(f'prepend_path("PATH", "{own}/bin")\nsetenv("MINE", "1")\n')
    names = ("mine/1", EESSI, "App/1.0") if when == "before" else (EESSI, "App/1.0", "mine/1")
    environ = moved(tree, names=names, before=f"module use {own}")
    if when == "after":
        tree.node(ZEN4)
        environ = tree.fresh(environ, [EESSI, "App/1.0", "mine/1"])
        tree.node(ZEN2)
    assert assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)[b"MINE"] == b"1"


def test_an_empty_modulepath_entry(pyz: Path, tree: Tree) -> None:
    environ = moved(tree)
    environ[b"MODULEPATH"] = b":" + environ[b"MODULEPATH"] + b"::"
    assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)


LUA: "dict[str, str]" = {
    "setenv": 'setenv("THING", "1 2  $HOME `x`")',
    "pushenv": 'pushenv("THING", "new")\npushenv("PATHS", os.getenv("PATH") or "")',
    "prepend_path": 'prepend_path("THING", "/a b:/c")',
    "append_path": 'append_path("THING", "/z")\nappend_path("MANPATH", ":")',
    "unsetenv": 'unsetenv("USERS_OWN")',
    "remove_path": 'remove_path("PATH", "/usr/local/bin")',
    "set_alias": 'set_alias("thing", "ls -l")',
    "set_shell_function": 'set_shell_function("thing", "echo a; echo b", "echo")',
    "a message": 'LmodMessage("export EVIL=1\\nprint evil")',
    "a warning": 'LmodWarning("a driver is old")',
    "output": 'execute{cmd="echo export EVIL=1; echo print evil >&2", modeA={"load"}}',
    "a path copied": 'setenv("OLD_PATH", os.getenv("PATH"))',
    "a cr": "setenv('PS1', 'a\\rb')",
}


@pytest.mark.parametrize("how", LUA)
def test_what_a_module_can_do(pyz: Path, tree: Tree, how: str) -> None:
    for cpu in (ZEN4, ZEN2):
        tree.add(cpu, "Thing/1", lua=LUA[how] + "\n")
    environ = moved(tree, {b"USERS_OWN": b"1", b"THING": b"old"}, (EESSI, "Thing/1"))
    if how == "a cr":
        environ[b"PS1"] = b"prompt"
        output = prolog(pyz, environ).stdout
        assert b"->x86_64/amd/zen2\n" in output
        assert b"export PS1" not in output
        return
    task = assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)
    assert b"EVIL" not in task


ODD_NAMES = ["Xerces-C++/3.2.4-GCC-12.3.0", "libstdc++/1", "a.b-c_d/.hidden-1", "no_version_dir/sub/1.0", "x/1+2.3"]


def test_names_with_plus_dot_and_minus_and_a_hidden_version(pyz: Path, tree: Tree) -> None:
    for cpu in (ZEN4, ZEN2):
        for name in ODD_NAMES:
            tree.add(cpu, name)
    environ = moved(tree, names=(EESSI, *ODD_NAMES))
    assert b".hidden-1" in environ[b"LOADEDMODULES"]
    assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)


@pytest.mark.parametrize("knob", [{b"LMOD_QUIET": b"yes"}, {b"LMOD_REDIRECT": b"yes"}, {b"LMOD_SHORT_TIME": b"3"}])
def test_the_users_own_knobs_of_lmod(pyz: Path, tree: Tree, knob: "dict[bytes, bytes]") -> None:
    task = assert_reloaded(pyz, tree, moved(tree, knob), ZEN4_TO_ZEN2)
    assert {name: task.get(name) for name in knob} == knob


def test_nothing_is_written_into_home(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = moved(tree, {b"HOME": os.fsencode(home)})
    for path in sorted(home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    prolog(pyz, environ)
    assert list(home.rglob("*")) == []


@pytest.mark.parametrize("code", ["11.0", "8.6"])
def test_an_accelerator_that_the_node_has_and_the_login_node_lacks(pyz: Path, tree: Tree, code: str) -> None:
    tree.add(f"{ZEN2}/{CC80}", "Gpu/1")
    tree.node(ZEN2)
    environ = tree.login()
    tree.node(ZEN2, accel=code)
    if code == "11.0":
        assert prolog(pyz, environ).stdout == b""
        return
    marker = b"x86_64/amd/zen2 no accel->x86_64/amd/zen2 accel/nvidia/cc80"
    task = assert_reloaded(pyz, tree, environ, marker)
    assert task[b"EESSI_ACCELERATOR_TARGET"] == CC80.encode()


def test_an_accelerator_that_is_gone(pyz: Path, tree: Tree) -> None:
    tree.add(f"{ZEN2}/{CC80}", "Gpu/1")
    tree.node(ZEN2, accel="8.6")
    environ = tree.login()
    assert environ[b"EESSI_ACCELERATOR_TARGET"] == CC80.encode()
    tree.node(ZEN2)
    marker = b"x86_64/amd/zen2 accel/nvidia/cc80->x86_64/amd/zen2 no accel"
    task = assert_reloaded(pyz, tree, environ, marker)
    assert b"EESSI_ACCELERATOR_TARGET" not in task
    assert b"EESSI_MODULEPATH_ACCEL" not in task


def test_a_module_for_the_accelerator_only_is_reported_and_nothing_changes(pyz: Path, tree: Tree) -> None:
    tree.add(f"{ZEN2}/{CC80}", "Gpu/1")
    tree.node(ZEN2, accel="8.0")
    environ = tree.login((EESSI, "Gpu/1"))
    tree.node(ZEN2)
    task = task_after(environ, prolog(pyz, environ).stdout)
    marker = b"x86_64/amd/zen2 accel/nvidia/cc80->x86_64/amd/zen2 no accel"
    assert task[b"EESSI_ARCH_GUARD_FAILED"] == marker
    assert differing(task, environ) == {}


def failed(pyz: Path, environ: "dict[bytes, bytes]", marker: bytes, said: bytes) -> None:
    """Nothing changes but the marker, and the line says what to do."""
    output = prolog(pyz, environ).stdout
    task, printed = slurm_reader.applied(environ, output, slurm_reader.WHOLE)
    assert task[b"EESSI_ARCH_GUARD_FAILED"] == marker
    assert differing(task, environ) == {}
    assert printed.startswith(b"eessi-arch-guard: NOT reloaded on ")
    assert said in printed


def test_a_module_that_is_missing_for_the_new_target(pyz: Path, tree: Tree) -> None:
    tree.add(ZEN4, "Only-zen4/1")
    failed(pyz, moved(tree, names=(EESSI, "Only-zen4/1")), ZEN4_TO_ZEN2, b'unknown: "Only-zen4/1"')


def test_a_module_that_raises_an_error(pyz: Path, tree: Tree) -> None:
    tree.add(ZEN4, "Thing/1")
    tree.add(ZEN2, "Thing/1", lua='LmodError("no licence here")\n')
    failed(pyz, moved(tree, names=(EESSI, "Thing/1")), ZEN4_TO_ZEN2, b"no licence here")


def test_a_module_that_leaves_the_shell(pyz: Path, tree: Tree) -> None:
    tree.add(ZEN4, "Thing/1")
    tree.add(ZEN2, "Thing/1", lua='execute{cmd="exit 7", modeA={"load"}}\n')
    failed(pyz, moved(tree, names=(EESSI, "Thing/1")), b"x86_64/amd/zen4->restore-failed", b"status 7")


@pytest.mark.parametrize("value", ["a\\nb", "x\\nexport EVIL=1"])
def test_a_value_with_a_line_break_goes_by_shell_and_not_by_prolog(pyz: Path, tree: Tree, value: str) -> None:
    for cpu in (ZEN4, ZEN2):
        # By execute: setenv of Lmod 8.6.19 does not quote a line break, and bash runs what follows it.
        tree.add(cpu, "Thing/1", lua=f"execute{{cmd=[[export THING=$'{value} {cpu}']], modeA={{'load'}}}}\n")
    environ = moved(tree, names=(EESSI, "Thing/1"))
    failed(pyz, environ, b"x86_64/amd/zen4->unsafe-environment", b"THING has a line break")
    assert by_shell(pyz, environ)[b"THING"] == tree.fresh(environ)[b"THING"]


def by_shell(pyz: Path, environ: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    script = 'eval "$("$1" --shell 2>/dev/null)"; exec /usr/bin/env -0'
    run = subprocess.run(["/bin/bash", "--norc", "-c", script, "bash", str(pyz)], env=environ, stdout=subprocess.PIPE)
    return dict(entry.partition(b"=")[::2] for entry in run.stdout.split(b"\0")[:-1])


def test_shell_mode_gives_the_same_environment(pyz: Path, tree: Tree) -> None:
    environ = moved(tree)
    assert differing(by_shell(pyz, environ), tree.fresh(environ)) == {}


def test_a_prefix_that_is_not_utf_8(pyz: Path, tmp_path: Path, tree: Tree) -> None:
    odd = Tree(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 space".replace(b" ", b"_"))))
    environ = moved(odd)
    assert b"\xe9" in environ[b"PATH"]
    assert_reloaded(pyz, odd, environ, ZEN4_TO_ZEN2)


def test_the_users_odd_variables_are_left_alone(pyz: Path, tree: Tree) -> None:
    odd = {
        b"RANDOM": b"5",
        b"SECONDS": b"7",
        b"LINENO": b"x",
        b"POSIXLY_CORRECT": b"1",
        b"CDPATH": b"/",
        b"SHELLOPTS": b"xtrace",
        b"WITH_BREAK": b"a\nexport EVIL=1",
        b"EMPTY": b"",
        b"NOT_UTF_8": b"\xff\xfe",
        b"caf\xe9": b"1",
        b"a.b-c": b"1",
        b"LUA_INIT": b"os.exit(3)",
        b"LD_LIBRARY_PATH": b"/nonexistent",
        b"UID": b"77",
    }
    environ = {**moved(tree), **odd}
    output = prolog(pyz, environ).stdout
    task = task_after(environ, output)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == ZEN4_TO_ZEN2, output
    assert {name: task.get(name) for name in odd} == odd
    assert not [line for line in output.splitlines() if line.split(b"=")[0].split(b" ")[-1] in odd]


CRASHING = ["bash", "sh", "uname", "grep", "sed", "readlink", "dirname", "env", "python3", "awk", "cat", "lua", "perl"]


def crashing_tools(folder: Path) -> bytes:
    folder.mkdir()
    for name in CRASHING:
        tool = folder / name
        tool.write_text("#!/bin/dash\nkill -ILL $$\n")
        tool.chmod(0o755)
    return os.fsencode(folder)


def test_a_path_that_begins_with_tools_for_another_cpu(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tools = crashing_tools(tmp_path / "crash")
    environ = moved(tree)
    reference = tree.fresh(environ)
    environ[b"PATH"] = tools + b":" + environ[b"PATH"]
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == ZEN4_TO_ZEN2
    # As Lmod would have left it: its own entries first, the user's folder where it was.
    own = reference[b"PATH"].index(b":/usr/local/bin")
    assert task[b"PATH"] == reference[b"PATH"][:own] + b":" + tools + reference[b"PATH"][own:]
    rest = {**task, b"PATH": b"", b"__LMOD_REF_COUNT_PATH": b""}
    assert differing(rest, {**reference, b"PATH": b"", b"__LMOD_REF_COUNT_PATH": b""}) == {}
    assert not any(b"/proc/" in value for value in task.values())
    tree.node(ZEN4)
    assert prolog(pyz, environ).stdout == b""


def test_a_stale_user_cache_is_looked_past(pyz: Path, tree: Tree) -> None:
    environ = moved(tree)
    environ[b"LMOD_CACHED_LOADS"] = b"yes"
    cache = tree.root / ".cache" / "lmod"
    cache.mkdir(parents=True, exist_ok=True)
    # A spider cache of a tree in which nothing is: what Lmod 8.6.19 leaves in HOME, for each place that it looks in.
    for name in ("spiderT.x86_64_Linux.lua", "spiderT.old.x86_64_Linux.lua", "spiderT.lua"):
        (cache / name).write_text("timestampFn = {}\nmrcT = {}\nspiderT = {}\nmpathMapT = {}\n")
    calls = tree.root / "lmod_calls"
    real = environ[b"LMOD_CMD"].decode()
    wrapper = tree.root / "lmod"
    # The first load knows nothing, as with that cache; LMOD_IGNORE_CACHE is what lifts it.
    wrapper.write_text(
        f'#!/bin/sh\necho "$* ${{LMOD_IGNORE_CACHE-}}" >>"{calls}"\n'
        f'case "$2,${{LMOD_IGNORE_CACHE-}}" in load,) echo false; exit 1 ;; esac\nexec "{real}" "$@"\n'
    )
    wrapper.chmod(0o755)
    environ[b"LMOD_CMD"] = os.fsencode(wrapper)
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == ZEN4_TO_ZEN2
    assert b"LMOD_IGNORE_CACHE" not in task
    kinds = [line.split()[1] + " " + line.split(" ")[-1] for line in calls.read_text().splitlines()]
    assert kinds == ["--force ", "load ", "--force 1", "load 1"]


LIES: "dict[str, str]" = {
    "prints nothing and exits 0": "exit 0",
    "prints false and exits 0": "echo false; exit 0",
    "claims the names and loads nothing": 'echo "export LOADEDMODULES=$LOADEDMODULES"; exit 0',
    "dies": "kill -SEGV $$",
}


@pytest.mark.parametrize("how", LIES)
def test_lmods_word_alone_is_not_believed(pyz: Path, tree: Tree, how: str) -> None:
    environ = moved(tree)
    lmod = tree.root / "lmod"
    lmod.write_text(f"#!/bin/sh\n{LIES[how]}\n")
    lmod.chmod(0o755)
    failed(pyz, {**environ, b"LMOD_CMD": os.fsencode(lmod)}, ZEN4_TO_ZEN2, b"EESSI's module selected x86_64/amd/zen4")


def test_a_warning_status_with_everything_loaded_is_a_success(pyz: Path, tree: Tree) -> None:
    environ = moved(tree)
    lmod = tree.root / "lmod"
    lmod.write_text(f'#!/bin/sh\n"{environ[b"LMOD_CMD"].decode()}" "$@"\nexit 1\n')
    lmod.chmod(0o755)
    environ[b"LMOD_CMD"] = os.fsencode(lmod)
    assert b"EESSI_ARCH_GUARD_RELOADED" in task_after(environ, prolog(pyz, environ).stdout)


def test_lmod_of_another_family_is_mapped_to_this_ones(pyz: Path, tree: Tree) -> None:
    environ = moved(tree)
    real = environ[b"LMOD_CMD"].decode()
    here = tree.prefix / "compat" / "linux" / "x86_64" / "usr" / "share" / "Lmod" / "libexec"
    here.mkdir(parents=True)
    (here / "lmod").write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    (here / "lmod").chmod(0o755)
    there = os.fsencode(here).replace(b"/x86_64/", b"/aarch64/")
    environ.update(
        {b"EESSI_SOFTWARE_SUBDIR": b"aarch64/neoverse_v1", b"LMOD_CMD": there + b"/lmod", b"LMOD_DIR": there}
    )
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == b"aarch64/neoverse_v1->x86_64/amd/zen2"
    assert task[b"LMOD_CMD"] == os.fsencode(here / "lmod")
    assert task[b"LMOD_DIR"] == os.fsencode(here)


def test_an_answer_about_the_login_node_does_not_outlive_the_purge(pyz: Path, tree: Tree) -> None:
    # Loaded without the override, reloaded with it: EESSI's module would prefer what it finds in the environment.
    environ = {**moved(tree), b"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": b"x86_64/generic"}
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == b"x86_64/amd/zen4->x86_64/generic"
    assert b"generic/software/App" in task[b"PATH"]


def test_an_earlier_failure_is_taken_back_by_a_good_reload(pyz: Path, tree: Tree) -> None:
    environ = {**moved(tree), b"EESSI_ARCH_GUARD_FAILED": b"x->timeout"}
    assert b"EESSI_ARCH_GUARD_FAILED" not in task_after(environ, prolog(pyz, environ).stdout)


def test_a_large_environment(pyz: Path, tree: Tree) -> None:
    environ = {**moved(tree), **{b"V%d" % number: b"x" * 300 for number in range(2000)}, b"BIG": b"y" * 120_000}
    assert_reloaded(pyz, tree, environ, ZEN4_TO_ZEN2)


def test_a_value_that_no_environment_can_hold_is_refused_whole(pyz: Path, tree: Tree) -> None:
    tree.add(ZEN4, "Thing/1")
    # MAX_ARG_STRLEN, execve(2): 32 pages, which are 4 to 64 KiB on aarch64.
    tree.add(ZEN2, "Thing/1", lua=f'setenv("THING", string.rep("x", {32 * mmap.PAGESIZE}))\n')
    environ = moved(tree, names=(EESSI, "Thing/1"))
    failed(pyz, environ, b"x86_64/amd/zen4->restore-failed", b"status 126")
