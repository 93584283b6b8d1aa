# SPDX-License-Identifier: GPL-2.0-or-later
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.arch import delta

# Seed guard-emits, "Variables the delta never includes": its text, as it stands there.
SEED = """_, SHLVL, PWD, OLDPWD, TMPDIR, BASH_ENV, ENV, SHELLOPTS, BASHOPTS, BASH_XTRACEFD, PS4, BASH_ARGC, BASH_ARGV,
BASH_LINENO, BASH_SOURCE, BASH_VERSINFO, BASH_VERSION, DIRSTACK, EPOCHREALTIME, EPOCHSECONDS, FUNCNAME, GROUPS,
HOSTNAME, HOSTTYPE, IFS, MACHTYPE, OPTERR, OPTIND, OSTYPE, PIPESTATUS, PPID"""


def test_the_table_is_the_seeds() -> None:
    assert {name.encode() for name in SEED.replace("\n", " ").replace(" ", "").split(",")} == delta.EXCLUDED


@pytest.mark.parametrize(
    "name", [*sorted(delta.EXCLUDED), b"BASH_FUNC_ml%%", b"BASH_FUNC_x", b"SLURM_JOB_ID", b"SLURM_"]
)
def test_excluded_names_are_in_no_delta(name: bytes) -> None:
    assert delta.between({name: b"1"}, {name: b"2"}) == []
    assert delta.between({}, {name: b"2"}) == []
    assert delta.between({name: b"1"}, {}) == []


@pytest.mark.parametrize("name", [b"SLURMX", b"BASH_FUNC", b"PS1", b"PATH", b"ENVX", b"SLURMD_NODENAME", b"XSLURM_A"])
def test_names_that_only_look_like_them_are(name: bytes) -> None:
    assert delta.between({}, {name: b"2"}) == [(name, b"2")]


def test_sets_come_first_and_each_part_by_name() -> None:
    before = {b"GONE": b"1", b"ALSO_GONE": b"", b"SAME": b"x", b"B": b"1"}
    after = {b"SAME": b"x", b"B": b"2", b"A": b""}
    assert delta.between(before, after) == [(b"A", b""), (b"B", b"2"), (b"ALSO_GONE", None), (b"GONE", None)]


ENVIRONS = st.dictionaries(st.binary(min_size=1, max_size=4), st.binary(max_size=4), max_size=8)


@given(ENVIRONS, ENVIRONS)
def test_applying_the_delta_gives_the_after_environment_on_all_names_that_may_change(
    before: "dict[bytes, bytes]", after: "dict[bytes, bytes]"
) -> None:
    got = dict(before)
    for name, value in delta.between(before, after):
        if value is None:
            del got[name]
        else:
            got[name] = value
    for name in {*before, *after}:
        assert got.get(name) == (after if delta.may_change(name) else before).get(name)
