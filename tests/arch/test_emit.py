# SPDX-License-Identifier: GPL-2.0-or-later
"""What is emitted, judged by the model of Slurm's reader and by a real sh."""

import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.arch import delta, emit
from guard.arch.emit import Outcome
from guard.arch.options import PROLOG, SHELL, Options
from guard.base.deadline import Deadline
from guard.base.faults import JobFault
from guard.base.limits import PROLOG_LINE_MAX, SLURM_ENTRY_MAX_BYTES
from tests.arch import slurm_reader
from tests.arch.slurm_reader import FGETS, WHOLE

CASES = int(os.environ.get("FUZZ_CASES", "200"))

LINES = [
    ([(b"A", b"1")], b"export A=1\n", b"export A=1\n"),
    ([(b"A", b"")], b"export A=\n", b"export A=''\n"),
    ([(b"A", b" b  $HOME `x` \"q\" 'p' ")], b"export A= b  $HOME `x` \"q\" 'p' \n", None),
    ([(b"A", None)], b"unset A\n", b"unset A\n"),
    ([(b"A_1", b"\xff:\t")], b"export A_1=\xff:\t\n", b"export A_1='\xff:\t'\n"),
    ([], b"", b""),
]


@pytest.mark.parametrize(("changes", "prolog", "shell"), LINES)
def test_the_lines(changes: "list[tuple[bytes, bytes | None]]", prolog: bytes, shell: "bytes | None") -> None:
    assert emit.render(changes, PROLOG) == prolog
    if shell is not None:
        assert emit.render(changes, SHELL) == shell


@pytest.mark.parametrize("value", [b"a\nb", b"a\rb", b"\n", b"a\n", b"a\0b"])
def test_a_value_that_no_prolog_line_can_carry_aborts_the_whole(value: bytes) -> None:
    with pytest.raises(JobFault) as caught:
        emit.render([(b"GOOD", b"1"), (b"BAD", value)], PROLOG)
    assert caught.value.code == "unsafe-environment"
    assert "BAD" in caught.value.detail


@pytest.mark.parametrize("name", [b"", b"1A", b"A-B", b"A B", b"A\n", b"caf\xe9", b"A=B", b"BASH_FUNC_x%%"])
@pytest.mark.parametrize("mode", [PROLOG, SHELL])
@pytest.mark.parametrize("value", [b"1", None])
def test_a_name_outside_the_grammar_aborts_the_whole(name: bytes, mode: str, value: "bytes | None") -> None:
    with pytest.raises(JobFault) as caught:
        emit.render([(b"GOOD", b"1"), (name, value)], mode)
    assert caught.value.code == "unsafe-environment"


@pytest.mark.parametrize("name", [b"PS1", b"PS2", b"PS3", b"PROMPT_COMMAND"])
@pytest.mark.parametrize("value", [b"a\nb", b"a\rb", b"x" * 5000, b"a\0"])
def test_an_unsafe_prompt_is_left_out_and_the_rest_goes(name: bytes, value: bytes) -> None:
    assert emit.render([(b"A", b"1"), (name, value), (b"B", b"2")], PROLOG) == b"export A=1\nexport B=2\n"


def test_a_safe_prompt_goes() -> None:
    assert emit.render([(b"PS1", b"{EESSI} ")], PROLOG) == b"export PS1={EESSI} \n"


def test_shell_mode_carries_line_breaks() -> None:
    text = emit.render([(b"A", b"a\nb\rc'd")], SHELL)
    run = subprocess.run(["/bin/sh", "-c", f'{text.decode()} printf %s "$A"'], stdout=subprocess.PIPE, check=True)
    assert run.stdout == b"a\nb\rc'd"


def test_a_line_may_have_4094_bytes_with_its_newline_and_no_more() -> None:
    fits = b"x" * (PROLOG_LINE_MAX - len(b"export A=\n"))
    line = emit.render([(b"A", fits)], PROLOG)
    assert len(line) == PROLOG_LINE_MAX
    for generation in (FGETS, WHOLE):
        assert slurm_reader.applied({}, line, generation) == ({b"A": fits}, b"")
    with pytest.raises(JobFault) as caught:
        emit.render([(b"LONGER", b"y" * 5000), (b"A", fits + b"x")], PROLOG)
    assert "LONGER is the longest of 2 variables" in caught.value.detail
    assert "--prolog-line-max" in caught.value.detail


