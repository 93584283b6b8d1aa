# SPDX-License-Identifier: GPL-2.0-or-later
"""The scraper as a process: what a site and systemd see of it."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard.scraper import bind, main, spool
from tests.conftest import need_program
from tests.scraper import records
from tests.scraper.http_peer import Loki
from tests.scraper.running import ROOT, Scraper, until


def send(path: str, *what: "bytes | dict[str, object]") -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(path)
        for record in what:
            sender.send(record if isinstance(record, bytes) else records.raw(record))


def test_records_become_lines_and_junk_is_counted_and_kept(scraper: Scraper) -> None:
    scraper.start()
    send(scraper.socket, records.log("a\n"), b"junk", records.log("b", partial=True), records.log("c\n"))
    until(lambda: len(scraper.lines()) == 2)
    assert scraper.stop() == 0
    assert [text["body"] for text in scraper.lines()] == ["a\n", "bc\n"]
    counters = scraper.counters()
    assert counters["received_records_total"] == 4
    assert counters['refused_records_total{reason="not-json"}'] == 1
    assert counters['joined_lines_total{ended="line"}'] == 1
    assert counters['sink_delivered_lines_total{sink="file"}'] == 2
    assert json.loads((scraper.spool / "quarantine.ndjson").read_bytes())["raw"] == "junk"


def test_sigterm_takes_what_is_queued_and_keeps_what_is_open(scraper: Scraper) -> None:
    scraper.start()
    send(scraper.socket, records.log("open", partial=True))
    until(lambda: scraper.metrics.exists())
    os.kill(scraper.pids()[0], signal.SIGSTOP)
    send(scraper.socket, *[records.log(f"{number}\n", task=1) for number in range(8)])
    os.kill(scraper.pids()[0], signal.SIGCONT)
    assert scraper.stop() == 0
    assert [text["body"] for text in scraper.lines()] == [f"{number}\n" for number in range(8)]
    assert not os.path.lexists(scraper.socket)
    scraper.start()
    send(scraper.socket, records.log(" and closed\n"))
    until(lambda: len(scraper.lines()) == 9)
    assert scraper.lines()[-1]["body"] == "open and closed\n"
    assert scraper.stop() == 0


def test_the_socket_of_systemd_keeps_what_comes_while_no_scraper_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        held.bind(path)
        scraper = Scraper(tmp_path, held)
        send(path, records.log("before\n"))
        scraper.start()
        until(lambda: len(scraper.lines()) == 1)
        assert scraper.stop() == 0
        send(path, records.log("between\n"))
        scraper.start()
        until(lambda: len(scraper.lines()) == 2)
        assert scraper.stop() == 0
        assert os.path.lexists(path)
        assert [text["body"] for text in scraper.lines()] == ["before\n", "between\n"]


def test_a_killed_receiver_is_started_again_and_the_queue_is_not_lost(scraper: Scraper) -> None:
    scraper.start()
    until(lambda: len(scraper.pids()) == 2)
    receiver = scraper.pids()[0]
    os.kill(receiver, signal.SIGSTOP)
    send(scraper.socket, *[records.log(f"{number}\n") for number in range(8)])
    os.kill(receiver, signal.SIGKILL)
    until(lambda: len(scraper.lines()) == 8)
    assert scraper.stop() == 0
    assert "receiver ended with -9" in scraper.said


def test_a_killed_sink_is_started_again_and_goes_on(scraper: Scraper) -> None:
    scraper.start()
    until(lambda: len(scraper.pids()) == 2)
    os.kill(scraper.pids()[1], signal.SIGKILL)
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    assert scraper.stop() == 0
    assert "file ended with -9" in scraper.said


def test_no_process_outlives_a_killed_parent_and_the_next_scraper_takes_over(scraper: Scraper) -> None:
    scraper.start()
    until(lambda: len(scraper.pids()) == 2)
    children = scraper.pids()
    assert scraper.process
    scraper.process.kill()
    scraper.said += scraper.process.communicate(timeout=120)[1]
    until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in children))
    scraper.start()
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    assert scraper.stop() == 0


def test_a_second_scraper_says_that_the_socket_is_taken(scraper: Scraper) -> None:
    scraper.start()
    code = "from guard.scraper import main; main.LOCK_WAIT_S = 0.1; print(main.main({}, {{}}))"
    second = subprocess.run(
        [sys.executable, "-c", code.format(scraper.arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert second.stdout == "1\n"
    assert "another scraper is bound to the socket; stop it first" in second.stderr
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    assert scraper.stop() == 0


def test_sighup_makes_files_open_anew_and_sigusr1_shows_the_counters(scraper: Scraper) -> None:
    scraper.start()
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    sink = scraper.pids()[1]
    assert any(path.endswith("2026-08-06.ndjson") for path in scraper.opened(sink))
    assert scraper.process
    scraper.process.send_signal(signal.SIGHUP)
    until(lambda: not any(path.endswith("2026-08-06.ndjson") for path in scraper.opened(sink)))
    scraper.process.send_signal(signal.SIGUSR1)
    scraper.hear("received_records_total", 1)
    assert scraper.stop() == 0
    assert scraper.said.count("received_records_total") == 2


def test_metrics_that_cannot_be_written_are_told_once_and_not_every_few_seconds(scraper: Scraper) -> None:
    scraper.arguments += ["--metrics", str(scraper.folder / "none" / "metrics.prom")]
    scraper.start()
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    assert scraper.stop() == 0  # which tries once more
    assert scraper.said.count("none/metrics.prom: No such file or directory") == 1


def test_one_dead_sink_stops_no_other_and_its_lines_wait(tmp_path: Path) -> None:
    scraper = Scraper(tmp_path)
    with Loki() as peer:
        peer.script = [("status", 503, {})] * 3
        (tmp_path / "scrape.toml").write_text(
            f"""
