# SPDX-License-Identifier: GPL-2.0-or-later
"""What a site and a user of it have on a test cluster: EESSI, the guard, a TaskProlog, an environment with modules.

The nodes are of different kinds: a TaskProlog made here tells the guard where its node's /proc/cpuinfo is, and the task
too, so that what a user types there sees the same node.
"""

import os
import pwd
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.eessi import tree as eessi
from tests.slurm import host
from tests.slurm.cluster import Cluster
from tests.slurm.host import reachable_folder

USER = "eessi-guard-test"
CPUS = {"n1": eessi.HASWELL, "n2": eessi.ZEN2, "n3": eessi.ZEN4, "n4": eessi.GENERIC}
LOGIN_CPU = eessi.ZEN4
ALL = "--nodelist=" + ",".join(CPUS)
OVERDUE_NODE = "n5"
MATCHING = "n3"
OTHERS = ("n1", "n2", "n4")

# What the shell that types purge and load has of its own, and what Slurm and the guard add on purpose.
_OWN = {b"_", b"PWD", b"OLDPWD", b"SHLVL", b"TMPDIR", b"HOSTNAME", b"EESSI_ARCH_GUARD_RELOADED", b"ENVIRONMENT"}
# What Slurm 23.11 and later set for an mpirun in the job (env.c, set_env_from_opts).
_OWN |= {b"OMPI_MCA_plm_slurm_args", b"PRTE_MCA_plm_slurm_args", b"HYDRA_BOOTSTRAP", b"HYDRA_LAUNCHER_EXTRA_ARGS"}
_OWN |= {b"I_MPI_HYDRA_BOOTSTRAP", b"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"}

Environ = dict[bytes, bytes]


@dataclass
class Run:
    """What came of a command or a batch job: status (of a job: its ExitCode), job_id ("" for a command), text."""

    status: str
    output: str
    error: str = ""
    job_id: str = ""


