# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard's figures: what it costs a task, as ratios to what nobody can do without.

    python tests/bench/guard.py dist/eessi-arch-guard.pyz [rounds]

EESSI_SCRIPTS=<checkout of software-layer-scripts> measures against EESSI's own detector, else the miniature one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.bench.measure import Cost, crowd, heading, once, paired, row
from tests.eessi.tree import EESSI, ZEN2, ZEN4, Tree

ROOT = Path(__file__).resolve().parent.parent.parent
BARE = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]
TASKS = 192
MODULES = 34


def stock(folder: Path) -> Path:
    """The same package behind shiv's own bootstrap."""
    sys.path.insert(0, str(ROOT / "build"))
    import pyz

    made = folder / "stock.pyz"
    shiv = Path(sys.executable).parent / "shiv"
    call = [str(shiv), "--site-packages", str(pyz.staged(folder / "stage")), "-e", "guard.__main__:start"]
    subprocess.run([*call, "-p", "/usr/bin/python3", "-o", str(made)], check=True, stdout=subprocess.DEVNULL)
    return made


def peak(argv: "list[str]", environ: "dict[bytes, bytes]") -> Cost:
    """The peak memory of the largest process of a call, by GNU time: a child of ours would begin with our own size."""
    if not Path("/usr/bin/time").exists():
        return Cost(0, 0, 0)
    call = ["/usr/bin/time", "-f", "%M", "-o", "/dev/stdout", *argv]
    said = subprocess.run(call, env=environ, stdout=subprocess.PIPE, check=True).stdout
    return Cost(0, 0, int(said.split(b"\n")[-2]))


def main() -> int:
    """Prints the table."""
    guard = [str(Path(sys.argv[1]).resolve())]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = Tree(folder / "eessi")
        names = [f"Package{number}/1.{number}-GCCcore-12.3.0" for number in range(MODULES - 2)]
        for cpu in (ZEN4, ZEN2):
            for module in names:
                tree.add(cpu, module)
        tree.node(ZEN4)
        loaded = tree.login((EESSI, "GCCcore/12.3.0", *names))
        loaded.update({b"SLURM_JOB_START_TIME": b"1", b"SLURMD_NODENAME": b"n1", b"TMPDIR": os.fsencode(folder)})
        step = {**loaded, b"SLURM_JOB_ID": b"1", b"SLURM_STEP_ID": b"0", b"SLURM_LOCALID": b"1"}
        without = {n: v for n, v in loaded.items() if not n.startswith((b"EESSI", b"SLURM"))}
        scripts = os.environ.get("EESSI_SCRIPTS")
        if scripts:
            shutil.copy(Path(scripts) / "init" / "eessi_archdetect.sh", tree.init)
            shutil.copytree(Path(scripts) / "init" / "arch_specs", tree.init / "arch_specs")
            tree.cpuinfo.write_text("vendor_id : AuthenticAMD\nflags : avx2 fma vaes avx512f avx512ifma\n")

        print(heading())
        pairs = paired(rounds, lambda: once(guard, without), lambda: once(["/bin/sh", "-c", ":"], without))
        print(row("a task without EESSI", "`sh -c :`", "wall_s", "<= 1.5", pairs))

        tree.node(ZEN2)
        if scripts:
            tree.cpuinfo.write_text("vendor_id : AuthenticAMD\nflags : avx2 fma\n")
        cached = paired(rounds, lambda: once(guard, step), lambda: once(BARE, step))
        print(row("a task whose step's result is cached", "`python3 -I -S -c pass`", "cpu_s", "<= 1.4", cached))
        print(row("the same", "the same", "wall_s", "-", cached))
        peaks = paired(5, lambda: peak(guard, step), lambda: peak(BARE, step))
        print(row("the same", "the same", "peak_kib", "<= 2", peaks))
        stock_pyz = stock(folder)
        behind = {**step, b"SHIV_ROOT": os.fsencode(folder / "shiv")}
        pairs = paired(rounds // 2, lambda: once(guard, step), lambda: once([str(stock_pyz)], behind))
        print(row("the same", "the same program behind shiv's bootstrap, unpacked", "wall_s", "<= 0.3", pairs))

        several = [{**step, b"SLURM_PROCID": b"%d" % number} for number in range(TASKS)]
        pairs = paired(max(3, rounds // 8), lambda: crowd(guard, several), lambda: crowd(BARE, several))
        print(
            row(f"{TASKS} tasks of one step at once, cached", f"{TASKS} bare starts at once", "wall_s", "<= 1.5", pairs)
        )

        reload = ["/bin/bash", "--noprofile", "--norc", "-c"]
        reload += ['eval "$($LMOD_CMD bash --force purge)"; eval "$($LMOD_CMD bash load "$@")"', "bash"]
        by_hand = reload + loaded[b"LOADEDMODULES"].decode().split(":")
        pairs = paired(max(5, rounds // 4), lambda: once(guard, loaded), lambda: once(by_hand, loaded))
        print(
            row(f"first task, {MODULES} modules reloaded", "the same purge + load in bash", "wall_s", "<= 1.25", pairs)
        )

        tree.node(ZEN4)
        if scripts:
            tree.cpuinfo.write_text("vendor_id : AuthenticAMD\nflags : avx2 fma vaes avx512f avx512ifma\n")

        def detector_and_python() -> Cost:
            detector = once(["/bin/bash", str(tree.init / "eessi_archdetect.sh"), "-a", "cpupath"], loaded)
            return Cost(detector.wall_s + once(BARE, loaded).wall_s, 0, 0)

        which = "EESSI's detector" if scripts else "the miniature detector"
        pairs = paired(rounds // 2, lambda: once(guard, loaded), detector_and_python)
        print(
            row("first task of a step, target matches", f"{which} -a cpupath + a bare start", "wall_s", "<= 1.5", pairs)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