@pytest.mark.parametrize("line_max", [None, 10**6])
@pytest.mark.parametrize("mode", [PROLOG, SHELL])
def test_an_entry_must_stay_below_131072_bytes_whatever_the_line_may_be(mode: str, line_max: "int | None") -> None:
    fits = b"x" * (SLURM_ENTRY_MAX_BYTES - 1 - len(b"A") - 2)
    line = emit.render([(b"A", fits)], mode, line_max)
    if mode == PROLOG:
        assert slurm_reader.applied({}, line, WHOLE)[0] == {b"A": fits}
    with pytest.raises(JobFault) as caught:
        emit.render([(b"A", fits + b"x")], mode, line_max)
    assert "load fewer modules" in caught.value.detail


NEWER = {b"SLURM_JOB_START_TIME": b"1"}


@pytest.mark.parametrize(
    ("environ", "site", "is_cut", "limit"),
    [
        ({}, None, False, 4094),
        ({}, 9000, False, 9000),
        (NEWER, None, False, None),
        ({b"SLURM_JOB_START_TIME": b""}, 9000, False, None),
        (NEWER, None, True, 4094),
        ({}, 9000, True, 4094),
    ],
)
def test_the_line_limit_follows_what_slurm_shows(
    environ: "dict[bytes, bytes]", site: "int | None", is_cut: bool, limit: "int | None"
) -> None:
    options = Options()
    options.line_max, options.is_cut = site, is_cut
    assert emit.line_max_bytes(environ, options) == limit


@given(st.binary())
def test_quoting_is_that_of_shlex(value: bytes) -> None:
    assert os.fsdecode(emit.shell_quote(value)) == shlex.quote(os.fsdecode(value))


@given(st.text(), st.integers(0, 40))
def test_a_cut_ends_on_a_character_boundary(text: str, length: int) -> None:
    data = text.encode("utf-8", "surrogatepass")
    cut = emit.cut(data, length)
    assert data.startswith(cut)
    assert len(cut) <= length
    cut.decode("utf-8", "surrogatepass")
    assert len(data) <= length or len(cut) > length - 4


def test_a_message_is_cut_to_the_line_and_an_empty_one_is_no_print() -> None:
    assert emit.print_line(b"") == b""
    assert emit.print_line(b"hello") == b"print hello\n"
    line = emit.print_line("é".encode() * 3000)
    assert PROLOG_LINE_MAX - 1 <= len(line) <= PROLOG_LINE_MAX
    line.decode()


# All or nothing, for any two environments: the model's task has the after environment on every name that may change,
# or the guard refuses and nothing was to be written.
NAMES = st.one_of(
    st.sampled_from([b"PATH", b"PS1", b"PROMPT_COMMAND", b"TMPDIR", b"SLURM_X", b"BASH_FUNC_f%%", b"A", b"B", b"C_1"]),
    st.binary(min_size=1, max_size=3).filter(lambda name: b"=" not in name and b"\0" not in name),
)
VALUES = st.one_of(
    st.binary(max_size=8).map(lambda value: value.replace(b"\0", b"0")),
    st.sampled_from([b"", b" ", b" x ", b"=", b"\n", b"x\nexport Y=1", b"\r", b"\t=\t", b"print x", b"\xff\xfe"]),
    st.integers(4070, 4100).map(lambda length: b"v" * length),
    st.integers(131060, 131080).map(lambda length: b"w" * length),
)
ENVIRONS = st.dictionaries(NAMES, VALUES, max_size=6)


@settings(max_examples=CASES)
@given(ENVIRONS, ENVIRONS, st.sampled_from([FGETS, WHOLE]), st.binary(max_size=20))
def test_slurm_ends_up_with_the_after_environment_or_the_guard_refuses(
    before: "dict[bytes, bytes]", after: "dict[bytes, bytes]", generation: str, message: bytes
) -> None:
    changes = delta.between(before, after)
    try:
        text = emit.render(changes, PROLOG, PROLOG_LINE_MAX if generation == FGETS else None)
    except JobFault as fault:
        assert fault.code == "unsafe-environment"
        return
    said = message.decode("latin-1")
    said = "".join(character for character in said if character.isprintable()).strip()
    got, printed = slurm_reader.applied(before, text + emit.print_line(said.encode()), generation)
    left_alone = {
        name
        for name, value in changes
        if name in emit.PROMPTS and value is not None and b"export %s=%s\n" % (name, value) not in text
    }
    for name in {*before, *after}:
        expected = after if delta.may_change(name) and name not in left_alone else before
        assert got.get(name) == expected.get(name)
    assert printed == (said.encode() + b"\n" if said else b"")
    assert got.keys() <= {*before, *after}


