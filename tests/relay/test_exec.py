# SPDX-License-Identifier: GPL-2.0-or-later
"""Real daemon, worker, scraper and commands."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guard.relay import copier, frames
from guard.relay.signals import is_forwarded
from tests.conftest import need_program
from tests.relay.rig import JOB_ID, LONG_S, Rig, Wire, eventually


def test_output_of_both_streams_arrives_where_it_went_and_as_records(node: Rig) -> None:
    done = node.exec("--", "sh", "-c", "echo out; echo err >&2; printf last", step_id=3)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\nlast", b"err\n")
    node.ended()
    assert node.output(step_id="3") == "out\nlast"
    assert node.output("stderr", step_id="3") == "err\n"
    kinds = node.kinds()
    assert (kinds[0], kinds[1], kinds[-2], kinds[-1]) == ("job_start", "step_start", "step_end", "job_end")
    (last,) = [one for one in node.records("log") if one["body"] == "last"]
    assert last["partial"] is True
    assert last["slurm"] == {
        "cluster": "slurm", "node": "node1", "job_id": JOB_ID, "sluid": "sA0SM5EFW65700", "user_name": "alice",
        "step_id": "3", "task_id_global": 0, "task_id_local": 0,
    }  # fmt: skip


def test_task_ids_come_from_slurms_environment(node: Rig) -> None:
    node.exec("--", "echo", "hi", env=node.environ(0, SLURM_PROCID="5", SLURM_LOCALID="1"))
    node.ended()
    (log,) = node.records("log")
    assert (log["slurm"]["task_id_global"], log["slurm"]["task_id_local"]) == (5, 1)


@pytest.mark.parametrize(
    ("number", "step_id"),
    [
        (None, "batch"),
        (-5, "batch"),
        (0xFFFF_FFFB, "batch"),
        (-6, "interactive"),
        (0xFFFF_FFFA, "interactive"),
        (7, "7"),
    ],
)
def test_a_step_has_its_name_however_slurm_writes_its_number(node: Rig, number: "int | None", step_id: str) -> None:
    node.exec("--", "echo", "hi", env=node.environ(number))
    node.ended()
    (log,) = node.records("log")
    assert log["slurm"]["step_id"] == step_id


def test_unbuffered_output_is_marked(node: Rig) -> None:
    assert node.exec("--unbuffered", "--", "printf", "a\\nb").stdout == b"a\nb"
    node.ended()
    assert all(one["unbuffered"] is True and "partial" not in one for one in node.records("log"))
    assert node.output() == "a\nb"


def test_exit_statuses_and_deaths_by_signal_are_passed_on(node: Rig) -> None:
    for script, status in (
        ("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL), ("kill -TERM $$", -signal.SIGTERM), ("kill -PIPE $$", -signal.SIGPIPE),
        ("kill -USR1 $$", -signal.SIGUSR1), ("kill -INT $$", -signal.SIGINT),
    ):  # fmt: skip
        done = node.exec("--", "sh", "-c", f"echo before; {script}")
        assert (done.returncode, done.stdout) == (status, b"before\n"), script
    node.ended()
    assert node.output() == "before\n" * 9
    assert node.kinds().count("step_start") == 1


@pytest.mark.parametrize(("program", "status"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_is_told_as_a_shell_does(node: Rig, program: str, status: int) -> None:
    for environ in (node.environ(), {"PATH": "/usr/bin"}):
        done = node.exec("--", program, env=environ)
        assert done.returncode == status
        assert done.stderr.startswith(f"relay exec: {program}: ".encode())


def test_the_command_sees_its_environment_arguments_and_stdin(node: Rig) -> None:
    script = 'import os, sys; os.write(1, b"|".join((os.environb[b"X"], os.fsencode(sys.argv[1]), os.read(0, 9))))'
    environ = {os.fsencode(name): os.fsencode(value) for name, value in node.environ().items()}
    done = node.exec(
        "--", sys.executable, "-c", script, os.fsdecode(b"\xff\xfe"), env={**environ, b"X": b"\xe9"}, input=b"in"
    )
    assert done.stdout == b"\xe9|\xff\xfe|in"


def test_signals_to_it_reach_the_command_once(node: Rig) -> None:
    script = (
        "import signal, time, os\n"
        "got = []\n"
        "for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(number, lambda number, frame: got.append(number))\n"
        "os.write(1, b'ready\\n')\n"
        "end = time.time() + 30\n"
        "while len(got) < 4 and time.time() < end: time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "print(*sorted(map(int, got)))\n"
    )
    running = subprocess.Popen(
        node.exec_command("--", sys.executable, "-c", script), env=node.environ(), stdout=subprocess.PIPE
    )
    assert running.stdout
    assert running.stdout.readline() == b"ready\n"
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        running.send_signal(number)
    assert running.stdout.read() == b"1 2 10 15\n"
    assert running.wait(LONG_S) == 0


@pytest.mark.parametrize(
    ("number", "code", "is_from_command", "is_from_slurm", "is_own_session", "forwarded"),
    [
        (signal.SIGTERM, 0, False, False, False, True),
        (signal.SIGINT, 0x80, False, False, False, False),  # the terminal's: the command is in its foreground too
        (signal.SIGINT, 0x80, False, False, True, True),
        (signal.SIGTERM, 0, False, True, False, False),  # slurmstepd signals every process of the step
        (signal.SIGTERM, 0, True, False, False, False),  # the command's own kill(0, ...)
        (signal.SIGCHLD, 0, False, False, False, False),
        (signal.SIGWINCH, 0, False, False, True, False),
    ],
)
def test_a_signal_is_forwarded_when_the_command_has_not_had_it(
    number: int, code: int, is_from_command: bool, is_from_slurm: bool, is_own_session: bool, forwarded: bool
) -> None:
    assert is_forwarded(number, code, is_from_command, is_from_slurm, is_own_session) is forwarded


def test_a_command_that_closes_stdout_goes_on(node: Rig) -> None:
    done = node.exec("--", "sh", "-c", "echo one; exec >&-; sleep 0.2; echo two >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"one\n", b"two\n")
    node.ended()
    assert (node.output(), node.output("stderr")) == ("one\n", "two\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_what_was_closed_stays_closed(node: Rig, closed: str) -> None:
    look = 'exec 9>"$0"; for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd >&9; done'
    shell = f'exec "$@" {closed}'
    for name, command in (("bare", []), ("tapped", node.exec_command("--"))):
        argv = ["sh", "-c", shell, "sh", *command, "sh", "-c", look, str(node.base / name)]
        subprocess.run(argv, env=node.environ(), check=False)
    assert (node.base / "tapped").read_text() == (node.base / "bare").read_text()
    assert (node.base / "bare").read_text() != "0\n1\n2\n"


def test_a_reader_that_goes_ends_the_command_by_sigpipe(node: Rig) -> None:
    shell = '"$@"; echo $? >&2'
    running = subprocess.Popen(
        ["sh", "-c", f"({shell}) | head -n 2", "sh", *node.exec_command("--", "yes")],
        env=node.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = running.communicate(timeout=LONG_S)
    assert (out, err) == (b"y\ny\n", b"141\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_ends_that_stream_is_logged_and_the_other_goes_on(node: Rig, stream: str) -> None:
    first, other = (">&1", ">&2") if stream == "stdout" else (">&2", ">&1")
    again = f"echo x {first} 2>/dev/null || echo epipe {other}"
    script = f"trap '' PIPE; echo lost {first}; until [ -e $GO ]; do sleep 0.05; done; {again}; exit 4"
    go = node.base / "go"
    with open("/dev/full", "wb") as full:
        options: "dict[str, Any]" = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        running = subprocess.Popen(node.exec_command("--", "sh", "-c", script), env=node.environ(GO=str(go)), **options)
    said = f"task 0 {stream}: cannot write its destination: No space left on device"
    eventually(lambda: said in node.log())
    go.touch()
    out, err = running.communicate(timeout=LONG_S)
    assert running.returncode == 4
    assert b"epipe\n" in (err if stream == "stdout" else out)
    node.ended()
    assert node.output(stream) == "lost\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_destination_that_fails_ends_that_stream_is_logged_and_the_other_goes_on(node: Rig, stream: str) -> None:
    """EIO, as of a broken disk: strace fails the third and all later writes to the file."""
    first, other = (">&1", ">&2") if stream == "stdout" else (">&2", ">&1")
    path, go = node.base / "out", node.base / "go"
    # Each line is written before the next one, and that the third was not is known before the fourth.
    script = (
        f"trap '' PIPE; for i in 1 2 3 4; do echo $i {first} 2>/dev/null || echo epipe {other};"
        " until [ $(wc -l <$OUT) = $i ] || [ $i -gt 2 ]; do sleep 0.05; done;"
        " until [ -e $GO ] || [ $i != 3 ]; do sleep 0.05; done; done; exit 4"
    )
    strace = [need_program("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=write:error=EIO:when=3+"]
    with open(path, "wb") as file:
        options: "dict[str, Any]" = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: file}
        running = subprocess.Popen(
            [*strace, "-P", str(path), *node.exec_command("--", "sh", "-c", script)],
            env=node.environ(OUT=str(path), GO=str(go)), **options,
        )  # fmt: skip
    said = f"task 0 {stream}: cannot write its destination: Input/output error"
    eventually(lambda: said in node.log())
    go.touch()
    out, err = running.communicate(timeout=LONG_S)
    assert running.returncode == 4
    assert path.read_text() == "1\n2\n"
    assert (err if stream == "stdout" else out).strip() == b"epipe"
    node.ended()
    assert node.output(stream) == "1\n2\n3\n"
    assert node.output("stderr" if stream == "stdout" else "stdout") == "epipe\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_small_file_system_holds_what_fits_and_the_relay_holds_all_that_was_read(node: Rig) -> None:
    disk = node.base / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("this container may not mount; /dev/full above stands for it")
    try:
        with open(disk / "out", "wb") as out:
            done = node.exec("--", "seq", "1", "1000000", stdout=out, stderr=subprocess.PIPE)
        assert done.returncode == -signal.SIGPIPE
        expected = "".join(f"{number}\n" for number in range(1, 1_000_001))
        got = (disk / "out").read_text()
        assert len(got) == 256 * 1024
        assert expected.startswith(got)
        node.ended()
        assert expected.startswith(node.output())
        assert len(node.output()) >= len(got)
    finally:
        subprocess.run(["umount", str(disk)])


def test_a_background_child_that_outlives_the_command_goes_on_writing(node: Rig) -> None:
    out = node.base / "out"
    with open(out, "wb") as file:
        done = node.exec(
            "--",
            "sh",
            "-c",
            "(until [ -e $GO ]; do sleep 0.05; done; echo late; sleep 0.3; echo later) & echo now; exit 5",
            stdout=file,
            stderr=subprocess.DEVNULL,  # a pipe would be held by what was left behind, as without a relay
            env=node.environ(GO=str(node.base / "go")),
        )
    assert (done.returncode, out.read_text()) == (5, "now\n")
    (node.base / "go").touch()
    eventually(lambda: out.read_text() == "now\nlate\nlater\n")
    eventually(lambda: "later" in node.output())
    node.ended()
    assert node.output() == "now\nlate\nlater\n"


def test_a_million_lines_are_the_same_in_the_file_and_in_the_records(rig: Rig) -> None:
    rig.configure(parameters="stepd_ring_mbytes=1024")
    rig.start()
    rig.event("job_start")
    text = "line %07d of a task that says what it did, ninety-nine bytes long, and so on"
    expected = hashlib.md5()
    for number in range(1_000_000):
        expected.update((text % number).encode() + b"\n")
    out = rig.base / "out"
    script = f"for i in range(1000000): print({text!r} % i)"
    with open(out, "wb") as file:
        done = rig.exec("--", sys.executable, "-c", script, stdout=file)
    assert done.returncode == 0
    assert hashlib.md5(out.read_bytes()).hexdigest() == expected.hexdigest()
    rig.ended()
    rejoined = hashlib.md5()
    count = 0
    with open(rig.records_path, "rb") as records:
        for line in records:
            start = line.find(b'"body":"')
            if start >= 0:
                rejoined.update(line[start + 8 : line.rindex(b'"')].replace(b"\\n", b"\n"))
                count += 1
    assert "relay dropped" not in rig.log()
    assert (count, rejoined.hexdigest()) == (1_000_000, expected.hexdigest())


def test_200_mb_without_a_newline_take_bounded_memory(rig: Rig) -> None:
    rig.configure(parameters="stepd_ring_mbytes=4")
    rig.start()
    rig.event("job_start")
    total_bytes = 200_000_000
    script = f"head -c {total_bytes} /dev/zero | tr '\\0' x; sed -n '/VmHWM/p' /proc/$PPID/status >&2"
    with open(rig.base / "out", "wb") as file:
        done = rig.exec("--", "sh", "-c", script, stdout=file, stderr=subprocess.PIPE)
    assert (rig.base / "out").stat().st_size == total_bytes
    (worker,) = rig.workers()
    peak_kib = [int(Path(f"/proc/{worker}/status").read_text().split("VmHWM:")[1].split()[0])]
    peak_kib.append(int(done.stderr.split()[1]))
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"],
        stdout=subprocess.PIPE,
    )
    # Design section 10: bare Python + ring + 16 MiB.
    assert max(peak_kib) < int(bare.stdout) + (4 + 16) * 1024


# --- no relay, a dead one, a stopped one


def works(rig: Rig, **options: Any) -> None:
    done = rig.exec("--", "sh", "-c", "seq 1 20000; echo err >&2; exit 3", **options)
    assert done.returncode == 3
    assert done.stdout == b"".join(b"%d\n" % number for number in range(1, 20001))
    assert done.stderr == b"err\n"


def test_without_a_daemon_it_becomes_the_command(rig: Rig) -> None:
    works(rig)
    done = rig.exec("--", "sh", "-c", "echo $$; readlink /proc/$PPID/exe")
    own = subprocess.Popen(rig.exec_command("--", "sh", "-c", "echo $$"), env=rig.environ(), stdout=subprocess.PIPE)
    assert own.communicate()[0] == b"%d\n" % own.pid
    assert done.returncode == 0


def test_with_a_daemon_that_was_killed_it_becomes_the_command(node: Rig) -> None:
    node.stop_node(signal.SIGKILL)
    works(node)


@pytest.mark.parametrize("how", ["no", "unknown", "outside", "bad"])
def test_what_the_relay_does_not_want_runs_as_itself(rig: Rig, how: str) -> None:
    rig.start()
    rig.event("job_start", "--relay-io", "no" if how == "no" else "yes")
    environ = rig.environ()
    if how == "unknown":
        environ["SLURM_JOB_ID"] = "99"
    elif how == "outside":
        del environ["SLURM_JOB_ID"]
    elif how == "bad":
        environ["SLURM_STEP_ID"] = "0x1"
    works(rig, env=environ)
    own = subprocess.Popen(rig.exec_command("--", "sh", "-c", "echo $$"), env=environ, stdout=subprocess.PIPE)
    assert own.communicate()[0] == b"%d\n" % own.pid
    assert rig.records("log") == []


def test_a_connection_that_is_closed_without_an_answer_is_made_once_more(rig: Rig) -> None:
    rig.folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(rig.folder / "tap.sock"))
        listener.listen(8)
        running = subprocess.Popen(rig.exec_command("--", "echo", "hi"), env=rig.environ(), stdout=subprocess.PIPE)
        for answer in (b"", frames.answer(frames.NO, "no")):
            peer, _ = listener.accept()
            assert frames.unpack(peer.recv(9999)).kind == frames.HELLO
            if answer:
                peer.send(answer)
            peer.close()
        assert running.communicate(timeout=LONG_S)[0] == b"hi\n"


def test_with_a_stopped_daemon_it_becomes_the_command_after_half_a_second(node: Rig) -> None:
    assert node.node
    node.numbers = {}
    node.node.send_signal(signal.SIGSTOP)
    start_s = time.monotonic()
    works(node)
    assert time.monotonic() - start_s > 0.4  # it asked, and waited
    node.node.send_signal(signal.SIGCONT)


class Writer:
    """A command that writes 64 KiB of numbered lines and pauses, until told to finish; then 20 such pieces more."""

    def __init__(self, rig: Rig) -> None:
        self.out = rig.base / "out"
        self._finish = rig.base / "finish"
        self._count = rig.base / "count"
        script = (
            "import os, sys, time\n"
            "i, left = 0, None\n"
            "while left != 0:\n"
            "    sys.stdout.write(''.join('%06d %s\\n' % (i * 655 + j, 'x' * 92) for j in range(655)))\n"
            "    sys.stdout.flush(); time.sleep(0.03); i += 1\n"
            "    if left is None and os.path.exists(sys.argv[1]): left = 20\n"
            "    elif left is not None: left -= 1\n"
            "open(sys.argv[2], 'w').write(str(i * 655))\n"
        )
        argv = rig.exec_command("--", sys.executable, "-c", script, str(self._finish), str(self._count))
        with open(self.out, "wb") as file:
            self._running = subprocess.Popen(argv, env=rig.environ(), stdout=file)
        eventually(lambda: rig.records_path.stat().st_size > 100_000)

    def finish(self) -> int:
        """How many lines it wrote; all of them are in its file."""
        self._finish.touch()
        assert self._running.wait(LONG_S) == 0
        count = int(self._count.read_text())
        assert [int(line[:6]) for line in self.out.read_bytes().split(b"\n")[:-1]] == list(range(count))
        return count


def test_a_killed_worker_costs_the_job_nothing_and_another_takes_over(node: Rig) -> None:
    writer = Writer(node)
    for _ in range(2):
        (worker,) = node.workers()
        os.kill(worker, signal.SIGKILL)
        eventually(lambda worker=worker: node.workers() not in ([], [worker]))
    count = writer.finish()
    node.ended()
    assert node.kinds().count("step_start") == 1
    assert node.kinds().count("step_end") == 1
    numbers = [int(one["body"][:6]) for one in node.records("log") if not one.get("partial")]
    assert numbers[-1] == count - 1
    assert sorted(numbers) == numbers
    assert "ended by signal 9; its step's taps come back" in node.log()


def test_a_killed_daemon_is_not_noticed_and_the_next_one_finds_job_and_worker(node: Rig) -> None:
    writer = Writer(node)
    workers = node.workers()
    node.stop_node(signal.SIGKILL)
    node.start_node()
    assert node.event("job_start") == 0
    assert node.exec("--", "echo", "into the same worker").returncode == 0
    count = writer.finish()
    assert node.workers() == workers
    node.ended()
    kinds = node.kinds()
    assert [kinds.count(kind) for kind in ("job_start", "step_start", "step_end", "job_end")] == [1, 1, 1, 1]
    assert kinds[-2:] == ["step_end", "job_end"]
    assert "into the same worker\n" in node.output()
    assert kinds.count("log") == count + 1


def test_a_stopped_worker_costs_its_two_seconds_and_the_job_goes_on(node: Rig) -> None:
    del node.numbers["TAP_HUNG_TOTAL_MS"]
    writer = Writer(node)
    (worker,) = node.workers()
    os.kill(worker, signal.SIGSTOP)
    start_s = time.monotonic()
    count = writer.finish()
    assert time.monotonic() - start_s > 2
    os.kill(worker, signal.SIGCONT)
    node.ended()
    assert 0 < node.kinds().count("log") < count


def test_a_worker_that_was_stopped_for_less_than_that_loses_nothing(node: Rig) -> None:
    writer = Writer(node)
    (worker,) = node.workers()
    os.kill(worker, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(worker, signal.SIGCONT)
    count = writer.finish()
    node.ended()
    assert node.kinds().count("log") == count


def test_what_no_worker_took_is_told_to_the_nodes_log(tmp_path: Path, monkeypatch: "pytest.MonkeyPatch") -> None:
    monkeypatch.chdir(tmp_path)
    environ = {b"SLURM_JOB_ID": b"174", b"SLURM_STEP_ID": b"3"}
    copier._report(5, 0, environ, "none")  # nobody listens: nothing happens
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind("log")
        copier._report(0, 0, environ, "log")
        copier._report(70_005, 0, environ, "log")
        copier._report(1, 9, environ, "log")
        lines = [log.recv(999) for _ in range(3)]
    assert lines == [
        b"<14>relay exec: [174.3] relay lost 70005 bytes, no worker took them",
        b"<14>relay exec: [174.3] relay lost 1 bytes, no worker took them",
        b"<14>relay exec: [174.3] relay left 9 bytes in a worker that hung, they are records only if it goes on",
    ]


def test_a_slow_reader_of_stdout_does_not_hold_stderr(node: Rig) -> None:
    running = subprocess.Popen(
        node.exec_command("--", "sh", "-c", "head -c 1000000 /dev/zero & echo err >&2; wait"),
        env=node.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stderr and running.stdout
    assert running.stderr.readline() == b"err\n"
    assert len(running.stdout.read()) == 1_000_000
    assert running.wait(LONG_S) == 0


# --- as it is installed: the one file, whose sh header becomes Python


def built(pyz: Path, node: Rig, *arguments: str) -> "list[str]":
    return [str(pyz), "relay", "exec", "--folder", str(node.folder), "--", *arguments]


def test_the_built_program_passes_status_death_signals_and_stdin_on(pyz: Path, node: Rig) -> None:
    held = Wire(node)  # while its worker is there, the daemon answers within the half second of a real limit
    for script, status in (
        ("exit 0", 0), ("exit 126", 126), ("exit 127", 127), ("exit 138", 138), ("exit 255", 255),
        ("kill -KILL $$", -signal.SIGKILL), ("kill -USR1 $$", -signal.SIGUSR1), ("kill -SEGV $$", -signal.SIGSEGV),
    ):  # fmt: skip
        done = subprocess.run(
            built(pyz, node, "sh", "-c", f"cat; {script}"),
            env=node.environ(0), input=b"typed\n", capture_output=True, timeout=LONG_S,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (status, b"typed\n", b""), script
    running = subprocess.Popen(
        built(pyz, node, "sh", "-c", "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.1; done"),
        env=node.environ(0), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout and running.stdout.readline() == b"ready\n"
    running.terminate()
    assert (running.communicate(timeout=LONG_S)[0], running.returncode) == (b"got\n", 9)
    held.bye()
    node.ended()
    assert node.output(step_id="0") == "typed\n" * 8 + "ready\ngot\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_the_built_program_leaves_closed_what_was_closed(pyz: Path, node: Rig, closed: str) -> None:
    look = 'exec 9>"$0"; for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd >&9; done; exit 3'
    for name, start in (("bare", []), ("built", built(pyz, node))):
        argv = ["sh", "-c", f'exec "$@" {closed}', "sh", *start, "sh", "-c", look, str(node.base / name)]
        assert subprocess.run(argv, env=node.environ(), timeout=LONG_S).returncode == 3
    assert (node.base / "built").read_text() == (node.base / "bare").read_text()


@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "POSIX", "LANG": "C"}, {"LC_ALL": "C.UTF-8"}])
def test_the_built_program_gives_the_command_the_environment_of_the_job(
    pyz: Path, node: Rig, locale: "dict[str, str]"
) -> None:
    environ = node.environ(0, LD_LIBRARY_PATH="/no/such:", LD_PRELOAD="", PYTHONPATH="/no/such", **locale)
    for folder in (node.folder, node.base / "no-daemon"):
        argv = [str(pyz), "relay", "exec", "--folder", str(folder), "--", "/usr/bin/env", "-0"]
        got = subprocess.run(argv, env=environ, capture_output=True, timeout=LONG_S).stdout
        after = dict(one.partition("=")[::2] for one in got.decode().split("\0")[:-1])
        after.pop("PWD", None)  # dash, as the header's sh
        assert after == environ
