# SPDX-License-Identifier: GPL-2.0-or-later
"""A real Slurm on loopback: an own munged, a slurmctld, and one slurmd for each node name, all on this host.

Several may run on a machine at once: each has its own folder, ports, munge key and socket. Needs root, no systemd.
The daemons stay in the foreground, as children: what is ended is exactly what was started. A pid file could name a
process that is long gone, and a number that another one has by now.
"""

import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.slurm import host

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol")
# So that jobs of two clusters on one machine have their own names in /tmp; MaxJobId is 67,043,327.
_JOB_IDS = (1000, 60_000_000)
# Only where something is wrong is so long waited.
_WAIT_S = 240.0
_LOOK_S = 0.05

# KillWait is the time between SIGTERM and SIGKILL, in seconds: whoever heeds the first must have come to it by then.
# MessageTimeout is what slurmctld waits for a slurmd's answer. After Slurm's own 10 s, which a busy machine may need, a
# node does not respond, and the next job waits for the RPC's second try (60 s) or for a ping (100 s). 100 is the most.
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=30
MessageTimeout=100
FirstJobId={job_id}
"""


class Cluster:
    """A Slurm of its own, as a context: started on the way in, ended on the way out.

    conf: the path of its slurm.conf; lines: those of it that were given; environ: what a command needs to find it;
    nodes: the names of its nodes.
    """

    def __init__(self, folder: Path, lines: Iterable[str] = (), node_count: int = 4, node_cpus_count: int = 64) -> None:
        """folder - empty, as host.reachable_folder gives it; lines - more for slurm.conf."""
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.nodes = tuple(f"n{number}" for number in range(1, node_count + 1))
        self.environ = {b"SLURM_CONF": os.fsencode(self.conf), b"PATH": b"/usr/bin:/bin:/usr/sbin:/sbin"}
        self._node_cpus_count = node_cpus_count
        self.lines = list(lines)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the daemons and waits until every node is idle. Raises: RuntimeError - with the end of the logs."""
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o755)
        self._configure()
        munge = self.folder / "munge"
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = [
            f"--{name}={munge}/{name.partition('-')[0]}" for name in ("key-file", "pid-file", "log-file", "seed-file")
        ]
        self._daemon("munged", "--foreground", f"--socket={munge}/socket", *files)
        self.wait_for((munge / "socket").exists, "munged has no socket")
        self._daemon("slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self._daemon("slurmd", "-D", "-f", str(self.conf), "-N", node)
        self.wait_idle()

    def stop(self) -> None:
        """Ends the jobs, then the daemons. Raises: RuntimeError - a job's slurmstepd would not go."""
        try:
            left = self._steps_after_end()
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in reversed(self._daemons):
                try:
                    daemon.wait(_WAIT_S)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            self._daemons.clear()
        if left:
            raise RuntimeError(f"steps that do not end: {left}")

    def reconfigure(self, lines: Iterable[str]) -> None:
        """Replaces the lines that were given for slurm.conf, and lets the daemons read it again."""
        self.lines = list(lines)
        self._write()
        # From 23.11 on slurmctld becomes a new process for it (controller.c, _try_to_reconfig): who asks while one
        # before is still at it finds nobody.
        self.wait_for(lambda: self._is_done("scontrol", "reconfigure"), "it does not reconfigure")
        self.wait_for(lambda: self._is_done("scontrol", "ping"), "slurmctld is not back")

    def run_as(
        self, user: str, *command: "str | Path", environ: Mapping[bytes, bytes] = {}, timeout_s: float = _WAIT_S
    ) -> "subprocess.CompletedProcess[bytes]":
        """What came of a command that a user gave, in the user's home folder. Its stdin is empty.

        Raises: RuntimeError - it took longer; with what the user has running, and the logs.
        """
        process = self.popen_as(user, *command, environ=environ)
        try:
            output, error = process.communicate(timeout=timeout_s)
        except BaseException as caught:
            shown = host.processes(pwd.getpwnam(user).pw_uid)
            process.kill()
            output, error = process.communicate()
            if isinstance(caught, subprocess.TimeoutExpired):
                said = (output + error).decode(errors="replace")
                what = f"{command} took more than {timeout_s} s: {said}\n{shown}\n{self.logs()}"
                raise RuntimeError(what) from caught
            raise
        return subprocess.CompletedProcess(command, process.returncode, output, error)

    def popen_as(
        self, user: str, *command: "str | Path", environ: Mapping[bytes, bytes] = {}, stdio_fd: "int | None" = None
    ) -> "subprocess.Popen[bytes]":
        """The same, just started. stdio_fd: for its stdin, stdout and stderr instead of pipes, such as a terminal."""
        account = pwd.getpwnam(user)
        return subprocess.Popen(
            command,
            env={b"HOME": os.fsencode(account.pw_dir), b"USER": os.fsencode(user), **self.environ, **environ},
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            cwd=account.pw_dir if os.path.isdir(account.pw_dir) else "/",
            stdin=subprocess.DEVNULL if stdio_fd is None else stdio_fd,
            stdout=subprocess.PIPE if stdio_fd is None else stdio_fd,
            stderr=subprocess.PIPE if stdio_fd is None else stdio_fd,
            start_new_session=True,
        )

    def command(self, *command: str, check: bool = True) -> str:
        """What a command of root's prints. Raises: RuntimeError - its status is not 0, and check."""
        run = subprocess.run(command, env=self.environ, capture_output=True, timeout=_WAIT_S)
        if check and run.returncode:
            raise RuntimeError(f"{' '.join(command)}: {run.stderr.decode(errors='replace')}")
        return run.stdout.decode()

    def pids(self) -> "list[int]":
        """The daemons' process ids."""
        return [daemon.pid for daemon in self._daemons]

    def jobs(self) -> "list[str]":
        """The ids of the jobs that have not ended; none where nobody knows."""
        return self.command("squeue", "--noheader", "--format=%A", check=False).split()

    def job(self, job_id: str) -> "dict[str, str]":
        """What slurmctld knows of a job: the words of `scontrol --details show job` that have a `=`."""
        words = self.command("scontrol", "--details", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_job(self, job_id: str, *states: str, timeout_s: float = _WAIT_S) -> "dict[str, str]":
        """The job once it is in one of the states, such as COMPLETED. Raises: RuntimeError - it is not."""
        self.wait_for(
            lambda: self.job(job_id)["JobState"] in states, f"job {job_id} is not {' or '.join(states)}", timeout_s
        )
        return self.job(job_id)

    def wait_idle(self, *nodes: str) -> None:
        """Waits until the nodes, or all, are idle: no job, no Epilog of one. Raises: RuntimeError - they are not."""
        self.wait_for(lambda: self._is_idle(*nodes), "not every node is idle")

    def wait_for(self, is_so: "Callable[[], bool]", what: str, timeout_s: float = _WAIT_S) -> None:
        """Waits until is_so(). Raises: RuntimeError - it does not come, or a daemon has ended."""
        until_s = time.monotonic() + timeout_s
        while not is_so():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > until_s:
                raise RuntimeError(f"{what}; ended: {ended}\n{self.logs()}")
            time.sleep(_LOOK_S)

    def logs(self) -> str:
        """The last lines of every daemon's log, for a person who looks for the reason of a failure."""
        return "\n".join(
            f"== {path.name}\n" + "".join(path.open(errors="replace").readlines()[-12:])
            for pattern in ("munge/log", "*.out", "*.log")
            for path in sorted(self.folder.glob(pattern))
            if path.stat().st_size
        )

    def _configure(self) -> None:
        ports = host.free_ports(len(self.nodes) + 1)
        name = socket.gethostname().partition(".")[0]
        self._base = [
            *_CONF.format(
                host=name, port=ports.pop(), folder=self.folder, job_id=random.randrange(*_JOB_IDS)
            ).splitlines()
        ]
        self._base += [
            f"NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port}"
            f" CPUs={self._node_cpus_count} RealMemory=4000 State=UNKNOWN"
            for node, port in zip(self.nodes, ports)
        ]
        self._base.append("PartitionName=p Nodes=ALL Default=YES OverSubscribe=YES MaxTime=60")
        self._write()

    def _write(self) -> None:
        # In one step: a daemon that reconfigures may be reading it, and ends itself over half a file (23.11 and later).
        made = self.folder / "slurm.conf.new"
        made.write_text("\n".join([*self._base, *self.lines, ""]))
        made.replace(self.conf)

    def _daemon(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.out", "ab") as out:
            program = shutil.which(command[0], path=os.fsdecode(self.environ[b"PATH"]))
            if not program:
                raise RuntimeError(f"{command[0]} is not installed")
            process = subprocess.Popen(
                [program, *command[1:]],
                env=self.environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._daemons.append(process)

    def _is_done(self, *command: str) -> bool:
        return not subprocess.run(command, env=self.environ, capture_output=True, timeout=_WAIT_S).returncode

    def _is_idle(self, *nodes: str) -> bool:
        wanted = nodes or self.nodes
        given = ("--noheader", "--Node", "--format=%N %T", f"--nodes={','.join(wanted)}")
        # A node has a line for each of its partitions.
        shown = set(self.command("sinfo", *given, check=False).splitlines())
        return shown == {f"{node} idle" for node in wanted}

    def _steps_after_end(self) -> "list[str]":
        """Ends every job; the sockets of slurmstepds that still live, <node>_<job>.<step> (slurmd, stepd_api.c)."""
        jobs = self.jobs()
        if jobs:
            self.command("scancel", *jobs, check=False)
            until_s = time.monotonic() + _WAIT_S
            while not self._is_idle() and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        # A slurmstepd ends a moment after slurmctld has heard of its step's end.
        until_s = time.monotonic() + _WAIT_S
        while (left := self._step_sockets()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return left

    def _step_sockets(self) -> "list[str]":
        return [path.name for path in self.folder.glob("spool/*/*_*.*") if path.is_socket()]
