# SPDX-License-Identifier: GPL-2.0-or-later
"""Against EESSI's own module file, wrappers and detector, in a tree at the path that they have built in.

    EESSI_SCRIPTS=<a checkout of EESSI/software-layer-scripts> make test-eessi

Skipped without it (the scripts are not ours to ship) and where there is a real /cvmfs/software.eessi.io.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need
from tests.eessi.test_against_lmod import assert_reloaded, crashing_tools, differing, failed, prolog, task_after
from tests.eessi.tree import CC80, EESSI, GENERIC, MODULES, VERSION, ZEN2, ZEN4, Tree, lmod_init

SCRIPTS = os.environ.get("EESSI_SCRIPTS", "")
ROOT = Path("/cvmfs/software.eessi.io")
SAPPHIRE = "x86_64/intel/sapphirerapids"
SKYLAKE = "x86_64/intel/skylake_avx512"
AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl"
MACHINES = {
    GENERIC: "vendor_id : Other\nflags : sse2\n",
    ZEN2: "vendor_id : AuthenticAMD\nflags : avx2 fma\n",
    ZEN4: "vendor_id : AuthenticAMD\nflags : avx2 fma vaes avx512f avx512ifma\n",
    SKYLAKE: f"vendor_id : GenuineIntel\nflags : avx2 fma {AVX512}\n",
    SAPPHIRE: f"vendor_id : GenuineIntel\nflags : avx2 fma {AVX512} avx512_bf16 amx_tile\n",
}
# Machines of aarch64 that EESSI has recorded for its own tests: target -> /proc/cpuinfo.
RECORDED = Path(SCRIPTS) / "tests" / "archdetect"
ARM = {
    str(path.parent.relative_to(RECORDED)): path.read_text()
    for path in (sorted(RECORDED.glob("aarch64/**/*.cpuinfo")) if SCRIPTS else ())
}

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="EESSI_SCRIPTS does not name a checkout of software-layer-scripts")


class RealTree(Tree):
    """The tree at EESSI's own path with EESSI's own init folder."""

    def __init__(self) -> None:
        super().__init__(ROOT, [*MACHINES, *ARM])
        init = Path(SCRIPTS) / "init"
        for name in (
            "eessi_archdetect.sh",
            "lmod_eessi_archdetect_wrapper.sh",
            "lmod_eessi_archdetect_wrapper_accel.sh",
        ):
            shutil.copy(init / name, self.init / name)
        shutil.copytree(init / "arch_specs", self.init / "arch_specs")
        shutil.copy(init / "modules" / "EESSI" / f"{VERSION}.lua", ROOT / "init" / "modules" / "EESSI")

    def node(self, cpu: str, accel: "str | None" = None) -> None:
        super().node(GENERIC, accel)
        self.cpuinfo.write_text({**MACHINES, **ARM}[cpu])


@pytest.fixture
def real() -> Iterator[RealTree]:
    need("Lmod", lmod_init())
    if ROOT.exists():
        pytest.skip(f"there is a {ROOT} on this machine")
    try:
        yield RealTree()
    finally:
        shutil.rmtree(ROOT)


MOVES = [(ZEN4, SAPPHIRE), (SAPPHIRE, SKYLAKE), (ZEN4, ZEN2), (ZEN4, GENERIC), (GENERIC, ZEN4)]
ARM_MOVES = list(zip(ARM, [*list(ARM)[1:], *list(ARM)[:1]]))


@pytest.mark.parametrize(("login", "node"), MOVES)
def test_an_environment_moves(pyz: Path, real: RealTree, login: str, node: str) -> None:
    real.node(login)
    environ = real.login()
    assert environ[b"EESSI_SOFTWARE_SUBDIR"] == login.encode()
    assert prolog(pyz, environ).stdout == b""
    real.node(node)
    task = assert_reloaded(pyz, real, environ, f"{login}->{node}".encode())
    assert not any(f"/{login}/".encode() in value for name, value in task.items() if b"GUARD" not in name)


@pytest.mark.parametrize(("login", "node"), ARM_MOVES)
def test_an_environment_moves_between_machines_of_aarch64(pyz: Path, real: RealTree, login: str, node: str) -> None:
    real.node(login)
    environ = real.login(extra={b"EESSI_MACHINE_TYPE": b"aarch64"})
    assert environ[b"EESSI_SOFTWARE_SUBDIR"] == login.encode()
    assert prolog(pyz, environ).stdout == b""
    real.node(node)
    assert_reloaded(pyz, real, environ, f"{login}->{node}".encode())


def test_accelerators_come_and_go(pyz: Path, real: RealTree) -> None:
    real.add(f"{ZEN2}/{CC80}", "Gpu/1")
    real.node(ZEN2, accel="8.6")
    with_gpu = real.login()
    assert with_gpu[b"EESSI_ACCELERATOR_TARGET"] == CC80.encode()
    real.node(ZEN2)
    without = real.login()
    task = assert_reloaded(pyz, real, with_gpu, f"{ZEN2} {CC80}->{ZEN2} no accel".encode())
    assert b"EESSI_ACCELERATOR_TARGET" not in task
    real.node(ZEN2, accel="8.9")
    assert_reloaded(pyz, real, without, f"{ZEN2} no accel->{ZEN2} {CC80}".encode())


def test_34_modules_of_a_real_names_shape(pyz: Path, real: RealTree) -> None:
    names = [f"Package{number}/1.{number}-GCCcore-12.3.0" for number in range(30)]
    for cpu in (ZEN4, SAPPHIRE):
        for name in names:
            real.add(cpu, name, ["GCCcore/12.3.0"])
    real.node(ZEN4)
    environ = real.login((EESSI, *MODULES, *names))
    real.node(SAPPHIRE)
    assert_reloaded(pyz, real, environ, f"{ZEN4}->{SAPPHIRE}".encode())


@pytest.mark.parametrize("knob", [b"EESSI_MODULE_STICKY", b"EESSI_MODULE_QUIET_LOAD", b"EESSI_MODULE_UPDATE_PS1"])
def test_eessis_own_knobs(pyz: Path, real: RealTree, knob: bytes) -> None:
    real.node(ZEN4)
    environ = real.login(extra={knob: b"1", b"PS1": b"$ "})
    real.node(ZEN2)
    assert_reloaded(pyz, real, environ, f"{ZEN4}->{ZEN2}".encode())


OVERRIDES = [
    ({b"EESSI_SOFTWARE_SUBDIR_OVERRIDE": b"x86_64/generic"}, GENERIC),
    ({b"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": b"x86_64/amd/zen2:x86_64/generic"}, ZEN2),
]


@pytest.mark.parametrize(("override", "now"), OVERRIDES)
def test_overrides_are_predicted_as_eessi_honours_them(
    pyz: Path, real: RealTree, override: "dict[bytes, bytes]", now: str
) -> None:
    real.node(ZEN4)
    environ = {**real.login(), **override}
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == f"{ZEN4}->{now}".encode()
    assert prolog(pyz, task).stdout == b""


def test_a_path_that_begins_with_tools_for_another_cpu(pyz: Path, real: RealTree, tmp_path: Path) -> None:
    tools = crashing_tools(tmp_path / "crash")
    real.node(ZEN4)
    environ = real.login()
    environ[b"PATH"] = tools + b":" + environ[b"PATH"]
    assert prolog(pyz, environ).stdout == b""
    real.node(ZEN2)
    task = task_after(environ, prolog(pyz, environ).stdout)
    assert task[b"EESSI_ARCH_GUARD_RELOADED"] == f"{ZEN4}->{ZEN2}".encode()
    assert tools in task[b"PATH"]


def test_a_module_that_is_missing_changes_nothing(pyz: Path, real: RealTree) -> None:
    real.add(ZEN4, "Only-zen4/1")
    real.node(ZEN4)
    environ = real.login((EESSI, "Only-zen4/1"))
    real.node(ZEN2)
    failed(pyz, environ, f"{ZEN4}->{ZEN2}".encode(), b"Only-zen4/1")
    assert differing(environ, task_after(environ, prolog(pyz, environ).stdout)) == {}
