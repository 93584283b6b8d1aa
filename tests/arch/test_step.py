# SPDX-License-Identifier: GPL-2.0-or-later
"""One decision per step, by real processes in a real shared folder: storms, dead holders, odd disks, and an attacker.

The folder stands for /tmp: TMPDIR names it, mode 1777, root's. Users are uids, as root can be any of them.
"""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guard.arch import cache
from guard.arch.emit import Outcome
from tests.conftest import need, need_program
from tests.eessi.tree import EESSI, ZEN2, ZEN4, Tree, lmod_init

USER, ATTACKER, OTHER = 40001, 40002, 40003
Environ = dict[bytes, bytes]
IS_ROOT = os.geteuid() == 0


class Node:
    """A node with a shared folder, a tree that everybody can read, and a user whose modules were loaded elsewhere."""

    def __init__(self, folder: Path, pyz: Path) -> None:
        folder.chmod(0o755)
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        self.pyz = folder / "guard.pyz"
        shutil.copy(pyz, self.pyz)
        self.tree = Tree(folder / "eessi")
        log = self.tree.root / "detector.log"
        log.touch()
        log.chmod(0o666)
        self.tree.node(ZEN4)
        self.environ = self.tree.login()
        self.tree.node(ZEN2)
        log.write_text("")
        self.environ.update(
            {
                b"SLURM_JOB_START_TIME": b"1",
                b"SLURM_JOB_ID": b"42",
                b"SLURM_STEP_ID": b"0",
                b"SLURMD_NODENAME": b"n1",
                b"TMPDIR": os.fsencode(self.tmp),
                b"HOME": b"/",
            }
        )

    def call(self, uid: int, *arguments: str, environ: "Environ | None" = None) -> "subprocess.CompletedProcess[bytes]":
        run: subprocess.CompletedProcess[bytes] = subprocess.run(
            ["/bin/sh", str(self.pyz), *arguments],
            env=environ or self.environ,
            capture_output=True,
            check=False,
            timeout=600,
            **({"user": uid, "group": uid, "extra_groups": []} if IS_ROOT else {}),  # type: ignore[call-overload]
        )
        return run

    def path(self, uid: int) -> Path:
        found = json.loads(self.call(uid, "--check", "--json").stdout)
        (self.tree.root / "detector.log").write_text("")
        return Path(found["cache_file"])

    def decisions(self) -> int:
        return self.tree.decisions()

    def left(self) -> "list[str]":
        return sorted(os.listdir(self.tmp))


@pytest.fixture
def node(pyz: Path) -> Iterator[Node]:
    need("Lmod", lmod_init())
    # Not tmp_path: pytest's own folder is closed to other users.
    folder = tempfile.mkdtemp(prefix="guard-step-")
    try:
        yield Node(Path(folder), pyz)
    finally:
        shutil.rmtree(folder)


def assert_good(run: "subprocess.CompletedProcess[bytes]") -> None:
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"export EESSI_ARCH_GUARD_RELOADED=x86_64/amd/zen4->x86_64/amd/zen2\n" in run.stdout
    assert b"EVIL" not in run.stdout


def storm(node: Node, count: int, environ: "Environ | None" = None, uids: "tuple[int, ...]" = (USER,)) -> "list[bytes]":
    def task(number: int) -> bytes:
        own = {**(environ or node.environ), b"SLURM_LOCALID": b"1", b"SLURM_PROCID": b"%d" % number}
        own[b"EESSI_ARCH_GUARD_TIMEOUT"] = b"600"  # so many at once may take longer than a task would wait
        run = node.call(uids[number % len(uids)], environ=own)
        assert_good(run)
        return run.stdout

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(task, range(count)))


def test_192_tasks_at_once_make_one_decision_and_have_one_answer(node: Node) -> None:
    outputs = storm(node, 192)
    assert len(set(outputs)) == 1
    assert node.decisions() == 1
    (lock, outcome) = sorted(node.left(), reverse=True)
    assert lock == outcome + ".lock"
    assert stat.S_IMODE((node.tmp / outcome).stat().st_mode) == 0o600


