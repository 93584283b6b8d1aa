# SPDX-License-Identifier: GPL-2.0-or-later
"""Daemon -> worker: a worker is started, a tap is handed in, the job's end is told. Never waits. World room.

The worker's address is a socket in the job's folder, bound by the daemon before the fork: taps that come while it
starts wait in its backlog, and a daemon that was restarted finds every living worker by connecting.
"""

import os
import signal
import socket

from guard.relay import frames, worker
from guard.relay.frames import Frame
from guard.relay.jobs import Job
from guard.relay.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_BACKLOG = 1024


def reach(job: Job, step_id: str) -> "socket.socket | None":
    """A connection to the step's living worker; None when there is none.

    Raises: OSError - there is one, but it does not take connections (EAGAIN: it hangs).
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        connection.connect(_place(job, step_id, "sock"))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    return connection


def living(job: Job) -> "list[socket.socket]":
    """Connections to all living workers of a job that take one."""
    connections = []
    for name in os.listdir(job.folder):
        if name.endswith(".sock"):
            try:
                connection = reach(job, name[:-5])
            except OSError:
                continue
            if connection:
                connections.append(connection)
    return connections


def hand_in(connection: "socket.socket", tap: "socket.socket", is_whole_step: bool) -> None:
    """Passes a tap to a worker, which answers it. Raises: OSError."""
    hello = frames.fields_payload({"whole_step": b"1" if is_whole_step else b"0"})
    socket.send_fds(connection, [frames.pack(Frame(frames.HELLO, hello))], [tap.fileno()])


def tell_end(connection: "socket.socket") -> bool:
    """Tells a worker that its job is over; says whether that could be. The worker closes once it has finished."""
    try:
        connection.send(frames.pack(Frame(frames.EVENT)))
    except OSError:
        return False
    return True


def start(
    job: Job, step_id: str, is_whole_step: bool, settings: Settings, log: "Callable[[str], None]"
) -> "tuple[int, socket.socket]":
    """A new worker's pid, and a connection to it. Raises: OSError - no process or socket could be had.

    fork without exec: a worker is up within milliseconds, shares the daemon's pages, and is of the daemon's version.
    """
    place = _place(job, step_id, "sock")
    started = _place(job, step_id, "started")
    try:
        os.unlink(place)  # of a worker that died
    except FileNotFoundError:
        pass
    is_resumed = os.path.exists(started)
    waits = not step_id.isdigit() and not is_whole_step
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        connection = reach(job, step_id)
        if connection is None:
            raise FileNotFoundError(place)
        try:
            os.close(os.open(started, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            tally = _place(job, step_id, "tally")
            plan = worker.Plan(job.step_slurm(step_id), settings, is_resumed, waits, (place, started), tally)
            pid = os.fork()
        except OSError:
            connection.close()
            os.unlink(place)
            raise
        if pid == 0:
            _become(listener, plan, log, f"relay {job.job_id}.{step_id}".encode()[:15])
    return pid, connection


def _become(listener: "socket.socket", plan: worker.Plan, log: "Callable[[str], None]", title: bytes) -> None:
    """In the child, never returns. The daemon's sockets are closed by number: their objects live on, unused."""
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the daemon's, closed below: the worker's own Watch would put it back at its end
        with open("/proc/self/comm", "wb") as file:
            file.write(title)  # what ps shows: 15 bytes, Linux TASK_COMM_LEN
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != listener.fileno():
                try:
                    os.close(int(name))
                except OSError:
                    pass  # the one that listed the folder
        worker.run(listener, plan, log)
        status = 0
    except BaseException as error:
        # The outermost door of this process: its taps find another worker.
        log(f"relay worker failed, {type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _place(job: Job, step_id: str, kind: str) -> str:
    return f"{job.folder}/{step_id}.{kind}"
