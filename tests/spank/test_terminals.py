# SPDX-License-Identifier: GPL-2.0-or-later
"""Steps on a terminal: it is the user's own, its output is not relayed, what is started from it is."""

import fcntl
import os
import re
import select
import struct
import termios
import time

import pytest

from tests.relay.rig import LONG_S
from tests.slurm.site import USER
from tests.spank.site import Relayed, kinds, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

_PROMPT = "ready> "
_ENVIRON = {b"PS1": _PROMPT.encode(), b"ENV": b"/dev/null", b"SHELL": b"/bin/sh", b"TERM": b"dumb"}
_SIZE, _OTHER_SIZE = (33, 101), (44, 122)
_LOOK = "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminals"
_LOOK_AGAIN = f'until [ "$(stty size)" = "{_OTHER_SIZE[0]} {_OTHER_SIZE[1]}" ]; do sleep 0.1; done; stty size'


def _resize(terminal_fd: int, size: "tuple[int, int]") -> None:
    fcntl.ioctl(terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _session(relayed: Relayed, *command: str, last: str) -> "tuple[int, list[bytes]]":
    """A command's status and what its terminal showed, without srun's and salloc's own lines. The user types: looks at
    the terminal, looks again once it has another size, then last."""
    ours_fd, users_fd = os.openpty()
    _resize(users_fd, _SIZE)
    shown = b""

    def read_until(mark: bytes) -> None:
        nonlocal shown
        until_s = time.monotonic() + LONG_S
        start = len(shown)
        while mark not in shown[start:]:
            assert select.select([ours_fd], [], [], max(0.0, until_s - time.monotonic()))[0], shown
            shown += os.read(ours_fd, 65536)

    given = ("setsid", "--ctty", "--wait", *command)
    with relayed.cluster.popen_as(USER, *given, environ=_ENVIRON, stdio_fd=users_fd) as process:
        os.close(users_fd)
        try:
            for text in (_LOOK, _LOOK_AGAIN, last):
                read_until(_PROMPT.encode())
                if text == _LOOK_AGAIN:
                    _resize(ours_fd, _OTHER_SIZE)
                os.write(ours_fd, text.encode() + b"\n")
            with pytest.raises(OSError):  # EIO: nobody has the terminal any more
                read_until(b"\0")
        except BaseException:
            process.kill()
            raise
        finally:
            os.close(ours_fd)
    lines = shown.replace(b"\r", b"").splitlines()
    return process.returncode, [line for line in lines if not re.match(b"srun: |salloc: ", line)]


@pytest.mark.parametrize(
    ("command", "step"), [(("salloc", "-n2"), "interactive"), (("srun", "--pty"), "0")], ids=["salloc", "srun --pty"]
)
def test_a_step_on_a_terminal_keeps_it_and_what_is_started_there_is_relayed(
    relayed: Relayed, command: "tuple[str, ...]", step: str
) -> None:
    shell = ("sh",) if step == "0" else ()
    # --overlap: srun --pty has all of the job.
    last = "echo out; echo err >&2; srun --overlap -n1 sh -c 'echo $SLURM_JOB_ID'; exit 6"
    ran = {}
    for wish in ("no", "yes"):
        status, lines = _session(relayed, *command, "-wn1", f"--relay-io={wish}", *shell, last=last)
        assert status == 6
        ran[wish], (job_id,) = lines[:-1], lines[-1:]
    assert ran["yes"] == ran["no"]
    for line in (b"33 101", b"terminals", b"44 122", b"out", b"err"):
        assert line in ran["yes"]
    records = relayed.records(job_id.decode())
    started = str(int(step) + 1) if step.isdigit() else "0"
    assert (records[0]["type"], records[-1]["type"]) == ("job_start", "job_end")
    # Between steps no order is promised.
    by_step = {name: [one for one in records if one["slurm"].get("step_id") == name] for name in (step, started)}
    assert sum(map(len, by_step.values())) == len(records) - 2
    assert kinds(by_step[step]) == [f"step_start {step}", f"step_end {step}"]
    assert kinds(by_step[started]) == [f"step_start {started}", f"log {started}", f"step_end {started}"]
    assert output(records, step_id=started) == job_id + b"\n"
