# SPDX-License-Identifier: GPL-2.0-or-later
"""Against rsyslogd itself, and a strict reader of RFC 5424 and RFC 6587 where rsyslogd would forgive."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.base.faults import NodeFault
from guard.scraper import decode, line
from guard.scraper.sinks import rfc5424
from guard.scraper.sinks.syslog import SyslogSink
from tests.conftest import need_program
from tests.scraper import records
from tests.scraper.lines import Bench, items, many
from tests.scraper.running import until
from tests.slurm.host import free_ports

MESSAGE = re.compile(
    r"<(?P<pri>\d{1,3})>1 (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z) (?P<host>[!-~]{1,255})"
    r" (?P<app>[!-~]{1,48}) (?P<procid>[!-~]{1,128}) (?P<msgid>[!-~]{1,32}) \[(?P<id>[!#-<>-\\^-~]{1,32})"
    r'(?P<data>(?: [!#-<>-\\^-~]{1,32}="(?:[^"\\\]]|\\["\\\]])*")*)\] (?P<text>.*)\Z',
    re.DOTALL,
)


def parsed(message: bytes) -> "dict[str, str]":
    """A message's parts and structured data, strictly by RFC 5424, section 6."""
    found = MESSAGE.match(message.decode("utf-8"))
    assert found, message
    assert int(found["pri"]) <= 191
    pairs = re.findall(r' ([!#-<>-\\^-~]{1,32})="((?:[^"\\\]]|\\["\\\]])*)"', found["data"])
    data = {name: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for name, value in pairs}
    assert len(data) == len(pairs)
    return {**found.groupdict(), **{f"sd.{name}": value for name, value in data.items()}}


def rendered(fields: "dict[str, Any]") -> "dict[str, str]":
    return parsed(rfc5424.render("abc-1", line.stamped(records.raw(fields), 5000), 16, "slurm"))


def test_a_log_line_as_a_message() -> None:
    found = rendered(records.log("hello\n", stream="stderr"))
    assert (found["pri"], found["host"], found["app"], found["procid"]) == (str(16 * 8 + 5), "node1", "slurm", "174.0")
    assert (found["msgid"], found["text"], found["time"]) == ("log", "hello", "2026-08-06T07:20:18.715000Z")
    assert (found["sd.time"], found["sd.id"], found["sd.user_name"]) == ("1786000818715000001", "abc-1", "alice")


def test_an_event_as_a_message() -> None:
    found = rendered(records.job("job_start"))
    assert (found["msgid"], found["procid"], found["text"]) == ("job_start", "174", "job_start job 174 on node1")


@given(st.text(), st.text(), st.text(), st.text(max_size=300))
def test_whatever_a_record_holds_is_kept_and_stays_in_its_place(body: str, user: str, sluid: str, node: str) -> None:
    fields = records.log(body, user_name=user, sluid=sluid, node=node)
    found = parsed(rfc5424.render("abc-1", line.whole({**fields, "scraper": {"received": 1}}), 16, "slurm"))
    assert found["text"] == (body[:-1] if body.endswith("\n") else body)
    assert (found["sd.user_name"], found["sd.sluid"], found["sd.node"]) == (user, sluid, node)


