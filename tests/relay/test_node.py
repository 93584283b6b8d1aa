# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon itself, by its commands and its protocol."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard.relay import frames
from guard.relay.frames import Frame
from tests.conftest import ROOT, need
from tests.relay.rig import JOB_ID, LONG_S, Rig, Wire, command, eventually, program

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


def said(rig: Rig, kind: int, fields: "dict[str, bytes]", name: str = "control.sock") -> "dict[str, bytes]":
    """The answer to one frame."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(LONG_S)
        peer.connect(str(rig.folder / name))
        peer.send(frames.pack(Frame(kind, frames.fields_payload(fields))))
        packet = peer.recv(frames.PACKET_MAX_BYTES)
        return frames.fields_of(frames.unpack(packet).payload) if packet else {}


def as_nobody(rig: Rig, *arguments: str, job_id: int = JOB_ID) -> "subprocess.CompletedProcess[bytes]":
    """`relay ...` as another user: by the system's Python and a copy, since a checkout may lie where he cannot read."""
    need("setpriv", shutil.which("setpriv"))
    need("/usr/bin/python3", os.path.exists("/usr/bin/python3"))
    copy = rig.base / "copy"
    if not copy.exists():
        shutil.copytree(ROOT / "guard", copy / "guard", ignore=shutil.ignore_patterns("__pycache__"))
        rig.base.chmod(0o755)
    argv = [*AS_NOBODY, "/usr/bin/python3", "-I", "-S", "-c", program(rig.numbers), str(copy), *arguments]
    environ = {**rig.environ(), "SLURM_JOB_ID": str(job_id), "SLURM_JOB_UID": str(NOBODY)}
    return subprocess.run(argv, env=environ, capture_output=True, timeout=LONG_S)


def test_start_and_end_of_a_job_are_the_seeds_records(node: Rig) -> None:
    node.ended()
    start, end = node.records()
    slurm = {
        "cluster": "slurm", "node": "node1", "job_id": JOB_ID, "sluid": "sA0SM5EFW65700", "user_name": "alice",
        "restart_count": 0, "partition": "batch", "account": "physics",
    }  # fmt: skip
    assert (start["v"], start["type"], start["slurm"]) == (1, "job_start", slurm)
    assert (end["v"], end["type"], end["slurm"]) == (1, "job_end", slurm)
    assert time.time_ns() > end["time"] > start["time"] > 1_700_000_000_000_000_000
    assert f"relay_io/uds_json: relaying job output to {node.socket}\n" in node.log()
    assert list((node.folder / "jobs").iterdir()) == []


@pytest.mark.parametrize(
    ("default", "wish", "is_relayed"),
    [
        ("yes", "default", True),
        ("yes", "no", False),
        ("yes", "yes", True),
        ("no", "default", False),
        ("no", "yes", True),
    ],
)
def test_a_job_is_settled_at_its_start(rig: Rig, default: str, wish: str, is_relayed: bool) -> None:
    rig.configure(default)
    rig.start()
    assert rig.event("job_start", "--relay-io", wish) == 0
    assert rig.exec("--", "echo", "hi").stdout == b"hi\n"
    assert rig.event("job_end") == 0
    rig.event("job_start", "--relay-io", "yes", job_id=9)
    eventually(lambda: any(one["slurm"]["job_id"] == 9 for one in rig.records()))
    kinds = [one["type"] for one in rig.records() if one["slurm"]["job_id"] == JOB_ID]
    if is_relayed:
        eventually(lambda: "job_end" in rig.kinds())
    else:
        assert kinds == []


