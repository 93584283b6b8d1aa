# SPDX-License-Identifier: GPL-2.0-or-later
"""A cluster whose nodes have the tap: beside each slurmd a node daemon and a scraper of its own."""

import hashlib
import json
import pwd
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT
from tests.relay.rig import Record, Rig, eventually
from tests.slurm.cluster import Cluster
from tests.slurm.host import reachable_folder
from tests.slurm.site import USER

NODES = ("n1", "n2", "n3", "n4")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
# Tells what ends it.
LONG_JOB = (
    "trap 'echo got TERM; exit 4' TERM; trap 'echo got USR1; exit 10' USR1; echo begun; while :; do sleep 0.1; done"
)


def built(out: Path) -> Path:
    """The plugin, compiled for the Slurm that is installed."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "build" / "spank"), f"OUT={out}"], check=True)
    (plugin,) = out.glob("relay_io-*.so")
    return plugin


@dataclass
class Ran:
    """What came of a command or job. job_id: of whichever job it was; files: what it left in its folder, by name."""

    status: str
    output: bytes
    error: bytes
    job_id: str
    files: "dict[str, bytes]" = field(default_factory=dict)


@dataclass
class Relayed:
    """The cluster. place: a folder that the user can write to; rigs: daemon and scraper of each node; overdue: by wish,
    jobs whose time limit, Slurm's shortest, is over in a minute: started first, others' is the time they take."""

    cluster: Cluster
    place: Path
    rigs: "dict[str, Rig]"
    overdue: "dict[str, tuple[str, Path]]" = field(default_factory=dict)
    _count: int = 0

    def folder(self) -> Path:
        """A new folder that the user can write to."""
        self._count += 1
        made = self.place / f"d{self._count}"
        made.mkdir()
        made.chmod(0o777)
        return made

    def run(
        self, *command: "str | Path", stdin: "bytes | None" = None, environ: "Mapping[bytes, bytes] | None" = None
    ) -> Ran:
        """What came of a command of the user's, in a folder of its own, where a task leaves its job's id in `id`."""
        folder = self.folder()
        given = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
        if stdin is not None:
            (folder / "stdin").write_bytes(stdin)
            given = ["sh", "-c", 'cd "$0" && exec "$@" <stdin', folder, *command]
        ran = self.cluster.run_as(USER, *given, environ=environ or {})
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name not in ("stdin", "id")}
        job_id = (folder / "id").read_text().strip() if (folder / "id").exists() else ""
        return Ran(str(ran.returncode), ran.stdout, ran.stderr, job_id, files)

    def submit(self, text: str, *options: str, folder: "Path | None" = None) -> "tuple[str, Path]":
        """A batch job's id, and its folder, where its output is `out` unless options say otherwise."""
        folder = folder or self.folder()
        script = folder / "job.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        given = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out", *options, str(script)]
        ran = self.cluster.run_as(USER, *given)
        if ran.returncode:
            raise RuntimeError(ran.stderr.decode())
        return ran.stdout.decode().strip(), folder

    def batch(self, text: str, *options: str) -> Ran:
        """What came of a batch job, once Slurm says that it has ended: its files as they are at that moment."""
        return self.ended(*self.submit(text, *options))

    def ended(self, job_id: str, folder: Path, timeout_s: float = 240.0) -> Ran:
        job = self.cluster.wait_job(job_id, *ENDED, timeout_s=timeout_s)
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "job.sh"}
        return Ran(job["ExitCode"], files.get("out", b""), b"", job_id, files)

    def records(self, job_id: "str | int", node: str = "n1") -> "list[Record]":
        """All records of a job on a node, once its job_end has come."""
        rig = self.rigs[node]
        eventually(lambda: b'"job_end"' in (raw_of_job(rig, job_id) or [b""])[-1])
        return of_job(rig, job_id)

    def is_silent(self, job_id: "str | int", node: str = "n1") -> bool:
        """Whether no record of a job that has ended came on a node."""
        self.cluster.wait_idle(node)  # its Epilog is through
        return not raw_of_job(self.rigs[node], job_id)

    def log(self, node: str = "n1") -> str:
        """What slurmd and its slurmstepds have logged."""
        return (self.cluster.folder / f"{node}.log").read_text(errors="replace")


def raw_of_job(rig: Rig, job_id: "str | int") -> "list[bytes]":
    """The datagrams of a job that a node's scraper has; what other jobs sent meanwhile is not even parsed."""
    mark = b'"job_id":%d,' % int(job_id)
    return [line for line in rig.records_path.read_bytes().split(b"\n")[:-1] if mark in line[:200]]


def of_job(rig: Rig, job_id: "str | int") -> "list[Record]":
    """The same as records."""
    found: "list[Record]" = [json.loads(line) for line in raw_of_job(rig, job_id)]
    assert all(one["slurm"]["job_id"] == int(job_id) for one in found)
    return found


def output(records: "list[Record]", stream: str = "stdout", task: int = 0, step_id: str = "batch") -> bytes:
    """All that the records of a stream say, joined."""
    return "".join(
        one["body"]
        for one in records
        if one["type"] == "log"
        and (one["stream"], one["slurm"]["task_id_global"], one["slurm"]["step_id"]) == (stream, task, step_id)
    ).encode()


def kinds(records: "list[Record]", has_logs: bool = True) -> "list[str]":
    """The records' types, with the step's name where they have one; runs of the same are one."""
    names = [
        f"{one['type']} {one['slurm'].get('step_id', '')}".rstrip()
        for one in records
        if has_logs or one["type"] != "log"
    ]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def running(
    nodes: "tuple[str, ...]" = NODES, settings: "Callable[[Path], list[str]]" = lambda folder: []
) -> "Iterator[Relayed]":
    """The cluster until the end of the context. Needs root; makes the user, who stays.

    Takes: settings - gives more lines for slurm.conf, whose folder it is told, for files that belong beside that.
    """
    try:
        pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True)
    with reachable_folder() as folder, ExitStack() as stack:
        place, own, relay = folder / "place", folder / "cluster", folder / "relay"
        for made in (place, own, relay):
            made.mkdir(mode=0o755)
        place.chmod(0o777)
        rigs = {}
        for node in nodes:
            rig = rigs[node] = Rig()
            rig.numbers = {}  # as a site has it
            stack.callback(rig.close)
            rig.configure(default="no", parameters="stepd_ring_mbytes=64")
            (relay / node).symlink_to(rig.base)
            rig.start()
        (own / "plugstack.conf").write_text(f"optional {built(folder / 'out')} folder={relay}/%n/run\n")
        prolog = place / "Prolog"
        prolog.write_text(f"#!/bin/sh\n[ ! -e {place}/fails-on-$SLURMD_NODENAME ]\n")
        prolog.chmod(0o755)
        (place / "TaskProlog").symlink_to("/bin/true")
        conf = [
            f"Prolog={prolog}",
            f"TaskProlog={place}/TaskProlog",
            f"PlugStackConfig={own}/plugstack.conf",
            "LaunchParameters=use_interactive_step",
            *settings(own),
        ]
        with Cluster(own, conf, node_count=len(nodes)) as cluster:
            yield Relayed(cluster, place, rigs)
