# SPDX-License-Identifier: GPL-2.0-or-later
"""Prints what a task costs whose target already matches: a reading from this machine, no promise for another.

    python3 tests/measure_noop.py [dist/eessi-arch-guard.pyz]

Seed guard-design, "Out of scope". `make bench` has the same as ratios, beside everything else.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.bench.measure import once
from tests.eessi.tree import ZEN4, Tree, lmod_init

ROUNDS = 20


def main() -> int:
    """Runs it; 1 where it cannot be measured."""
    guard = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist" / "eessi-arch-guard.pyz").resolve()
    if not guard.exists() or not lmod_init():
        print("needs Lmod, and the .pyz: make pyz")
        return 1
    with tempfile.TemporaryDirectory() as name:
        tree = Tree(Path(name) / "eessi")
        tree.node(ZEN4)
        environ = tree.login()
        step = {**environ, b"SLURM_JOB_ID": b"1", b"SLURMD_NODENAME": b"n1", b"TMPDIR": os.fsencode(name)}
        first = sorted(once([str(guard)], environ).wall_s for _ in range(ROUNDS))
        once([str(guard)], step)
        later = sorted(once([str(guard)], step).wall_s for _ in range(ROUNDS))
    for what, walls in (("first task of a step", first), ("every other task of it", later)):
        print(
            f"same target, {what}: {walls[0] * 1000:.1f} ms at best, {walls[ROUNDS // 2] * 1000:.1f} ms in the middle"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