@settings(max_examples=min(CASES, 300))
@given(st.dictionaries(st.sampled_from([b"A", b"B", b"C"]), VALUES.filter(lambda value: len(value) < 99), max_size=3))
def test_a_real_sh_ends_up_with_the_values(values: "dict[bytes, bytes]") -> None:
    text = emit.render([*sorted(values.items()), (b"GONE", None)], SHELL)
    script = b'eval "$(cat)"; exec env -0'
    run = subprocess.run(
        ["/bin/sh", "-c", script], input=text, env={"PATH": "/usr/bin:/bin", "GONE": "1"}, stdout=subprocess.PIPE
    )
    got = dict(entry.partition(b"=")[::2] for entry in run.stdout.split(b"\0")[:-1])
    assert {name: got.get(name) for name in values} == values
    assert b"GONE" not in got


def written(outcome: Outcome, mode: str, is_speaker: bool, is_verbose: bool) -> "tuple[bytes, bytes]":
    ends = [os.pipe(), os.pipe()]
    saved = [os.dup(1), os.dup(2)]
    try:
        for fd, (_, write_fd) in zip((1, 2), ends):
            os.dup2(write_fd, fd)
        emit.write(outcome, mode, is_speaker, is_verbose, Deadline(5))
    finally:
        for fd, old in zip((1, 2), saved):
            os.dup2(old, fd)
            os.close(old)
    for _, write_fd in ends:
        os.close(write_fd)
    out, err = (os.read(read_fd, 100_000) for read_fd, _ in ends)
    for read_fd, _ in ends:
        os.close(read_fd)
    return out, err


FULL = Outcome(b"export A=1\n", b"said", b"detail")
QUIET = Outcome(b"", b"", b"detail")
WRITES = [
    # outcome, mode, speaker, verbose, stdout, stderr
    (FULL, PROLOG, True, False, b"export A=1\nprint said\n", b""),
    (FULL, PROLOG, False, False, b"export A=1\n", b""),
    (FULL, PROLOG, True, True, b"export A=1\nprint said\n", b"detail\n"),
    (FULL, PROLOG, False, True, b"export A=1\n", b"detail\n"),
    (FULL, SHELL, True, False, b"export A=1\n", b"said\n"),
    (FULL, SHELL, False, True, b"export A=1\n", b"said\n"),
    (QUIET, PROLOG, True, False, b"", b""),
    (QUIET, PROLOG, True, True, b"print detail\n", b"detail\n"),
    (QUIET, PROLOG, False, True, b"", b"detail\n"),
    (QUIET, SHELL, True, False, b"", b""),
    (QUIET, SHELL, True, True, b"", b"detail\n"),
]


@pytest.mark.parametrize(("outcome", "mode", "is_speaker", "is_verbose", "out", "err"), WRITES)
def test_who_hears_what(
    outcome: Outcome, mode: str, is_speaker: bool, is_verbose: bool, out: bytes, err: bytes
) -> None:
    assert written(outcome, mode, is_speaker, is_verbose) == (out, err)


def test_a_closed_reader_and_a_bad_fd_are_dropped() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    emit.put(write_fd, b"x" * 100_000, Deadline(5))
    os.close(write_fd)
    emit.put(write_fd, b"x", Deadline(5))


def test_a_reader_that_does_not_read_is_given_up_at_the_deadline() -> None:
    read_fd, write_fd = os.pipe()
    emit.put(write_fd, b"x" * 1_000_000, Deadline(0.3))
    os.set_blocking(read_fd, False)
    assert 60_000 < len(os.read(read_fd, 2_000_000)) < 1_000_000
    os.close(read_fd)
    os.close(write_fd)