socket = "{scraper.socket}"
spool = "{scraper.spool}"
metrics_file = "{scraper.metrics}"
[[sink]]
kind = "file"
directory = "{scraper.out}"
[[sink]]
kind = "loki"
url = "{peer.url}"
[[sink]]
kind = "syslog"
to = "tcp://127.0.0.1:9"
"""
        )
        scraper.arguments = ["--config", str(tmp_path / "scrape.toml")]
        scraper.start()
        send(scraper.socket, *[records.log(f"{number}\n", records.TIME_NS + number) for number in range(20)])
        until(lambda: len(scraper.lines()) == 20)
        until(lambda: len(peer.stored) == 20)
        assert scraper.stop() == 0
        counters = scraper.counters()
        assert counters['sink_is_down{sink="syslog"}'] == 1
        assert counters['sink_next_line{sink="syslog"}'] == 0
        assert "sink syslog is down" in scraper.said
        assert len(spool.segments(str(scraper.spool))) == 1


def test_a_drop_report_in_slurmds_log_becomes_a_line_and_marks_the_step(tmp_path: Path) -> None:
    scraper = Scraper(tmp_path)
    log = tmp_path / "slurmd.log"
    log.write_text("[174.0] relay dropped 1 record due to EMSGSIZE, of before our start\n")
    (tmp_path / "scrape.toml").write_text(f'slurmd_log = "{log}"\n')
    scraper.arguments += ["--config", str(tmp_path / "scrape.toml")]
    scraper.start()
    send(scraper.socket, records.log("lost something", partial=True))
    until(lambda: scraper.metrics.exists() and scraper.counters()["received_records_total"] == 1)
    with open(log, "a") as file:
        file.write("[174.0] [/s] relay dropped 7 records due to EMSGSIZE, the smallest being 30123 bytes\n")
    until(lambda: len(scraper.lines()) == 1)
    send(scraper.socket, records.log(" here\n"))
    until(lambda: len(scraper.lines()) == 2)
    assert scraper.stop() == 0
    loss, text = scraper.lines()
    assert (loss["type"], loss["scraper"]["dropped"]) == ("loss", 7)
    assert loss["slurm"] == {"cluster": "slurm", "node": "node1", "job_id": 174, "step_id": "0"}
    assert (text["body"], text["scraper"]["doubtful"]) == ("lost something here\n", True)


def test_a_spool_that_cannot_be_written_holds_the_socket_up_and_loses_nothing(scraper: Scraper) -> None:
    """A tmpfs of 256 KiB that fills up, then somebody makes room."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    scraper.spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", str(scraper.spool)], check=True)
    try:
        (scraper.spool / "ballast").write_bytes(b"x" * 200_000)
        scraper.start()
        until(lambda: len(scraper.pids()) == 2)
        pid = os.fork()
        if pid == 0:
            try:
                send(scraper.socket, *[records.log("x" * 1000 + f"{number}\n") for number in range(150)])
            finally:
                os._exit(0)
        until(lambda: scraper.metrics.exists() and scraper.counters()["spool_failures_total"] > 0)
        (scraper.spool / "ballast").unlink()
        os.waitpid(pid, 0)
        until(lambda: len(scraper.lines()) == 150)
        assert scraper.stop() == 0
        assert [text["body"][1000:] for text in scraper.lines()] == [f"{number}\n" for number in range(150)]
    finally:
        subprocess.run(["umount", "-l", str(scraper.spool)], check=True)