@pytest.mark.skipif(not IS_ROOT, reason="only root can run tasks as two users")
def test_two_users_of_one_node_decide_once_each_and_do_not_share(node: Node) -> None:
    storm(node, 40, uids=(USER, OTHER))
    assert node.decisions() == 2
    assert len(node.left()) == 4


def test_rank_0_prints_also_when_another_rank_decided(node: Node) -> None:
    quiet = node.call(USER, environ={**node.environ, b"SLURM_LOCALID": b"5"})
    loud = node.call(USER, environ={**node.environ, b"SLURM_LOCALID": b"0"})
    assert b"print " not in quiet.stdout
    assert loud.stdout.startswith(quiet.stdout)
    assert loud.stdout[len(quiet.stdout) :].startswith(b"print eessi-arch-guard: reloaded 5 modules on n1: ")
    assert node.decisions() == 1


@pytest.mark.parametrize("name", [b"PATH", b"MODULEPATH", b"EESSI_PROC_CPUINFO"])
def test_tasks_that_differ_in_what_decides_do_not_share(node: Node, name: bytes) -> None:
    other = {**node.environ, name: node.environ[name] + (b":/x" if name != b"EESSI_PROC_CPUINFO" else b".other")}
    shutil.copy(node.tree.cpuinfo, f"{node.tree.cpuinfo}.other")
    assert_good(node.call(USER))
    assert_good(node.call(USER, environ=other))
    assert node.decisions() >= 2
    assert len(node.left()) == 4


def test_tasks_that_differ_in_the_modules_do_not_share(node: Node) -> None:
    node.tree.node(ZEN4)
    other = {**node.environ, **node.tree.login((EESSI, "GCCcore/12.3.0"))}
    node.tree.node(ZEN2)
    assert b"->x86_64/amd/zen2" in node.call(USER, environ=other).stdout
    assert_good(node.call(USER))
    assert len(node.left()) == 4


def test_tasks_that_differ_in_the_opt_out_share(node: Node) -> None:
    assert_good(node.call(USER))
    assert node.call(USER, environ={**node.environ, b"EESSI_ARCH_GUARD": b"0"}).stdout == b""
    assert_good(node.call(USER, environ={**node.environ, b"EESSI_ARCH_GUARD": b"1"}))
    assert node.decisions() == 1


def test_prolog_and_shell_are_separate_results(node: Node) -> None:
    for cpu in (ZEN4, ZEN2):
        node.tree.add(cpu, "Thing/1", lua=f"execute{{cmd=[[export THING=$'a\\nb {cpu}']], modeA={{'load'}}}}\n")
    node.tree.node(ZEN4)
    environ = {**node.environ, **node.tree.login((EESSI, "Thing/1"))}
    node.tree.node(ZEN2)
    assert b"->unsafe-environment\n" in node.call(USER, environ=environ).stdout
    shell = node.call(USER, "--shell", environ=environ)
    assert b"export THING='a\nb x86_64/amd/zen2'\n" in shell.stdout
    assert [name.split(".")[6] for name in node.left()] == ["prolog", "prolog", "shell", "shell"]


# A holder that dies, at each step of its work: strace kills it as it makes a system call. "?": not on each machine.

DEATHS = {
    "as it opens the lock": "umask:signal=KILL:when=1",
    "with the lock open": "umask:signal=KILL:when=2",
    "as it takes the lock": "flock:signal=KILL:when=1",
    "as it starts a child": "clone,?fork,?vfork,clone3:signal=KILL:when=2",
    "as it makes the file": "umask:signal=KILL:when=3",
    "with the file made": "umask:signal=KILL:when=4",
    "as it publishes": "?rename,?renameat,renameat2:signal=KILL:when=1",
    "as it tidies up": "getdents64:signal=KILL:when=1",
}


