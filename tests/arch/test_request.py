# SPDX-License-Identifier: GPL-2.0-or-later
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.arch import request
from guard.arch.request import Target

LOADED = {b"EESSI_SOFTWARE_SUBDIR": b"x86_64/amd/zen4"}

SKIPS = [
    ({}, "EESSI is not loaded"),
    ({b"EESSI_SOFTWARE_SUBDIR": b""}, "EESSI is not loaded"),
    (LOADED, None),
    *(
        ({**LOADED, b"EESSI_ARCH_GUARD": off}, "switched off by EESSI_ARCH_GUARD")
        for off in b"0 off OFF No false".split()
    ),
    *(({**LOADED, b"EESSI_ARCH_GUARD": on}, None) for on in (b"", b"1", b"on", b"offf", b" 0", b"\xff")),
]


@pytest.mark.parametrize(("environ", "reason"), SKIPS)
def test_when_there_is_nothing_to_do(environ: "dict[bytes, bytes]", reason: "str | None") -> None:
    assert request.skip_reason(environ) == reason


def test_the_loaded_target_has_the_accelerator_that_was_selected_not_the_one_detected() -> None:
    assert request.loaded_target({**LOADED, b"EESSI_ACCEL_SUBDIR": b"accel/nvidia/cc86"}) == Target(
        b"x86_64/amd/zen4", None
    )
    accel = {b"EESSI_ACCELERATOR_TARGET": b"accel/nvidia/cc80"}
    assert request.loaded_target({**LOADED, **accel}) == Target(b"x86_64/amd/zen4", b"accel/nvidia/cc80")


GOOD = b"""EESSI/2023.06 GCCcore/12.3.0 libstdc++/1 Xerces-C++/3.2.4-GCCcore-12.3.0
    R-bundle-Bioconductor/3.18-foss-2023a-R-4.3.2 a/.hidden a/b/c 2to3/1 _x no_version HDF5/1.14.0+parallel""".split()
BAD = [
    b"",
    b"-f",
    b"--force",
    b"/abs/1",
    b".hidden/1",
    b"a/",
    b"a//b",
    b"a/-b",
    b"a b",
    b"a\nexport X=1",
    b"a;b",
    b"$(id)",
    b"a/1\n",
    b"caf\xe9/1",
    b"a@b",
    b"a" * 256,
    b"+x",
]


@pytest.mark.parametrize("name", GOOD)
def test_names_that_lmod_can_be_given(name: bytes) -> None:
    assert request.is_module_name(name)


@pytest.mark.parametrize("name", BAD)
def test_names_that_are_refused(name: bytes) -> None:
    assert not request.is_module_name(name)


BRIEF = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)*")


@given(st.one_of(st.binary(max_size=12), st.text("aZ0_.+-/ \n", max_size=300).map(str.encode)))
def test_the_grammar_is_that_of_the_brief(name: bytes) -> None:
    assert request.is_module_name(name) == (len(name) <= 255 and BRIEF.fullmatch(name) is not None)


LISTS = [
    (b"EESSI/2023.06:a/1", [b"EESSI/2023.06", b"a/1"], ""),
    (b":EESSI/2023.06::a/1:", [b"EESSI/2023.06", b"a/1"], ""),
    (b"a/1", [b"a/1"], "no EESSI module"),
    (b"", [], "no EESSI module"),
    (b"EESSI/2023.06:EESSI/2025.06", [b"EESSI/2023.06", b"EESSI/2025.06"], "more than one"),
    (b"EESSI-extend/2023.06-easybuild", [b"EESSI-extend/2023.06-easybuild"], "no EESSI module"),
    (b"EESSI/2023.06:a\nexport X=1", [b"EESSI/2023.06", b"a\nexport X=1"], "no module name"),
]


@pytest.mark.parametrize(("loaded", "names", "why"), LISTS)
def test_exactly_one_eessi_and_only_names(loaded: bytes, names: "list[bytes]", why: str) -> None:
    got, reason = request.module_names({b"LOADEDMODULES": loaded})
    assert got == names
    assert why in reason
    assert bool(reason) == bool(why)
    assert reason.isprintable()


def test_ten_thousand_names_are_taken() -> None:
    names = [b"EESSI/2023.06", *(b"m%d/1" % number for number in range(10_000))]
    assert request.module_names({b"LOADEDMODULES": b":".join(names)}) == (names, "")


SECONDS = [
    (b"1", 1.0),
    (b"600", 600.0),
    (b"2.5", 2.5),
    (b"060", 60.0),
    *((text, None) for text in (b"", b"0", b"0.99", b"601", b"-5", b"1e2", b"nan", b"inf", b" 5", b"5 ", b"5.", b".5")),
    *((text, None) for text in (b"1_0", b"\xd9\xa3", b"9" * 400, b"1.2.3", b"10\n")),
]


@pytest.mark.parametrize(("text", "seconds"), SECONDS)
def test_the_deadline_is_digits_from_1_to_600(text: bytes, seconds: "float | None") -> None:
    assert request.seconds_from(text) == seconds
    got, remark = request.deadline_s({b"EESSI_ARCH_GUARD_TIMEOUT": text}, 42.0)
    assert got == (42.0 if seconds is None else seconds)
    assert bool(remark) == (seconds is None)


def test_without_the_variable_the_deadline_is_60_seconds() -> None:
    assert request.deadline_s({}) == (60.0, "")