def test_a_changed_default_does_not_split_a_running_job_and_a_requeued_one_is_settled_again(rig: Rig) -> None:
    rig.configure("yes")
    rig.start()
    rig.event("job_start")
    rig.stop_node()
    rig.configure("no")
    rig.start_node()
    assert rig.event("job_start") == 0  # told once more: no second record, no new answer
    assert rig.exec("--", "echo", "hi").stdout == b"hi\n"
    rig.ended()
    assert [kind for kind in rig.kinds() if kind.startswith("job")] == ["job_start", "job_end"]
    assert rig.output() == "hi\n"
    rig.event("job_start", SLURM_JOB_RESTART_COUNT="1")
    rig.exec("--", "echo", "again")
    rig.event("job_end")
    rig.event("job_start", "--relay-io", "yes", SLURM_JOB_RESTART_COUNT="2")
    eventually(lambda: rig.kinds().count("job_start") == 2)
    assert [one["slurm"]["restart_count"] for one in rig.records("job_start")] == [0, 2]
    assert "again" not in rig.output()


def test_a_requeue_whose_end_was_not_told_ends_the_run_before(node: Rig) -> None:
    node.event("job_start", SLURM_JOB_RESTART_COUNT="1")
    eventually(lambda: node.kinds() == ["job_start", "job_end", "job_start"])
    assert [one["slurm"]["restart_count"] for one in node.records()] == [0, 0, 1]


def test_a_node_without_plugin_relays_nothing(rig: Rig) -> None:
    rig.config.write_text("RelayIODefaultEnabled=yes\n")
    rig.start()
    assert rig.event("job_start", "--relay-io", "yes") == 0
    assert rig.exec("--", "echo", "hi").stdout == b"hi\n"
    assert rig.event("job_end") == 0
    assert rig.records() == []
    assert "relaying job output" not in rig.log()


def test_a_step_that_goes_well_leaves_no_line_in_the_log(node: Rig) -> None:
    assert node.exec("--", "echo", "fine").returncode == 0
    node.ended()
    assert [line for line in node.log().splitlines() if "relaying job output to" not in line] == []


# --- who may say what


@as_root
def test_another_user_may_neither_tell_of_jobs_nor_reach_the_control_socket(node: Rig) -> None:
    done = as_nobody(node, "event", "job_end", "--folder", str(node.folder))
    assert (done.returncode, b"Permission denied" in done.stderr) == (1, True)
    # The socket that is open to all: there the daemon itself says no.
    (node.folder / "open").mkdir()
    (node.folder / "open" / "control.sock").symlink_to(node.folder / "tap.sock")
    done = as_nobody(node, "event", "job_end", "--folder", str(node.folder / "open"))
    assert (done.returncode, b"only root may tell of jobs" in done.stderr) == (1, True)
    eventually(lambda: node.kinds() == ["job_start"])
    assert Wire(node).answer["code"] == b"0"


@as_root
def test_a_users_taps_may_speak_for_his_own_jobs_only(rig: Rig) -> None:
    rig.start()
    rig.event("job_start", uid=0)
    rig.event("job_start", job_id=9, uid=NOBODY)
    arguments = ("exec", "--folder", str(rig.folder), "--", "echo", "hi")
    assert as_nobody(rig, *arguments).stdout == b"hi\n"
    assert as_nobody(rig, *arguments, job_id=9).stdout == b"hi\n"
    eventually(lambda: rig.records("log"))
    assert {one["slurm"]["job_id"] for one in rig.records("log")} == {9}
    assert {one["slurm"]["job_id"] for one in rig.records("step_start")} == {9}


def test_identity_in_a_taps_environment_changes_nothing(node: Rig) -> None:
    forged = {
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_ACCOUNT": "evil",
        "SLURM_CLUSTER_NAME": "x",
        "SLURM_RESTART_COUNT": "9",
    }
    node.exec("--", "echo", "hi", env={**node.environ(), **forged})
    node.ended()
    assert {(one["slurm"]["user_name"], one["slurm"]["cluster"]) for one in node.records()} == {("alice", "slurm")}


