# SPDX-License-Identifier: GPL-2.0-or-later
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from guard.arch import chain
from guard.base.watch import Watch
from tests.arch import slurm_reader
from tests.arch.slurm_reader import FGETS, WHOLE

CASES = int(os.environ.get("FUZZ_CASES", "300"))
BEFORE = {b"A": b"old", b"B": b"old", b"PATH": b"/usr/bin"}

OUTPUTS = [
    (b"export A=1\n", {**BEFORE, b"A": b"1"}),
    (b"export  A =  1 \n", {**BEFORE, b"A": b"  1 "}),
    (b"export A=1", {**BEFORE, b"A": b"1"}),
    (b"export A\n", BEFORE),
    (b"export =1\n", BEFORE),
    (b"exportA=1\nset A=1\n export A=1\n", BEFORE),
    (b"unset A\nunset  B \n", {b"PATH": b"/usr/bin"}),
    (b"unset \nunset\n", BEFORE),
    (b"print export A=1\n", BEFORE),
    (b"print \nexport A=1\n", {**BEFORE, b"A": b"1"}),
    (b"export A=x=y\r\n", {**BEFORE, b"A": b"x=y\r"}),
    (b"export A=1\0\nexport B=2\n", {**BEFORE, b"A": b"1"}),
    (b"export A=" + b"x" * 200_000 + b"\n", BEFORE),
]


@pytest.mark.parametrize(("output", "after"), OUTPUTS)
def test_a_prologs_directives_are_applied(output: bytes, after: "dict[bytes, bytes]") -> None:
    assert chain.applied(BEFORE, output, None) == after


PIECES = st.sampled_from(
    [
        b"export ",
        b"unset ",
        b"print ",
        b"A",
        b"B",
        b"=",
        b"\n",
        b" ",
        b"\t",
        b"1",
        b"\r",
        b"\0",
        b"x" * 4090,
        b"\v=",
        b"\xff",
    ]
)


@settings(max_examples=CASES)
@given(st.lists(PIECES, max_size=14).map(b"".join), st.sampled_from([WHOLE, FGETS]))
def test_what_is_applied_is_what_the_model_of_slurm_applies(output: bytes, generation: str) -> None:
    line_max = None if generation == WHOLE else 4094
    # As the guard passes it on (main.py, _chain): its last line is ended. For an unset without a name Slurm looks on
    # beyond the line and takes all that follows for one, so for none; unless a NUL ends all, the guard's lines too.
    assume(not (b"\0" in output and re.search(rb"^unset \s*$", output, re.MULTILINE)))
    after = slurm_reader.applied(BEFORE, output if output.endswith(b"\n") else output + b"\n", generation)[0]
    # `export =x` makes an entry `=x=x`: no sh hands that on to the guard, and no Python to a child.
    after.pop(b"", None)
    assert chain.applied(BEFORE, output, line_max) == after


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch() as opened:
        yield opened


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prolog"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


STATUSES = [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 1), ("kill -TERM $$", 1)]


@pytest.mark.parametrize(("text", "status"), STATUSES)
def test_its_status_is_passed_on_and_death_by_a_signal_is_1_as_for_slurm(
    tmp_path: Path, watch: Watch, text: str, status: int
) -> None:
    assert chain.run(program(tmp_path, text), BEFORE, watch) == (status, b"")


def test_it_gets_the_tasks_environment_and_gives_its_bytes(tmp_path: Path, watch: Watch) -> None:
    text = r"printf 'export B=%s\377\n' $A"
    assert chain.run(program(tmp_path, text), BEFORE, watch) == (0, b"export B=old\xff\n")


def test_what_its_own_child_still_writes_is_waited_for(tmp_path: Path, watch: Watch) -> None:
    text = "(sleep 0.3; echo export B=late) &\necho export A=1"
    assert chain.run(program(tmp_path, text), BEFORE, watch) == (0, b"export A=1\nexport B=late\n")


@pytest.mark.parametrize("path", ["/nonexistent", "/etc", "relative"])
def test_one_that_cannot_be_run_is_an_oserror(watch: Watch, path: str) -> None:
    with pytest.raises(OSError):
        chain.run(path, BEFORE, watch)


def test_one_without_the_run_bit_is_an_oserror(tmp_path: Path, watch: Watch) -> None:
    path = program(tmp_path, "exit 0")
    os.chmod(path, 0o644)
    with pytest.raises(OSError):
        chain.run(path, BEFORE, watch)