def test_a_low_kernel_queue_is_warned_of(scraper: Scraper) -> None:
    scraper.start()
    assert scraper.stop() == 0
    warned = "net.unix.max_dgram_qlen was" in scraper.said
    assert warned == ((bind.max_dgram_qlen() or 0) < 128)


def test_a_stop_in_the_first_moment_is_in_order_too(scraper: Scraper) -> None:
    for _ in range(5):
        scraper.start()
        assert scraper.stop() == 0
        assert not os.path.lexists(scraper.socket)


def test_promtool_takes_the_metrics_of_a_real_run(scraper: Scraper) -> None:
    scraper.start()
    send(scraper.socket, records.log("a\n"))
    until(lambda: len(scraper.lines()) == 1)
    assert scraper.stop() == 0
    done = subprocess.run(
        [need_program("promtool"), "check", "metrics"],
        input=scraper.metrics.read_text(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert scraper.metrics.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, ""),
        (["--no-such-option"], 2, "unrecognized arguments"),
        ([], 1, "no sink"),
        (["--to", "loki:/x"], 1, "other sinks need --config"),
        (["--config", "/no/such/file"], 1, "cannot be read"),
        (["--to", "file:/tmp/x", "--socket", "relative"], 1, "must be an absolute path"),
    ],
)
def test_wrong_use(arguments: "list[str]", status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments, {}) == status
    assert said in capsys.readouterr().err


def test_a_configuration_can_be_checked_without_running_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--to", f"file:{tmp_path}/d", "--check"], {}) == 0
    assert "the configuration is good" in capsys.readouterr().out
    assert not (tmp_path / "d").exists()


def test_on_a_terminal_there_is_a_line_of_progress(scraper: Scraper) -> None:
    ours, theirs = pty.openpty()
    code = "import sys; from guard.scraper import main; sys.exit(main.main(sys.argv[1:], {}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *scraper.arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=theirs
    )
    os.close(theirs)
    until(scraper.can_connect)
    send(scraper.socket, records.log("a\n"))
    seen = b""
    deadline_s = time.monotonic() + 120
    while b"1 records, " not in seen and time.monotonic() < deadline_s:
        seen += os.read(ours, 65536)
    process.terminate()
    try:
        while os.read(ours, 65536):
            pass
    except OSError:
        pass  # EIO: the last holder of the other end is gone
    assert process.wait(120) == 0
    os.close(ours)
    assert b"0 refused, waiting file:" in seen


def test_what_is_installed_is_found_though_the_pyz_starts_without_site() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from guard.scraper import main; main.main(['--help'], {})"
    code += "; from guard.scraper import decode; print('parser', decode._LOADS.__name__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True)
    assert done.stdout.endswith("parser fast_loads\n"), done.stderr


MISSING = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("orjson", "urllib3", "confluent_kafka", "tomllib", "tomli"):
            raise ImportError(name)
sys.meta_path.insert(0, Finder())
from guard.base.faults import Fault
from guard.scraper import config, decode, reasons
from guard.scraper.sinks import make
assert decode.orjson is None
for table in ({"kind": "loki", "url": "http://h"}, {"kind": "kafka", "topic": "t", "settings": {}}):
    try:
        make.sink(config.parse({"sink": [table]}).sinks[0], print, {})
    except Fault as fault:
        print(reasons.sentence(fault))
"""


def test_a_missing_extra_is_named_with_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "this sink sends by HTTP and needs the package urllib3; pip install 'eessi-arch-guard[scraper]': "
        f"sink loki; {sys.executable} does not have it",
        "this sink needs the package confluent-kafka; pip install 'eessi-arch-guard[kafka]': "
        f"sink kafka; {sys.executable} does not have it",
    ], done.stderr