class Desk:
    """Where the tasks of one test leave their environments. task: a program that does so and says nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o777)
        self.task = folder / "task"
        # /proc and not `env`: as the program was started, with names that a shell would not pass on.
        name = "$SLURM_JOB_ID.${SLURM_STEP_ID-batch}.$SLURMD_NODENAME.$SLURM_PROCID.$$.environ"
        self.task.write_text(f'#!/bin/sh\n/bin/cat /proc/$$/environ >"{folder}/{name}"\n')
        self.task.chmod(0o755)

    @classmethod
    def made(cls, parent: Path) -> "Desk":
        """A desk in a new folder below parent."""
        return cls(Path(tempfile.mkdtemp(prefix="desk-", dir=parent)))

    def tasks(self) -> "list[Environ]":
        """The environments, each as a program of a task was started with."""
        return [parsed(path.read_bytes()) for path in sorted(self.folder.glob("*.environ"))]


@dataclass
class Overdue:
    """A job whose guard waits for a detector that hangs: their pids, and where its tasks would report."""

    desk: Desk
    job_id: str
    detector: int
    guard: int


@dataclass
class Site:
    """A site on a cluster, and its user. folder: reachable by that user; pyz: the guard; home: the user's folder."""

    cluster: Cluster
    folder: Path
    pyz: Path
    tree: eessi.Tree = field(init=False)
    home: Path = field(init=False)
    by_node: Path = field(init=False)
    login: Environ = field(init=False)

    def __post_init__(self) -> None:
        self.pyz = Path(shutil.copy(self.pyz, self.folder))
        self.home = Path(pwd.getpwnam(USER).pw_dir)
        self.tree = self.miniature("eessi")
        self.login = self.logged_in(self.tree)
        self.by_node = self.wrapper("by-node", f'exec {self.pyz} "$@"')
        self.script("Epilog", f"exec {self.pyz} --clean")
        self.output = self.folder / "output"
        self.output.mkdir()
        self.output.chmod(0o777)
        self._references: dict[tuple[frozenset[tuple[bytes, bytes]], str], Environ] = {}

    @property
    def task_prolog(self) -> Path:
        """The path that slurm.conf names: a link, so that each test has its own TaskProlog in no time."""
        return self.folder / "TaskProlog"

    def prolog(self, program: "Path | str") -> None:
        """Makes a program the TaskProlog of every task that starts from now on."""
        temporary = self.folder / "TaskProlog.new"
        temporary.symlink_to(program)
        temporary.rename(self.task_prolog)

    def script(self, name: str, text: str, shell: str = "/bin/sh") -> Path:
        """An executable script."""
        path = self.folder / name
        path.write_text(f"#!{shell}\n{text}\n")
        path.chmod(0o755)
        return path

    def wrapper(self, name: str, text: str) -> Path:
        """A TaskProlog that makes each node what it is, then goes on with text."""
        cpuinfo = f"export EESSI_PROC_CPUINFO={self.folder}/cpuinfo/$SLURMD_NODENAME\n"
        return self.script(name, cpuinfo + 'echo "export EESSI_PROC_CPUINFO=$EESSI_PROC_CPUINFO"\n' + text)

    def miniature(self, name: str) -> eessi.Tree:
        """A miniature EESSI that the user can use, on a login node of LOGIN_CPU; and the nodes' kinds."""
        made = eessi.Tree(self.folder / name)
        (self.folder / "cpuinfo").mkdir(exist_ok=True)
        for node, cpu in {**CPUS, OVERDUE_NODE: eessi.HASWELL}.items():
            made.node(cpu)
            shutil.copy(made.cpuinfo, self.folder / "cpuinfo" / node)
        made.node(LOGIN_CPU)
        log = made.root / "detector.log"
        log.touch()
        log.chmod(0o666)
        return made

    def logged_in(
        self, tree: eessi.Tree, names: Iterable[str] = (eessi.EESSI, "App/1.0"), extra: Mapping[bytes, bytes] = {}
    ) -> Environ:
        """What the user has after loading modules on the login node; the guard has as long as a busy machine needs."""
        own = {b"HOME": os.fsencode(self.home), b"USER": USER.encode(), b"LOGNAME": USER.encode()}
        own[b"EESSI_ARCH_GUARD_TIMEOUT"] = b"600"
        return tree.login(names, {**own, **extra})

    def at(self, node: str, environ: Environ) -> Environ:
        """environ as TaskProlog's wrapper has it on that node, without a guard."""
        return {**environ, b"EESSI_PROC_CPUINFO": os.fsencode(self.folder / "cpuinfo" / node)}

    def fresh(self, environ: Environ, node: str) -> Environ:
        """What the user would get who typed purge and load on that node, with environ to start from."""
        start = self.at(node, environ)
        start = {name: value for name, value in start.items() if not name.startswith((b"SLURM", b"SRUN_"))}
        key = (frozenset(start.items()), node)
        if key not in self._references:
            self._references[key] = self.tree.fresh(start)
        return self._references[key]

    def run(self, *command: "str | Path", environ: "Environ | None" = None, timeout_s: float = 240.0) -> Run:
        """What came of a command that the user gave, with the modules of the login node unless environ is given."""
        given = self.login if environ is None else environ
        run = self.cluster.run_as(USER, *command, environ=given, timeout_s=timeout_s)
        return Run(str(run.returncode), run.stdout.decode(), run.stderr.decode())

    def detector(self, desk: Desk, text: str) -> Environ:
        """What makes the guard ask another detector, a bash script of this text. EESSI's own module does not."""
        init = desk.folder / "init"
        init.mkdir()
        (init / "eessi_archdetect.sh").write_text(text)
        return {b"EESSI_INIT_PREFIX": os.fsencode(init)}

    def hanging(self, desk: Desk) -> Environ:
        """What makes the guard ask a detector that never answers: it waits for a child of its own."""
        say = f'[ "$1" = -a ] && echo $! $PPID >{desk.folder}/hung'
        return self.detector(desk, f"sleep 600 &\n{say}\nwait\n")

    def hung(self, desk: Desk) -> "tuple[int, int]":
        """The pids of what a detector hangs in and of the guard that waits for it, once there are."""
        file = desk.folder / "hung"
        self.cluster.wait_for(lambda: file.exists() and file.read_text().endswith("\n"), "no detector hangs")
        detector, guard = file.read_text().split()
        return int(detector), int(guard)

    def typed(self, text: str, *command: str, environ: "Environ | None" = None, timeout_s: float = 240.0) -> str:
        """What a terminal showed in which the user gave a command and then typed text, until the command ended."""
        ours_fd, users_fd = os.openpty()
        given = self.login if environ is None else environ
        with self.cluster.popen_as(
            USER, "setsid", "--ctty", "--wait", *command, environ=given, stdio_fd=users_fd
        ) as process:
            os.close(users_fd)
            os.write(ours_fd, text.encode())
            shown = bytearray()
            until_s = time.monotonic() + timeout_s
            while select.select([ours_fd], [], [], max(0.0, until_s - time.monotonic()))[0]:
                try:
                    shown += os.read(ours_fd, 65536)
                except OSError:  # nobody has the terminal open any more
                    break
            else:
                process.kill()
            os.close(ours_fd)
        return shown.decode()

    def submit(self, text: str, *options: str, environ: "Environ | None" = None) -> str:
        """The id of a batch job of the user's with this text, its output in its own file."""
        script = self.script("job.sh", text, "/bin/bash")
        given = ["sbatch", "--parsable", f"--output={self.output}/%j.out", *options, str(script)]
        run = self.run(*given, environ=environ)
        if run.status != "0":
            raise RuntimeError(run.error)
        return run.output.strip()

    def batch(self, text: str, *options: str, environ: "Environ | None" = None, timeout_s: float = 240.0) -> Run:
        """What came of a batch job, once it has ended, whichever way."""
        return self.ended(self.submit(text, *options, environ=environ), timeout_s)

    def ended(self, job_id: str, timeout_s: float = 240.0) -> Run:
        """What came of a job that has been submitted."""
        states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        job = self.cluster.wait_job(job_id, *states, timeout_s=timeout_s)
        return Run(job["ExitCode"], (self.output / f"{job_id}.out").read_text(), job_id=job_id)

    def idle(self) -> None:
        """Waits until no node of CPUS has a job or an Epilog of one."""
        self.cluster.wait_idle(*CPUS)

    def cache_files(self, job_id: str) -> "list[str]":
        """The names of what the guard has left in /tmp for a job of the user's."""
        uid = pwd.getpwnam(USER).pw_uid
        return sorted(path.name for path in Path("/tmp").glob(f".eessi-arch-guard.{uid}.*.{job_id}.*"))