class Reader:
    """A strict TCP peer: octet counting, one message after the other; cut_after: it resets the connection then."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self.messages: list[bytes] = []
        self.cut_after = -1
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                with peer, contextlib.suppress(ConnectionError):
                    self._read(peer, b"")

    def _read(self, peer: socket.socket, rest: bytes) -> None:
        while True:
            head, _, after = rest.partition(b" ")
            if not (head.isdigit() and b" " in rest and len(after) >= int(head)):
                assert re.match(rb"[1-9]\d{0,8}\Z|\Z", head), head
                piece = peer.recv(65536)
                if not piece:
                    return
                rest += piece
                continue
            self.messages.append(after[: int(head)])
            rest = after[int(head) :]
            if len(self.messages) == self.cut_after:
                self.cut_after = -1
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.listener.close()


def tcp(address: "tuple[str, int]") -> SyslogSink:
    return SyslogSink("tcp", address, 16, "slurm")


def texts(messages: "list[bytes]") -> "list[str]":
    return [parsed(message)["text"] for message in messages]


LINES = [f"line {number}" for number in range(20)]


def test_tcp_frames_are_counted_octets_even_of_lines_with_newlines(reader: Reader) -> None:
    what = [records.log("a\nb \u00e9\U0001f600\n", unbuffered=True), *many(20)]
    tcp(reader.address).send(items(what))
    until(lambda: len(reader.messages) == 21)
    assert texts(reader.messages) == ["a\nb \u00e9\U0001f600", *LINES]


def test_a_connection_that_was_ended_is_made_anew_and_nothing_is_lost(reader: Reader, tmp_path: Path) -> None:
    sink = tcp(reader.address)
    bench = Bench(tmp_path, sink, many(10))
    bench.run()
    until(lambda: len(reader.messages) == 10)
    assert sink._sock is not None
    sink._sock.shutdown(socket.SHUT_WR)
    assert select.select([sink._sock], [], [], 120)[0]
    bench.add(many(10, 10))
    bench.run()
    until(lambda: len(reader.messages) == 20)
    assert texts(reader.messages) == LINES


def test_after_a_reset_in_the_middle_each_line_has_arrived_at_least_once(reader: Reader, tmp_path: Path) -> None:
    reader.cut_after = 7
    big = [records.log(f"line {number} " + "x" * 50_000 + "\n") for number in range(20)]
    bench = Bench(tmp_path, tcp(reader.address), big)
    bench.run()
    until(lambda: len({text.split()[1] for text in texts(reader.messages)}) == 20)
    assert bench.counters.get("sink_failures_total", sink="s") >= 1


def test_a_batch_counts_only_when_the_peers_kernel_has_all_of_it() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sink = tcp(listener.getsockname())
    what = items([records.log("x" * 8_000_000)])
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(sink.send(what)), daemon=True)
    thread.start()
    peer, _ = listener.accept()
    thread.join(0.5)
    assert not done
    with peer:
        got = 0
        while got < 8_000_000:
            got += len(peer.recv(1 << 20))
        thread.join(120)
    assert done
    listener.close()


def test_nobody_there_is_a_fault(tmp_path: Path) -> None:
    for sink in (tcp(("127.0.0.1", 9)), SyslogSink("unix", str(tmp_path / "none"), 16, "slurm")):
        with pytest.raises(NodeFault):
            sink.send(items(many(1)))


def test_udp_sends_a_message_a_datagram_and_sets_aside_what_is_too_long() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        verdict = SyslogSink("udp", peer.getsockname(), 16, "slurm").send(
            items([*many(2), records.log("x" * 70_000), *many(1, 2)])
        )
        assert [parsed(peer.recv(65536))["text"] for _ in range(3)] == LINES[:3]
        assert list(verdict.refused) == [2]


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_unix_socket_of_either_kind(kind: int, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, kind) as peer:
        peer.bind(path)
        if kind == socket.SOCK_STREAM:
            peer.listen()
        sink = SyslogSink("unix", path, 16, "slurm")
        thread = threading.Thread(target=lambda: sink.send(items(many(1))), daemon=True)
        thread.start()
        source = peer.accept()[0] if kind == socket.SOCK_STREAM else peer
        data = source.recv(65536)
        thread.join(120)
        assert parsed(data if kind == socket.SOCK_DGRAM else data.partition(b" ")[2])["text"] == "line 0"


def test_a_daemon_that_comes_back_with_a_new_socket_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    sink = SyslogSink("unix", path, 16, "slurm")
    for number in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.bind(path)
            with contextlib.suppress(NodeFault):
                sink.send(items(many(1, number)))
            peer.setblocking(False)
            try:
                data = peer.recv(65536)
            except BlockingIOError:
                sink.send(items(many(1, number)))
                data = peer.recv(65536)
            assert parsed(data)["text"] == f"line {number}"
        os.unlink(path)


class Rsyslog:
    """A running rsyslogd of one's own: imtcp and imudp on a port, imuxsock on a path, all to one file of JSON."""

    def __init__(self, folder: Path) -> None:
        program = need_program("rsyslogd")
        self.folder = folder
        self.out = folder / "out"
        (self.port,) = free_ports(1)
        (folder / "conf").write_text(
            f"""
global(workDirectory="{folder}" maxMessageSize="256k" parser.escapeControlCharactersOnReceive="off")
module(load="imtcp")
module(load="imudp")
module(load="imuxsock" sysSock.use="off")
input(type="imtcp" port="{self.port}" address="127.0.0.1" ruleset="all")
input(type="imudp" port="{self.port}" address="127.0.0.1" ruleset="all")
input(type="imuxsock" socket="{folder}/log" useSysTimeStamp="off" useSpecialParser="off" parseHostname="on"
      ruleset="all")
template(name="all" type="list" option.jsonf="on") {{
  property(outname="text" name="msg" format="jsonf")
  property(outname="data" name="structured-data" format="jsonf")
  property(outname="host" name="hostname" format="jsonf")
  property(outname="app" name="app-name" format="jsonf")
  property(outname="procid" name="procid" format="jsonf")
  property(outname="pri" name="pri" format="jsonf")
}}
ruleset(name="all") {{ action(type="omfile" file="{self.out}" template="all") }}
"""
        )
        self.process = subprocess.Popen(
            [program, "-n", "-f", str(folder / "conf"), "-i", str(folder / "pid")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: (folder / "log").exists() and self._listens())

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def read(self) -> "list[dict[str, str]]":
        """What it has written so far."""
        text = self.out.read_text(encoding="utf-8") if self.out.exists() else ""
        return [json.loads(entry) for entry in text.split("\n")[:-1]]

    def stop(self) -> None:
        """Ends it in order."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


@pytest.fixture
def rsyslog(tmp_path: Path) -> Iterator[Rsyslog]:
    made = Rsyslog(tmp_path)
    yield made
    made.stop()


WHAT = [
    records.log('a "quoted" \\ ] \u00e9\U0001f600\n', user_name='evil"]\\user'),
    records.log("tab\there\n", stream="stderr", step_id="batch"),
    records.job("job_start"),
    records.log("x" * 100_000 + "\n"),
]


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_rsyslogd_keeps_text_and_structured_data(transport: str, rsyslog: Rsyslog) -> None:
    address: Any = ("127.0.0.1", rsyslog.port) if transport == "tcp" else str(rsyslog.folder / "log")
    sink = SyslogSink(transport, address, 16, "slurm")
    verdict = sink.send(items(WHAT))
    assert not verdict.refused and not verdict.retry
    until(lambda: len(rsyslog.read()) == 4)
    read = rsyslog.read()
    assert [entry["text"] for entry in read] == [
        'a "quoted" \\ ] \u00e9\U0001f600',
        "tab\there",
        "job_start job 174 on node1",
        "x" * 100_000,
    ]
    assert 'user_name="evil\\"\\]\\\\user"' in read[0]["data"]
    assert read[1]["procid"] == "174.batch" and read[1]["host"] == "node1" and read[1]["app"] == "slurm"
    assert 'time="1786000818715000001"' in read[1]["data"]


def test_rsyslogd_restarted_in_the_middle_gets_every_line(rsyslog: Rsyslog, tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench", tcp(("127.0.0.1", rsyslog.port)), many(500))
    bench.run()
    # What its kernel has and it has not read yet is lost with it: syslog has no receipt.
    until(lambda: len(rsyslog.read()) == 500)
    rsyslog.stop()
    bench.add(many(500, 500))
    restarted: list[Rsyslog] = []

    def wait(_seconds: float) -> None:
        if not restarted:
            port, rsyslog.port = rsyslog.port, 0
            rsyslog.process = subprocess.Popen(
                ["rsyslogd", "-n", "-f", str(rsyslog.folder / "conf"), "-i", str(rsyslog.folder / "pid")],
                env={"PATH": "/usr/sbin:/usr/bin"},
            )
            rsyslog.port = port
            restarted.append(rsyslog)
            until(rsyslog._listens)

    bench.pump._wait = wait
    bench.run()
    until(lambda: len({entry["text"] for entry in rsyslog.read()}) == 1000)
    assert restarted


def test_a_line_of_the_spool_can_always_be_read_back() -> None:
    (item,) = items(many(1))
    assert decode.quick_loads(item[1])["body"] == "line 0\n"