# --- bad input


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (frames.HELLO, {}, b"5"),
        (frames.HELLO, {"job_id": b"x", "step_id": b"0"}, b"5"),
        (frames.HELLO, {"job_id": b"174", "step_id": b"-1"}, b"5"),
        (frames.HELLO, {"job_id": b"174", "step_id": b"4294967292"}, b"5"),
        (frames.HELLO, {"job_id": b"174", "step_id": b"99999999999"}, b"5"),
        (frames.HELLO, {"job_id": b"175", "step_id": b"0"}, b"2"),
        (frames.HELLO, {"job_id": b"0", "step_id": b"0"}, b"5"),
        (frames.EVENT, {"event": b"job_pause", "job_id": b"1", "uid": b"1"}, b"5"),
        (frames.EVENT, {"event": b"job_start", "job_id": b"../../etc", "uid": b"1"}, b"5"),
        (frames.EVENT, {"event": b"job_start", "job_id": b"1"}, b"5"),
        (frames.EVENT, {"event": b"job_start", "job_id": b"1", "uid": b"1", "relay_io": b"maybe"}, b"5"),
        (frames.EVENT, {"event": b"job_start", "job_id": b"1", "uid": b"1", "restart_count": b"one"}, b"5"),
        (frames.EVENT, {"event": b"job_end", "job_id": b"1", "uid": b"1"}, b"2"),
        (frames.DATA, {"x": b"y"}, b"5"),
        (frames.BYE, {}, b"5"),
    ],
)
def test_what_cannot_be_understood_is_answered_and_nothing_happens(
    node: Rig, kind: int, fields: "dict[str, bytes]", code: bytes
) -> None:
    assert said(node, kind, fields)["code"] == code
    eventually(lambda: node.kinds() == ["job_start"])
    assert node.node and node.node.poll() is None


def test_names_with_slashes_quotes_and_newlines_stay_text(rig: Rig) -> None:
    rig.start()
    name = 'al"i\\ce\n../../x'
    assert rig.event("job_start", SLURM_JOB_USER=name) == 0
    rig.ended()
    assert rig.records()[0]["slurm"]["user_name"] == name


def test_garbage_never_ends_the_daemon(node: Rig) -> None:
    draw = random.Random(6)
    for _ in range(300):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(str(node.folder / draw.choice(("tap.sock", "control.sock"))))
            if draw.random() < 0.9:
                peer.send(draw.randbytes(draw.choice((1, 27, 28, 29, 60, 9000))))
    assert Wire(node).answer["code"] == b"0"
    assert node.log().count("relay refuses a peer") == 1


def test_peers_that_say_nothing_are_let_go_and_cannot_crowd_out_others(node: Rig) -> None:
    silent = []
    for _ in range(600):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(LONG_S)
        peer.connect(str(node.folder / "tap.sock"))
        silent.append(peer)
    assert Wire(node).answer["code"] == b"0"
    assert [peer.recv(100) for peer in silent[:100]] == [b""] * 100
    for peer in silent:
        peer.close()


def test_a_thousand_steps_one_after_the_other_are_a_thousand_pairs(node: Rig) -> None:
    for step in range(1000):
        tap = Wire(node, step, is_whole_step=True)
        assert tap.answer["code"] == b"0"
        tap.data(b"%d\n" % step)
        tap.bye()
    node.ended()
    kinds = node.kinds()
    assert [kinds.count(kind) for kind in ("step_start", "log", "step_end")] == [1000, 1000, 1000]
    assert sorted(int(one["body"]) for one in node.records("log")) == list(range(1000))
    assert node.workers() == []


# --- starting and stopping


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("RelayIOPlugin=x\nNonsense=1\n", "line 2: Nonsense is not a key of this file"),
        (
            "RelayIOPlugin=relay_io/uds_json\nRelayIOParameters=socket=/no/such/folder/s\n",
            "line 2: the socket's folder /no/such/folder is not there; make it, owned by root",
        ),
        ("RelayIOParameters=socket=/" + "x" * 199, "line 1: socket= is 200 bytes long, a socket's path is at most 107"),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_it_with_a_sentence(rig: Rig, text: str, complaint: str) -> None:
    rig.config.write_text(text)
    done = subprocess.run(
        command("node", "--config", str(rig.config), "--folder", str(rig.folder)), capture_output=True, timeout=LONG_S
    )
    assert done.returncode == 1
    assert complaint in done.stderr.decode()


