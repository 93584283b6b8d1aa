# SPDX-License-Identifier: GPL-2.0-or-later
import pytest

from guard.arch import options

GOOD = [
    ([], ("prolog", None, 60.0, None)),
    (["--shell"], ("shell", None, 60.0, None)),
    (["--chain", "/p"], ("prolog", "/p", 60.0, None)),
    (["--chain=/p", "--timeout=5", "--prolog-line-max=8000"], ("prolog", "/p", 5.0, 8000)),
    (["--timeout", "600", "--shell"], ("shell", None, 600.0, None)),
    (["--prolog-line-max", "131072"], ("prolog", None, 60.0, 131072)),
    (["--syslog", "--shell"], ("shell", None, 60.0, None)),
]


@pytest.mark.parametrize(("arguments", "wanted"), GOOD)
def test_calls_that_are_obeyed(arguments: "list[str]", wanted: object) -> None:
    got = options.parse(arguments)
    assert (got.mode, got.chain, got.timeout_s, got.line_max) == wanted
    assert got.fault == ""


BAD = [
    ["--unknown"],
    ["extra"],
    [""],
    ["--shell=1"],
    ["--syslog=1"],
    ["--chain"],
    ["--chain="],
    ["--timeout"],
    ["--timeout", "x"],
    ["--timeout", "0"],
    ["--timeout=\udcff"],
    ["--prolog-line-max", "10"],
    ["--prolog-line-max", "9" * 400],
    ["--prolog-line-max", "-5000"],
    ["--prolog-line-max", "\u0665\u0660\u0660\u0660"],
    ["--shell", "--chain", "/p"],
]


@pytest.mark.parametrize("arguments", BAD)
def test_calls_that_are_not_are_told_and_never_raise(arguments: "list[str]") -> None:
    assert options.parse(arguments).fault


def test_a_good_chain_is_kept_beside_a_fault_so_that_the_sites_prolog_still_runs() -> None:
    got = options.parse(["--bad", "--chain", "/p"])
    assert (got.chain, bool(got.fault)) == ("/p", True)