@pytest.mark.parametrize("when", DEATHS)
def test_a_holder_that_dies_frees_the_lock_and_leaves_nothing_that_is_believed(node: Node, when: str) -> None:
    strace = need_program("strace")
    call = [strace, "-qq", "-o", "/dev/null", "-e", f"inject={DEATHS[when]}"]
    call += ["-P", str(node.tmp)] if "getdents" in DEATHS[when] else []
    dead = subprocess.run([*call, "/usr/bin/python3", "-I", "-S", str(node.pyz)], env=node.environ, capture_output=True)
    assert dead.returncode == -signal.SIGKILL
    log = node.tree.root / "detector.log"
    while "child" in when and not node.decisions():
        time.sleep(0.01)  # the child that it had started goes on for a moment
    before = node.decisions()
    assert_good(node.call(os.getuid()))
    published = when == "as it tidies up"
    assert node.decisions() - before == (0 if published else 1)
    log.write_text("")
    assert_good(node.call(os.getuid()))
    assert node.decisions() == 0


def test_a_holder_that_hangs_costs_the_others_no_more_than_the_deadline(node: Node) -> None:
    (node.tree.init / "eessi_archdetect.sh").write_text(f'touch "{node.tree.root}/hangs"; sleep 1000')
    call = [sys.executable, "-I", str(node.pyz), "--timeout", "60"]
    with subprocess.Popen(call, env=node.environ, stdout=subprocess.PIPE) as holder:
        while not (node.tree.root / "hangs").exists():
            time.sleep(0.01)
        begin = time.monotonic()
        waiting = node.call(os.getuid(), "--timeout", "1")
        assert b"->timeout\n" in waiting.stdout
        assert 1 <= time.monotonic() - begin < 40
        holder.send_signal(signal.SIGTERM)
        out, _ = holder.communicate(timeout=240)
    assert b"->terminated\n" in out
    assert [name for name in node.left() if not name.endswith(".lock")] == []


def test_a_waiting_task_that_is_told_to_stop_says_so(node: Node) -> None:
    (node.tree.init / "eessi_archdetect.sh").write_text(f'touch "{node.tree.root}/hangs"; sleep 1000')
    call = [sys.executable, "-I", str(node.pyz)]
    with subprocess.Popen(call, env=node.environ, stdout=subprocess.PIPE) as holder:
        while not (node.tree.root / "hangs").exists():
            time.sleep(0.01)
        with subprocess.Popen(call, env=node.environ, stdout=subprocess.PIPE) as waiter:
            while b"flock" not in Path(f"/proc/{waiter.pid}/wchan").read_bytes() and not _waits(waiter.pid):
                time.sleep(0.01)
            waiter.send_signal(signal.SIGTERM)
            out, _ = waiter.communicate(timeout=240)
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=240)
    assert b"->terminated\n" in out
    assert waiter.returncode == 0


def _waits(pid: int) -> bool:
    """Whether a process is blocked in flock(2)."""
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return number == ("73" if os.uname().machine == "x86_64" else "32")  # aarch64 has those of asm-generic


def test_a_finished_decision_is_still_published_when_sigterm_comes_while_it_is_written(node: Node) -> None:
    strace = need_program("strace")
    inject = "inject=umask:signal=TERM:when=3"
    call = [strace, "-qq", "-o", "/dev/null", "-e", inject, "/usr/bin/python3", "-I", "-S", str(node.pyz)]
    assert_good(subprocess.run(call, env=node.environ, capture_output=True))
    assert len(node.left()) == 2
    log = node.tree.root / "detector.log"
    log.write_text("")
    assert_good(node.call(os.getuid()))
    assert node.decisions() == 0


# Disks on which it cannot work: every task decides for itself, and is right.


