# SPDX-License-Identifier: GPL-2.0-or-later
"""`make demo`: modules loaded for one CPU target through real Lmod, a node of another target, and what the guard does.

python tests/eessi/demo.py dist/eessi-arch-guard.pyz
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.arch import slurm_reader
from tests.eessi.tree import ZEN2, ZEN4, Tree, lmod_init

SHOWN = (b"EESSI_SOFTWARE_SUBDIR", b"LOADEDMODULES", b"EBROOTAPP", b"EESSI_ARCH_GUARD_RELOADED")


def install_lmod() -> bool:
    """Whether Lmod is here, after an attempt to install it where this user may."""
    if lmod_init():
        return True
    command = next(
        (c for c in (["apt-get", "install", "-y", "lmod"], ["dnf", "install", "-y", "Lmod"]) if shutil.which(c[0])),
        None,
    )
    if command and os.geteuid() == 0:
        print(f"Lmod is not installed; running: {' '.join(command)}")
        if command[0] == "apt-get":
            subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if lmod_init():
        return True
    wanted = " ".join(command) if command else "Lmod 8.6 or later, by your package manager"
    print(f"The demo needs Lmod, and this user may not install it. As root, please run: {wanted}")
    return False


def show(title: str, environ: "dict[bytes, bytes]") -> None:
    print(f"\n== {title}")
    for name in SHOWN:
        if name in environ:
            print(f"   {name.decode()}={environ[name].decode()}")
    run = subprocess.run(["/bin/sh", "-c", "command -v app && app"], env=environ, stdout=subprocess.PIPE, text=True)
    path, _, said = run.stdout.strip().partition("\n")
    print(f"   $ app            -> {said}   ({path})")


def main() -> int:
    """Runs the demo; 0 when the guard did what it is for."""
    pyz = Path(sys.argv[1]).resolve()
    if not install_lmod():
        return 1
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder) / "eessi")
        tree.node(ZEN4)
        environ = {**tree.login(), b"SLURM_JOB_START_TIME": b"1"}
        show(f"1. On a login node ({ZEN4}) a user has loaded: module load EESSI/2023.06 App/1.0", environ)

        tree.node(ZEN2)
        print(f"\n== 2. The job lands on a node that is {ZEN2}. Slurm runs the guard as TaskProlog:")
        output = subprocess.run([str(pyz)], env=environ, stdout=subprocess.PIPE, check=True).stdout
        lines = output.decode().splitlines()
        for line in (
            lines if len(lines) < 12 else [*lines[:4], f"... {len(lines) - 8} more directives ...", *lines[-4:]]
        ):
            print("   " + (line if len(line) < 150 else line[:147] + "..."))

        after, printed = slurm_reader.applied(environ, output, slurm_reader.WHOLE)
        show("3. What the task then has", after)
        print(f"   and the job's output begins with: {printed.decode().strip()}")

        print(f"\n== 4. The same job on a node that is {ZEN4}: nothing to do, so the guard says")
        tree.node(ZEN4)
        quiet = subprocess.run([str(pyz)], env=environ, stdout=subprocess.PIPE, check=True).stdout
        told = subprocess.run(
            [str(pyz)], env={**environ, b"EESSI_ARCH_GUARD_VERBOSE": b"1"}, capture_output=True, check=True
        ).stdout
        print(f"   {quiet!r}; with EESSI_ARCH_GUARD_VERBOSE=1: {told.decode().strip()}")
        good = b"/zen2/" in after[b"EBROOTAPP"] and quiet == b""
    print("\nThe guard did what it is for." if good else "\nThe guard did NOT do what it is for.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
