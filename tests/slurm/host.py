# SPDX-License-Identifier: GPL-2.0-or-later
"""What a cluster needs of the machine that it runs on: a folder, ports, a look at processes."""

import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Below the kernel's range for outgoing connections (ip_local_port_range), so that none of those is in the way.
_PORTS = range(20000, 32000)
# A name for each port that was given: it is free again when this process ends, however that is.
_marks: "list[socket.socket]" = []


@contextmanager
def reachable_folder() -> "Iterator[Path]":
    """A folder that every user can reach, with a short name, until the end of the context: pytest's are neither."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def slurm_version() -> "tuple[int, int]":
    """The year and month of the Slurm that is installed, as (24, 11)."""
    said = subprocess.run(["slurmd", "-V"], capture_output=True, check=True, text=True).stdout
    year, month, _ = said.split()[-1].split(".", 2)
    return int(year), int(month)


def commands() -> "list[bytes]":
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            pass  # it has ended meanwhile
    return found


def processes(uid: int) -> str:
    """What a user has running, a line each: pid, what it waits for in the kernel, its command."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == uid:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                lines.append(f"{folder.name} {(folder / 'wchan').read_text()} {command[:200]}")
        except OSError:
            pass  # it has ended meanwhile
    return "\n".join(lines)


def reads_lines() -> bool:
    """Whether slurmstepd reads a TaskProlog's stdout by lines of 4094 bytes, and its stderr not at all (task.c). So did
    22.05.0."""
    return slurm_version() < (22, 5)


def heeds_a_prologs_status() -> bool:
    """Whether a TaskProlog that fails ends its task; before that nothing happens (task.c, exec_task)."""
    return slurm_version() >= (22, 5)


def free_ports(count: int) -> "list[int]":
    """count ports that nobody listens on now, and that this gives to no other process while this one lives."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        mark = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                mark.bind(f"\0eessi-arch-guard test port {port}")
                probe.bind(("", port))
            except OSError:
                mark.close()
                continue
        _marks.append(mark)
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free ports")


def is_running(pid: int) -> bool:
    """Whether a process is there and not just waiting for its parent to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