@pytest.mark.parametrize("error", ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "EIO"])
def test_where_locks_do_not_work_each_task_decides_alone(node: Node, error: str) -> None:
    strace = need_program("strace")
    call = [strace, "-qq", "-o", "/dev/null", "-e", f"inject=flock:error={error}", "/usr/bin/python3", "-I", "-S"]
    for number in (1, 2):
        assert_good(subprocess.run([*call, str(node.pyz)], env=node.environ, capture_output=True))
        assert node.decisions() == number
    assert [name for name in node.left() if not name.endswith(".lock")] == []


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount")
@pytest.mark.parametrize("options", ["size=4k,nr_inodes=2", "size=4k", "ro"])
def test_a_full_or_read_only_disk(node: Node, options: str) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=1777", "none", str(node.tmp)])
    need("a mount", mounted.returncode == 0)
    try:
        for _ in range(2):
            assert_good(node.call(USER))
        assert [name for name in node.left() if not name.endswith(".lock")] == []
    finally:
        subprocess.run(["umount", str(node.tmp)], check=True)


def test_a_file_size_limit_of_zero(node: Node) -> None:
    for _ in range(2):
        run = subprocess.run(
            ["/bin/bash", "-c", f'ulimit -f 0; exec /bin/sh "{node.pyz}"'], env=node.environ, capture_output=True
        )
        assert_good(run)
    assert [name for name in node.left() if not name.endswith(".lock")] == []


# An attacker with another uid in the same folder.


def victims_file(node: Node) -> Path:
    path = node.tree.root / "bashrc"
    path.write_bytes(b"precious")
    path.chmod(0o666)
    os.chown(path, USER, USER)
    return path


def plant_valid(node: Node, path: Path, mode: int) -> None:
    path.write_bytes(cache.pack(Outcome(b"export EVIL=1\n", b"", b""), os.fsencode(path.name)))
    path.chmod(mode)


def plant_socket(_: Node, path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    os.chdir(path.parent)
    server.bind(path.name)
    server.close()


def plant_huge(_: Node, path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    path.chmod(0o600)


PLANTS: "dict[str, Callable[[Node, Path], object]]" = {
    "a link to the victim's file": lambda node, path: path.symlink_to(victims_file(node)),
    "a link to a folder": lambda node, path: path.symlink_to(node.tree.root),
    "a link to nothing": lambda node, path: path.symlink_to(node.tmp / "made"),
    "another name of the victim's file": lambda node, path: os.link(victims_file(node), path),
    "a FIFO": lambda _, path: os.mkfifo(path, 0o666),
    "a socket": plant_socket,
    "a folder": lambda _, path: path.mkdir(),
    "a device": lambda _, path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)),
    "a huge file": plant_huge,
    "his own empty file": lambda _, path: path.touch(mode=0o600),
    "a valid-looking file": lambda node, path: plant_valid(node, path, 0o600),
    "a valid-looking file for all": lambda node, path: plant_valid(node, path, 0o666),
}


@pytest.mark.skipif(not IS_ROOT, reason="only root can be two users")
@pytest.mark.parametrize("where", ["outcome", "lock"])
@pytest.mark.parametrize("what", PLANTS)
def test_what_an_attacker_planted_before_changes_nothing(node: Node, what: str, where: str) -> None:
    path = node.path(USER)
    if where == "lock":
        path = path.with_name(path.name + ".lock")
    here = os.getcwd()
    PLANTS[what](node, path)
    os.chdir(here)
    if what != "another name of the victim's file":
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
    planted = path.lstat()
    for _ in range(2):
        assert_good(node.call(USER))
    assert path.lstat() == planted or stat.S_ISFIFO(planted.st_mode)
    precious = node.tree.root / "bashrc"
    assert not precious.exists() or precious.read_bytes() == b"precious"
    assert not (node.tmp / "made").exists()
    assert [name for name in node.left() if "." + path.name not in name and name.count(".") > 8] == []


