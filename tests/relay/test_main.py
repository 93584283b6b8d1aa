# SPDX-License-Identifier: GPL-2.0-or-later
import re
import subprocess
from pathlib import Path

import pytest

from guard.relay import main, reasons
from tests.relay.rig import Rig, command

GUARD = Path(main.__file__).parent


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["nonsense"], ["node", "--nonsense"], ["node", "extra"], ["node", "--config"], ["exec"], ["exec", "--"],
        ["exec", "--send", "--", "true"], ["event"], ["event", "job_pause"],
        ["event", "job_start", "--relay-io", "maybe"],
        ["event", "job_start", "job_end"], ["check", "--send=1"], ["exec", "--unbuffered=1", "true"],
    ],
)  # fmt: skip
def test_a_call_that_is_not_understood_shows_the_usage(
    arguments: "list[str]", capfd: "pytest.CaptureFixture[str]"
) -> None:
    assert main.main(arguments, {}) == 2
    assert "usage: relay node" in capfd.readouterr().err


def test_help_is_no_fault(capsys: "pytest.CaptureFixture[str]") -> None:
    assert main.main(["--help"], {}) == 0
    assert capsys.readouterr().out == main.USAGE


def test_exec_takes_the_command_with_or_without_dashes(rig: Rig) -> None:
    for words in (["--", "echo", "--folder"], ["echo", "--folder"], ["--unbuffered", "echo", "--folder"]):
        done = subprocess.run(command("exec", f"--folder={rig.folder}", *words), capture_output=True, env=rig.environ())
        assert done.stdout == b"--folder\n"


def test_an_event_without_daemon_is_a_fault_with_a_sentence(rig: Rig) -> None:
    assert rig.event("job_start") == 1
    assert "start eessi-relay-node.service" in rig.log()


def test_every_code_of_a_fault_has_its_sentence_and_none_is_left_over() -> None:
    used = set()
    for file in GUARD.glob("*.py"):
        used.update(re.findall(r'Fault\(\s*"([a-z-]+)"', file.read_text()))
    assert used == set(reasons.SENTENCES)
