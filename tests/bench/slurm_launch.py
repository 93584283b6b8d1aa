# SPDX-License-Identifier: GPL-2.0-or-later
"""What a TaskProlog costs a step of 64 tasks, from srun's start to its end, on a real Slurm on this machine.

    python tests/bench/slurm_launch.py dist/eessi-arch-guard.pyz [rounds]

Two clusters run side by side, one of them without a TaskProlog; each round starts the same step on both, one after the
other. Needs root, and the packages that tests/slurm needs.
"""

import os
import pwd
import shutil
import sys
from functools import partial
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.bench.measure import Cost, Environ, heading, once, paired, row
from tests.slurm.cluster import Cluster
from tests.slurm.host import reachable_folder
from tests.slurm.site import MATCHING, USER, Site, running

WRAPPER = Path(__file__).resolve().parent.parent.parent / "build" / "taskprolog.sh"
TASKS_COUNT = 64


def step(cluster: Cluster, environ: Environ) -> Cost:
    """What one step cost, and no job of it is left to disturb the next."""
    account = pwd.getpwnam(USER)
    argv = ["/usr/bin/setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    argv += ["/usr/bin/srun", "-w", "n1", f"-n{TASKS_COUNT}", "--chdir=/", "/bin/true"]
    cost = once(argv, {**cluster.environ, **environ})
    cluster.wait_idle()
    return cost


def main() -> int:
    """Measures and prints a table, one line for each kind of TaskProlog."""
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    with (
        running(Path(sys.argv[1]).resolve()) as site,
        reachable_folder() as folder,
        Cluster(folder, node_count=1) as bare,
    ):
        print(heading())
        for what, prolog, environ in cases(site):
            site.prolog(prolog)
            pairs = paired(rounds, partial(step, site.cluster, environ), partial(step, bare, environ))
            print(row(what, "no TaskProlog, the same environment", "wall_s", "-", pairs), flush=True)
    return 0


def cases(site: Site) -> "list[tuple[str, str, Environ]]":
    """Each kind of TaskProlog: its name, its program, and the environment that the step comes with."""
    plain = {b"HOME": os.fsencode(site.home)}
    wrapper, guard = str(shutil.copy(WRAPPER, site.folder)), str(site.pyz)
    file = {b"EESSI_ARCH_GUARD_FILE": os.fsencode(guard)}
    return [
        ("`/bin/true`", "/bin/true", plain),
        ("`python3 -I -S -c pass`", str(site.script("bare-python", "exec /usr/bin/python3 -I -S -c pass")), plain),
        ("the guard, no EESSI", guard, plain),
        ("the guard by its wrapper, no EESSI", wrapper, {**plain, **file}),
        ("the guard, the target matches", guard, site.at(MATCHING, site.login)),
        ("the guard, 5 modules reloaded", guard, site.at("n1", site.login)),
        ("the guard by its wrapper, 5 modules reloaded", wrapper, {**site.at("n1", site.login), **file}),
    ]


if __name__ == "__main__":
    sys.exit(main())