@pytest.mark.skipif(not IS_ROOT, reason="only root can be two users")
def test_a_file_of_the_victims_own_that_all_can_write_is_not_believed(node: Node) -> None:
    path = node.path(USER)
    plant_valid(node, path, 0o666)
    os.chown(path, USER, USER)
    assert_good(node.call(USER))
    # The same, with the right mode, is what the cache is: here the attacker would have to be the victim.
    path.chmod(0o600)
    assert b"EVIL" in node.call(USER).stdout


RACER = """
import os, sys, random
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
names = [sys.argv[1], sys.argv[1] + ".lock"]
target = sys.argv[2]
while True:
    name = random.choice(names)
    try:
        kind = random.randrange(4)
        if kind == 0: os.symlink(target, name)
        elif kind == 1: os.mkfifo(name, 0o666)
        elif kind == 2: os.mkdir(name)
        else: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError: pass
    try: os.unlink(name)
    except OSError:
        try: os.rmdir(name)
        except OSError: pass
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can be two users")
def test_what_an_attacker_plants_meanwhile_changes_nothing(node: Node) -> None:
    path = node.path(USER)
    precious = victims_file(node)
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER.format(uid=ATTACKER), str(path), str(precious)]) for _ in range(2)
    ]
    try:
        for step in range(12):
            assert_good(node.call(USER, environ={**node.environ, b"SLURM_LOCALID": b"%d" % step}))
            for name in node.left():
                try:
                    if (node.tmp / name).lstat().st_uid == USER:
                        (node.tmp / name).unlink()
                except FileNotFoundError:
                    pass  # the attacker's, gone again
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert precious.read_bytes() == b"precious"


def test_clean_takes_away_what_the_steps_of_a_job_left(node: Node) -> None:
    for step in (b"0", b"1", b"batch"):
        assert_good(node.call(USER, environ={**node.environ, b"SLURM_STEP_ID": step}))
    other = {**node.environ, b"SLURM_JOB_ID": b"43"}
    assert_good(node.call(USER, environ=other))
    assert len(node.left()) == 8
    clean = {b"SLURM_JOB_ID": b"42", b"SLURMD_NODENAME": b"n1", b"TMPDIR": node.environ[b"TMPDIR"]}
    assert node.call(USER, "--clean", environ=clean).returncode == 0
    assert [name.split(".")[4] for name in node.left()] == ["43", "43"]


def test_a_cached_answer_imports_few_modules(node: Node) -> None:
    assert_good(node.call(os.getuid()))
    # What the header gives to Python, with a look at the modules where the process would end.
    boot = re.search(r"\nboot='(.*?)'\n", node.pyz.read_bytes()[:8192].decode("latin-1"), re.DOTALL)
    assert boot
    probe = "import sys; before = set(sys.modules)\n" + boot[1].replace(
        "\nstart()",
        "\nreal = posix._exit; posix._exit = lambda status: None; start()\n"
        "posix.write(2, ' '.join(sorted(set(sys.modules) - before)).encode()); real(0)",
    )
    call = ["/usr/bin/python3", "-I", "-S", "-c", probe, str(node.pyz)]
    run = subprocess.run(call, env=node.environ, capture_output=True)
    assert b"EESSI_ARCH_GUARD_RELOADED" in run.stdout
    own = {name for name in run.stderr.decode().split() if name.startswith("guard")}
    rest = set(run.stderr.decode().split()) - own
    heavy = {"json", "subprocess", "dataclasses", "typing", "logging", "re", "enum", "signal", "hashlib", "socket"}
    assert not rest & heavy
    assert own == HIT_MODULES
    assert rest <= HIT_STDLIB


# What a cached answer imports, all of it: a module more is a decision, not an accident.
HIT_MODULES = {
    "guard",
    "guard.__main__",
    "guard.arch",
    "guard.arch.cache",
    "guard.arch.emit",
    "guard.arch.main",
    "guard.arch.options",
    "guard.arch.request",
    "guard.base",
    "guard.base.deadline",
    "guard.base.faults",
    "guard.base.files",
    "guard.base.limits",
}
HIT_STDLIB = {"_sha256", "_sha2", "_stat", "select"}
