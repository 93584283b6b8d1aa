# SPDX-License-Identifier: GPL-2.0-or-later
import json
import subprocess
from pathlib import Path

from tests.eessi.tree import EESSI, ZEN2, ZEN4, Tree


def check(pyz: Path, environ: "dict[bytes, bytes]", *more: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([str(pyz), "--check", *more], env=environ, capture_output=True, check=False)


def test_a_node_that_needs_a_reload(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    environ = tree.login()
    tree.node(ZEN2)
    done = check(pyz, environ, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["fix"]) == (0, "")
    assert found["action"] == "reload 5 modules, x86_64/amd/zen4->x86_64/amd/zen2"
    assert found["loaded"] == "x86_64/amd/zen4 no accel"
    assert found["selected"] == "x86_64/amd/zen2 no accel"
    assert found["cpu_options"] == ["x86_64/amd/zen2", "x86_64/generic"]
    assert found["tried"] == [{"folder": str(tree.software(ZEN2) / "software"), "there": True}]
    assert found["line_max_bytes"] == 4094
    assert found["lmod_runs"]
    assert len(found["longest"]) == 10
    assert found["longest"] == sorted(found["longest"], key=lambda item: -item["bytes"])
    assert found["changes"] > 20
    text = check(pyz, environ).stdout.decode()
    assert "action              reload 5 modules" in text
    assert text.endswith("fix                 nothing\n")


def test_nothing_is_applied_or_cached(pyz: Path, tree: Tree, tmp_path: Path) -> None:
    tree.node(ZEN4)
    environ = {**tree.login(), b"SLURM_JOB_ID": b"1", b"TMPDIR": str(tmp_path).encode()}
    tree.node(ZEN2)
    before = sorted(tmp_path.iterdir())
    found = json.loads(check(pyz, environ, "--json").stdout)
    assert found["cache_file"].startswith(f"{tmp_path}/.eessi-arch-guard.")
    assert sorted(tmp_path.iterdir()) == before


def test_a_matching_node_and_one_without_eessi_are_well(pyz: Path, tree: Tree) -> None:
    tree.node(ZEN4)
    done = check(pyz, tree.login())
    assert done.returncode == 0
    assert b"nothing to do, target already matches this node" in done.stdout
    done = check(pyz, {b"PATH": b"/usr/bin"})
    assert done.returncode == 0
    assert b"nothing to do, EESSI is not loaded" in done.stdout


def test_what_is_to_be_fixed_is_one_sentence_and_status_1(pyz: Path, tree: Tree) -> None:
    tree.add(ZEN4, "Only/1")
    tree.node(ZEN4)
    environ = tree.login((EESSI, "Only/1"))
    tree.node(ZEN2)
    done = check(pyz, environ, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert 'unknown: "Only/1"' in found["fix"]
    assert found["selected"] == "x86_64/amd/zen2 no accel"
    (tree.init / "eessi_archdetect.sh").write_text("exit 1\n")
    done = check(pyz, environ)
    assert done.returncode == 1
    assert (
        done.stdout.decode().splitlines()[-1].startswith("fix                 EESSI's detector gave no usable answer")
    )


def test_values_that_do_not_fit_this_slurm_are_marked(pyz: Path, tree: Tree) -> None:
    names = [f"Package-{number}/2023-with-a-long-version-suffix" for number in range(60)]
    for cpu in (ZEN4, ZEN2):
        for name in names:
            tree.add(cpu, name)
    tree.node(ZEN4)
    environ = tree.login((EESSI, *names), {b"EESSI_ARCH_GUARD_TIMEOUT": b"600"})
    tree.node(ZEN2)
    done = check(pyz, environ, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert not found["longest"][0]["fits"]
    assert "--prolog-line-max" in found["fix"]
    told = json.loads(check(pyz, environ, "--json", "--prolog-line-max=100000").stdout)
    assert (told["fix"], told["line_max_bytes"]) == ("", 100000)
    newer = json.loads(check(pyz, {**environ, b"SLURM_JOB_START_TIME": b"1"}, "--json").stdout)
    assert (newer["fix"], newer["line_max_bytes"], newer["longest"][0]["fits"]) == ("", None, True)


def test_a_wrong_call_is_status_2(pyz: Path) -> None:
    for call in (["--what"], ["--shell"], ["--chain", "/x"], ["--timeout", "0"]):
        assert check(pyz, {}, *call).returncode == 2
