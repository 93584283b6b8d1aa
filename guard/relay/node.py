# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay node`: the part that slurmd plays in Slurm 26.11. Foreground, root, one loop that never waits. Order room.

Hooks tell it of jobs; it settles whether each is relayed, keeps that, and sends job_start and job_end. Taps say which
step they belong to; it checks their uid and hands them to the step's worker. It never sees a task's output.
"""

import errno
import os
import select
import socket
import struct
import time

from guard.base.faults import PeerFault
from guard.base.watch import Watch
from guard.relay import claim, frames, handover, jobs, limits, notify, record, settings, settle
from guard.relay.endings import Endings
from guard.relay.jobs import Job
from guard.relay.ring import Ring
from guard.relay.sender import Sender
from guard.relay.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_UCRED = struct.Struct("iII")
_NEVER = float("inf")


class _Peer:
    """A connection that has not said yet what it is."""

    __slots__ = ("end_ms", "socket", "uid")

    def __init__(self, connection: "socket.socket", uid: int, end_ms: float) -> None:
        self.socket = connection
        self.uid = uid
        self.end_ms = end_ms


def run(config_path: str, folder: str, environ: "dict[bytes, bytes]") -> int:
    """Serves until SIGTERM or SIGINT; gives the exit status.

    Raises: SiteFault(bad-config), SiteFault(no-folder), NodeFault(daemon-runs).
    """
    configured = settings.load(config_path)
    lock_fd, listeners = claim.folder(folder)
    with Watch() as watch:
        node = _Node(configured, folder, listeners, watch, log)
        node.serve(environ)
        notify.send(environ, b"STOPPING=1")
        node.finish()
    os.close(lock_fd)
    return 0


def log(line: str) -> None:
    """One line to the daemon's stderr, which systemd gives to the journal or to a file."""
    try:
        os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass  # nobody to tell


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Node:
    def __init__(
        self,
        configured: Settings,
        folder: str,
        listeners: "list[socket.socket]",
        watch: Watch,
        log: "Callable[[str], None]",
    ) -> None:
        self._settings = configured
        self._root = f"{folder}/jobs"
        self._log = log
        self._watch = watch
        self._owner_uid = os.geteuid()
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._peers: "dict[int, _Peer]" = {}
        self._jobs: "dict[int, Job]" = {}
        self._children: "dict[int, Job]" = {}
        self._refused_count = 0
        self._ring = Ring(configured.slurmd_ring_bytes)
        self._sender = Sender(
            configured.socket, configured.owners, self._ring, log, configured.is_protocol_debug, _now_ms()
        )
        self._endings = Endings(self._ring, log)
        for job in jobs.load(self._root):
            if job.has_ended:
                self._endings.begin(job, _now_ms())
            else:
                self._jobs[job.job_id] = job

    def serve(self, environ: "dict[bytes, bytes]") -> None:
        if self._settings.has_plugin:
            self._log(f"{settings.PLUGIN}: relaying job output to {self._settings.socket}")
        notify.send(environ, b"READY=1")
        watchdog_ms = notify.watchdog_ms(environ)
        watchdog_at_ms = _now_ms() + watchdog_ms
        while not self._watch.is_stopped():
            now_ms = _now_ms()
            if now_ms >= watchdog_at_ms:
                notify.send(environ, b"WATCHDOG=1")
                watchdog_at_ms = now_ms + watchdog_ms
            self._expire(now_ms)
            self._endings.look(now_ms)
            if self._settings.has_plugin:
                self._sender.pump(now_ms)
            for fd in self._wait(watchdog_at_ms):
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._peers:
                    self._hear(self._peers[fd])
                elif fd == self._watch.fd:
                    self._watch.drain()
                    self._reap()

    def finish(self) -> None:
        """Sends what is left. Workers go on without us, and the next daemon finds them and the jobs."""
        self._sender.drain(_now_ms, int(limits.DRAIN_S * 1000))
        if self._refused_count:
            self._log(f"relay refused {self._refused_count} peers that sent what is no frame")

    def _wait(self, at_ms: float) -> "list[int]":
        """Which fds have something, at the latest at at_ms or when something else is due."""
        poll = select.poll()
        poll.register(self._watch.fd, select.POLLIN)
        for fd in (*self._listeners, *self._peers, *self._endings.fds()):
            poll.register(fd, select.POLLIN)
        sender_fd = self._sender.fd()
        if sender_fd is not None and self._sender.wants_write():
            poll.register(sender_fd, select.POLLOUT)
        sender_ms = self._sender.next_ms() if self._settings.has_plugin else _NEVER
        peers_ms = min((peer.end_ms for peer in self._peers.values()), default=_NEVER)
        next_ms = min(at_ms, sender_ms, peers_ms, self._endings.next_ms(_now_ms()))
        ready = poll.poll(max(0.0, next_ms - _now_ms()) + 1 if next_ms < _NEVER else None)
        return [fd for fd, _ in ready]

    def _expire(self, now_ms: int) -> None:
        """Peers that say nothing go."""
        for peer in [peer for peer in self._peers.values() if peer.end_ms <= now_ms]:
            self._hear(peer)  # where this process did not run for a while, its frame may be there
            if peer.socket.fileno() in self._peers:
                self._close(peer)

    def _accept(self, listener: "socket.socket") -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                time.sleep(0.01)  # the listener stays readable: no spinning until something is closed
            return
        uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
        connection.setblocking(False)
        is_root = self._is_root(uid)
        if len(self._peers) >= limits.PENDING_MOST_COUNT or (
            not is_root and sum(peer.uid == uid for peer in self._peers.values()) >= limits.PENDING_MOST_PER_UID_COUNT
        ):
            self._answer(connection, frames.TOO_MANY, "too many connections wait here; come back later")
            connection.close()
            return
        self._peers[connection.fileno()] = _Peer(connection, uid, _now_ms() + limits.FIRST_FRAME_S * 1000)

    def _is_root(self, uid: int) -> bool:
        return uid in (0, self._owner_uid)

    def _hear(self, peer: _Peer) -> None:
        """The first frame of a peer, and the answer to it."""
        try:
            packet = peer.socket.recv(frames.PACKET_MAX_BYTES + 1)
            if packet:
                frame = frames.unpack(packet)
                if frame.kind == frames.HELLO:
                    self._hello(peer, frames.fields_of(frame.payload))
                elif frame.kind == frames.EVENT:
                    self._event(peer, frame.payload)
                else:
                    raise PeerFault("bad-frame", f"kind {frame.kind} comes first")
        except BlockingIOError:
            return
        except OSError:
            pass
        except PeerFault as fault:
            if not self._refused_count:
                self._log(f"relay refuses a peer of uid {peer.uid}: {fault.detail}")
            self._refused_count += 1
            self._answer(peer.socket, frames.NOT_UNDERSTOOD, fault.detail)
        self._close(peer)

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer.socket.fileno()]
        peer.socket.close()

    def _answer(self, connection: "socket.socket", code: int, text: str) -> None:
        try:
            connection.send(frames.answer(code, text))
        except OSError:
            pass  # it has gone

    def _hello(self, peer: _Peer, fields: "dict[str, bytes]") -> None:
        job_id = frames.number(fields, "job_id", limits.ID_MOST, 1)
        step_id = jobs.step_text(frames.number(fields, "step_id", limits.ID_MOST))
        is_whole_step = fields.get("whole_step") == b"1"
        job = self._jobs.get(job_id)
        is_root = self._is_root(peer.uid)
        if job is None:
            self._answer(peer.socket, frames.UNKNOWN_JOB, f"job {job_id} is not known on this node")
        elif not is_root and peer.uid != job.uid:
            self._answer(peer.socket, frames.NOT_ALLOWED, f"job {job_id} is not a job of uid {peer.uid}")
        elif not job.is_relayed:
            self._answer(peer.socket, frames.NO, f"job {job_id} is not relayed")
        elif is_whole_step and not is_root:
            self._answer(peer.socket, frames.NOT_ALLOWED, "only root may take a whole step")
        else:
            try:
                self._hand_in(peer.socket, job, step_id, is_whole_step, is_root)
            except OSError as error:
                self._log(f"[{job_id}.{step_id}] relay cannot serve a tap: {error.strerror}")
                self._answer(peer.socket, frames.CANNOT, f"no worker could be had: {error.strerror}")

    def _hand_in(self, tap: "socket.socket", job: Job, step_id: str, is_whole_step: bool, is_root: bool) -> None:
        connection = handover.reach(job, step_id)
        if connection is None:
            most = limits.WORKERS_MOST_PER_JOB_COUNT if is_root else limits.USER_WORKERS_MOST_PER_JOB_COUNT
            if job.worker_count >= most:
                self._answer(tap, frames.TOO_MANY, f"job {job.job_id} has {job.worker_count} steps here")
                return
            prefix = f"[{job.job_id}.{step_id}] "
            pid, connection = handover.start(
                job, step_id, is_whole_step, self._settings, lambda line: self._log(prefix + line)
            )
            self._children[pid] = job
            job.worker_count += 1
        with connection:
            handover.hand_in(connection, tap, is_whole_step)

    def _event(self, peer: _Peer, payload: bytes) -> None:
        if not self._is_root(peer.uid):
            self._answer(peer.socket, frames.NOT_ALLOWED, "only root may tell of jobs")
            return
        event = frames.fields_of(payload).get("event")
        if event == b"job_start":
            job, wish = jobs.asked(payload)
            code, text = self._start_job(job, wish)
        elif event == b"job_end":
            code, text = self._end_job(frames.number(frames.fields_of(payload), "job_id", limits.ID_MOST, 1))
        else:
            raise PeerFault("bad-fields", "event is job_start or job_end")
        self._answer(peer.socket, code, text)

    def _start_job(self, job: Job, wish: str) -> "tuple[int, str]":
        known = self._jobs.get(job.job_id)
        if known and known.is_same_run(job):
            job = known
        else:
            if known:
                self._end_job(job.job_id)
            self._endings.finish(job.job_id)  # the run before ends before this one begins
            if len(self._jobs) >= limits.JOBS_MOST_COUNT:
                return frames.TOO_MANY, f"{len(self._jobs)} jobs are known here; was their job_end told?"
            job.is_relayed = settle.settle(wish, self._settings.has_plugin, self._settings.is_default)
            start_ns = time.time_ns()
            try:
                jobs.add(self._root, job, start_ns)
            except OSError as error:
                self._log(f"relay cannot write down job {job.job_id}, not relaying it: {error.strerror}")
                return frames.CANNOT, f"{job.folder}: {error.strerror}"
            self._jobs[job.job_id] = job
            if job.is_relayed:
                self._ring.push([record.event("job_start", start_ns, job.slurm)])
        return (frames.YES, "relayed") if job.is_relayed else (frames.NO, "not relayed")

    def _end_job(self, job_id: int) -> "tuple[int, str]":
        job = self._jobs.pop(job_id, None)
        if job is None:
            return frames.UNKNOWN_JOB, f"job {job_id} is not known on this node"
        try:
            jobs.end(job)
        except OSError as error:
            self._log(f"relay cannot note the end of job {job_id}: {error.strerror}")
        self._endings.begin(job, _now_ms())
        return (frames.YES, "was relayed") if job.is_relayed else (frames.NO, "was not relayed")

    def _reap(self) -> None:
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            job = self._children.pop(pid, None)
            if job:
                job.worker_count -= 1
                if raw:
                    how = f"signal {os.WTERMSIG(raw)}" if os.WIFSIGNALED(raw) else f"status {os.WEXITSTATUS(raw)}"
                    self._log(f"relay worker {pid} of job {job.job_id} ended by {how}; its step's taps come back")