def test_a_second_daemon_is_refused_and_the_first_goes_on(node: Rig) -> None:
    done = subprocess.run(
        command("node", "--config", str(node.config), "--folder", str(node.folder)), capture_output=True, timeout=LONG_S
    )
    assert (done.returncode, b"another `relay node` has this folder" in done.stderr) == (1, True)
    assert Wire(node).answer["code"] == b"0"


@pytest.mark.parametrize("kind", ["writable", "link", "long", "file"])
def test_a_folder_that_others_could_change_is_refused(rig: Rig, kind: str) -> None:
    folder = rig.folder
    if kind == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        (rig.base / "elsewhere").mkdir()
        folder.symlink_to(rig.base / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder = rig.base / ("x" * 60)
    done = subprocess.run(
        command("node", "--config", str(rig.config), "--folder", str(folder)), capture_output=True, timeout=LONG_S
    )
    assert (done.returncode, b"the relay's folder cannot be used" in done.stderr) == (1, True), done.stderr


def test_its_sockets_have_the_modes_that_the_protocol_says(node: Rig) -> None:
    assert [(node.folder / name).stat().st_mode & 0o777 for name in ("control.sock", "tap.sock")] == [0o600, 0o666]
    assert (node.folder / "jobs").stat().st_mode & 0o777 == 0o700


def test_systemd_hears_ready_watchdog_and_stopping(rig: Rig) -> None:
    path = rig.base / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(LONG_S)
        rig.start_scraper()
        with open(rig.log_path, "ab") as log:
            rig.node = subprocess.Popen(
                command("node", "--config", str(rig.config), "--folder", str(rig.folder)),
                env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}, stderr=log,
            )  # fmt: skip
        assert systemd.recv(99) == b"READY=1"
        assert systemd.recv(99) == b"WATCHDOG=1"
        rig.node.terminate()
        while systemd.recv(99) != b"STOPPING=1":
            pass
        assert rig.node.wait(LONG_S) == 0


def test_the_unit_starts_what_it_should() -> None:
    unit = (Path(__file__).parent.parent.parent / "build" / "systemd" / "eessi-relay-node.service").read_text()
    for line in (
        *("Type=notify", "KillMode=process", "OOMPolicy=continue", "StartLimitIntervalSec=0"),
        *("RuntimeDirectory=eessi-relay", "RuntimeDirectoryPreserve=yes"),
    ):
        assert f"\n{line}\n" in unit
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "/dev/stdin"], input=unit.encode(), capture_output=True
        )
        assert b"Unknown key" not in checked.stderr


def test_kills_of_worker_and_daemon_at_random_times_never_touch_the_jobs_file(node: Rig) -> None:
    draw = random.Random(os.environ.get("FUZZ_SEED", "174"))
    script = (
        "import sys, time\n"
        "for i in range(400):\n"
        "    sys.stdout.write(''.join('%07d\\n' % (i * 1000 + j) for j in range(1000)))\n"
        "    sys.stdout.flush(); time.sleep(0.01)\n"
    )
    expected = "".join(f"{number:07d}\n" for number in range(400_000))
    out = node.base / "out"
    with open(out, "wb") as file:
        running = subprocess.Popen(
            node.exec_command("--", sys.executable, "-c", script), env=node.environ(), stdout=file
        )
    while running.poll() is None:
        time.sleep(draw.uniform(0.01, 0.6))
        if draw.random() < 0.4:
            node.stop_node(signal.SIGKILL)
            node.start_node()
        else:
            for worker in node.workers():
                os.kill(worker, signal.SIGKILL)
    assert running.returncode == 0
    assert out.read_text() == expected
    node.ended()
    kinds = node.kinds()
    assert kinds.count("job_start") == kinds.count("job_end") == 1
    got = [int(one["body"]) for one in node.records("log") if not one.get("partial") and len(one["body"]) == 8]
    assert got == sorted(got)
    assert len(got) > 1000
