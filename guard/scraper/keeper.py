# SPDX-License-Identifier: GPL-2.0-or-later
"""The parent's order: it holds the socket, keeps one receiving process and one for each sink alive, throws away what
every sink has read, syncs the spool, and tells the counters. No record passes through it.
"""

import os
import signal
import sys
import time

from guard.base.deadline import Deadline
from guard.base.faults import Fault
from guard.scraper import bind, pump, reasons, receiver, spool
from guard.scraper.config import Config
from guard.scraper.counters import Counters
from guard.scraper.limits import BACKOFF_MAX_S, DGRAM_QLEN_LOW_COUNT, STOP_TRY_S
from guard.scraper.wake import Wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_RECEIVER = ""
_HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_FOR_CHILDREN = (signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.5
_METRICS_S = 5.0
# A process that lived so long had started well: its next start is not put off.
_WELL_S = 10.0


class _Process:
    """A child to be kept alive. name: of its sink, empty for the receiver."""

    __slots__ = ("failures", "name", "pid", "start_at_s", "started_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.failures = 0
        self.start_at_s = 0.0
        self.started_s = 0.0


class Keeper:
    """One scraper, from its start to its end."""

    def __init__(self, config: Config, bound: bind.Bound, counters: Counters) -> None:
        self._config = config
        self._bound = bound
        self._counters = counters
        self._spool_name = spool.prepare(config.spool)
        # Ours to hold and never to write to: its end is our end, to every child.
        self._lifeline_read_fd, self._lifeline_write_fd = os.pipe()
        self._processes = [_Process(_RECEIVER), *(_Process(sink.name) for sink in config.sinks)]
        self._is_terminal = sys.stderr.isatty()
        self._last_received = (0, 0.0)
        self._failing: "dict[str, str]" = {}

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT; gives the exit status."""
        wake = Wake((*_HEEDED, signal.SIGCHLD))
        self._warn()
        synced_s = time.monotonic()
        told_s = 0.0
        while not (wake.has(signal.SIGTERM) or wake.has(signal.SIGINT)):
            self._reap()
            self._start_due()
            if wake.take(signal.SIGHUP):
                self._signal_sinks(signal.SIGHUP)
            if wake.take(signal.SIGUSR1):
                tell(self._counters.table().rstrip("\n") or "nothing yet")
            now_s = time.monotonic()
            self._sweep()
            if self._config.sync_s and now_s - synced_s >= self._config.sync_s:
                self._sync()
                synced_s = now_s
            self._counters.set("unsynced_seconds", int(now_s - synced_s))
            if now_s - told_s >= _METRICS_S:
                self._write_metrics()
                told_s = now_s
            self._show_progress(now_s)
            wake.wait(_LOOK_S)
        return self._stop()

    def _stop(self) -> int:
        """The receiver first, so that the sinks get what it still had."""
        if self._bound.identity:
            # Nobody new connects; whoever is connected is still heard.
            bind.unlink_own(self._bound)
        self._end([process for process in self._processes if process.name == _RECEIVER], 2 * STOP_TRY_S)
        self._end([process for process in self._processes if process.name != _RECEIVER], 2 * STOP_TRY_S)
        self._sweep()
        self._write_metrics()
        if self._is_terminal:
            sys.stderr.write("\n")
        tell(self._counters.table().rstrip("\n") or "nothing came")
        return 0

    def _end(self, processes: "list[_Process]", seconds: float) -> None:
        deadline = Deadline(seconds)
        for process in processes:
            if process.pid:
                os.kill(process.pid, signal.SIGTERM)
        while any(process.pid for process in processes) and deadline.left_s():
            self._reap()
            time.sleep(0.01)
        for process in processes:
            if process.pid:
                tell(f"{process.name or 'receiver'} did not end in time and was killed; its place in the spool is kept")
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
                process.pid = 0

    def _reap(self) -> None:
        for process in self._processes:
            if not process.pid:
                continue
            pid, raw = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                process.pid = 0
                lived_s = time.monotonic() - process.started_s
                process.failures = 0 if lived_s >= _WELL_S else process.failures + 1
                wait_s = min(BACKOFF_MAX_S, 0.1 * 2 ** min(process.failures, 10)) if process.failures > 1 else 0.0
                process.start_at_s = time.monotonic() + wait_s
                if raw:
                    code = -os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)
                    tell(f"{process.name or 'receiver'} ended with {code}; next start in {wait_s:.1f} s")

    def _start_due(self) -> None:
        for process in self._processes:
            if not process.pid and time.monotonic() >= process.start_at_s:
                process.started_s = time.monotonic()
                process.pid = self._fork(process.name)

    def _fork(self, name: str) -> int:
        # What comes between the fork and the child's own handlers must not be taken by a copy of ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_CHILDREN)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_CHILDREN)
            return pid
        status = 1
        try:
            os.close(self._lifeline_write_fd)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if name == _RECEIVER:
                self._counters.add("receiver_starts_total")
                number_min = max((cursor.number for cursor in self._cursors() if cursor), default=0)
                receiver.run(
                    self._config,
                    self._bound.sock,
                    self._bound.identity is not None,
                    self._counters,
                    self._lifeline_read_fd,
                    number_min,
                )
            else:
                self._run_sink(name)
            status = 0
        except Fault as fault:
            tell(f"{name or 'receiver'}: {reasons.sentence(fault)}")
        except OSError as error:
            tell(f"{name or 'receiver'}: {error}")
        except BaseException:  # the outermost door of this process: the parent starts another one
            import traceback

            tell(f"{name or 'receiver'}: {traceback.format_exc()}")
        finally:
            os._exit(status)

    def _run_sink(self, name: str) -> None:
        from guard.scraper.sinks import make

        self._bound.sock.close()
        settings = next(sink for sink in self._config.sinks if sink.name == name)
        self._counters.add("sink_starts_total", sink=name)
        pump.run(
            name,
            lambda keep, kept: make.sink(settings, keep, kept),
            self._config.spool,
            self._counters,
            self._lifeline_read_fd,
            tell,
        )

    def _cursors(self) -> "list[spool.Cursor | None]":
        return [spool.load_cursor(self._config.spool, self._spool_name, sink.name)[0] for sink in self._config.sinks]

    def _sweep(self) -> None:
        try:
            left_bytes, unread_count = spool.sweep(self._config.spool, self._cursors(), self._config.spool_max_bytes)
        except OSError:
            return  # the next look does it
        self._counters.set("spool_bytes", left_bytes)
        if unread_count:
            tell(f"the spool is full: {unread_count} segments were thrown away that some sink had not read")

    def _sync(self) -> None:
        try:
            spool.sync(self._config.spool)
            self._tell_change("the spool's sync", "")
        except OSError as error:
            self._tell_change("the spool's sync", str(error))

    def _signal_sinks(self, number: int) -> None:
        for process in self._processes:
            if process.pid and process.name != _RECEIVER:
                os.kill(process.pid, number)

    def _write_metrics(self) -> None:
        path = self._config.metrics_file
        if not path:
            return
        try:
            # node_exporter reads as another user.
            spool.replace(path, self._counters.prometheus().encode("utf-8"), 0o644)
            self._tell_change(path, "")
        except OSError as error:
            self._tell_change(path, error.strerror or str(error))

    def _tell_change(self, what: str, why: str) -> None:
        """Of what is tried every few seconds: told when it fails, fails otherwise, or is well (why is empty)."""
        if self._failing.get(what, "") != why:
            self._failing[what] = why
            tell(f"{what}: {why or 'well again'}")

    def _show_progress(self, now_s: float) -> None:
        if not self._is_terminal:
            return
        received = self._counters.get("received_records_total")
        last, last_s = self._last_received
        rate = (received - last) / (now_s - last_s) if last_s else 0.0
        self._last_received = (received, now_s)
        behind = " ".join(
            f"{sink.name}:"
            f"{max(0, self._counters.get('spool_lines') - self._counters.get('sink_next_line', sink=sink.name))}"
            for sink in self._config.sinks
        )
        refused = self._counters.total("refused_records_total")
        sys.stderr.write(f"\r\033[K{received} records, {rate:.0f}/s, {refused} refused, waiting {behind}")
        sys.stderr.flush()

    def _warn(self) -> None:
        qlen = self._bound.qlen
        self._counters.set("max_dgram_qlen", qlen or 0)
        if qlen is not None and qlen < DGRAM_QLEN_LOW_COUNT:
            tell(
                f"net.unix.max_dgram_qlen was {qlen} when the socket was bound: bursts will make senders wait;"
                " raise it in /etc/sysctl.d and restart the scraper"
            )


def tell(text: str) -> None:
    """One remark for the service's log."""
    sys.stderr.write(f"eessi-arch-guard relay scrape: {text}\n")
    sys.stderr.flush()


def start(config: Config, environ: "dict[bytes, bytes]", lock_wait_s: float) -> "Callable[[], int]":
    """Takes socket and spool, and gives what runs the scraper. Raises: SiteFault, NodeFault."""
    # From the bind on there is something to end in order: a signal waits until Wake can take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    counters = Counters([sink.name for sink in config.sinks])
    spool.prepare(config.spool)
    sock = bind.handed_over(environ, os.getpid())
    bound = (
        bind.adopted(sock)
        if sock
        else bind.bound(config.socket, frozenset((0, config.socket_uid, os.geteuid())), config.socket_uid, lock_wait_s)
    )
    return Keeper(config, bound, counters).run