@contextmanager
def running(pyz: Path) -> "Iterator[Site]":
    """A site with this guard on a cluster of its own, until the end of the context. Needs root; makes the user, who
    stays: another cluster on this machine may be using the same."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True)
    with reachable_folder() as folder:
        place, own = folder / "site", folder / "cluster"
        place.mkdir()
        own.mkdir()
        (place / "TaskProlog").symlink_to("/bin/true")
        lines = [f"TaskProlog={place}/TaskProlog", f"Epilog={place}/Epilog", "LaunchParameters=use_interactive_step"]
        with Cluster(own, lines, node_count=len(CPUS) + 1) as cluster:
            yield Site(cluster, place, pyz)


def is_batch(task: Environ) -> bool:
    """Whether a batch script's: it has no step number, from Slurm 26.05 on -5 (env.c, setup_env)."""
    return task.get(b"SLURM_STEP_ID") == (b"-5" if host.slurm_version() >= (26, 5) else None)


def parsed(data: bytes) -> Environ:
    """An environment as it lies in /proc: NUL after each entry."""
    return dict(entry.partition(b"=")[::2] for entry in data.split(b"\0")[:-1])


def differences(got: Environ, expected: Environ) -> "dict[bytes, tuple[bytes | None, bytes | None]]":
    """What a task has and what it should have, by name, where they differ; Slurm's own variables are passed over."""
    return {
        name: (got.get(name), expected.get(name))
        for name in {**got, **expected}
        if got.get(name) != expected.get(name) and name not in _OWN and not name.startswith((b"SLURM", b"SRUN_"))
    }
