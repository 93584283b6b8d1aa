# SPDX-License-Identifier: GPL-2.0-or-later
"""What the SPANK tap costs: srun's launch and a job of a million lines, without it, with it unused, and relayed.

A real Slurm, daemon, worker and a scraper that writes to a file. Wall seconds as min, median, max, and the
median of the ratios to "no tap" of the same round; then srun's launch with a daemon that hangs.

    python tests/bench/relay_slurm.py [ROUNDS]
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.slurm.cluster import Cluster
from tests.spank.site import running

LINES = 1_000_000


def seconds(cluster: Cluster, words: "list[str]", conf: Path) -> float:
    start_s = time.monotonic()
    environ = {**cluster.environ, b"SLURM_CONF": os.fsencode(conf)}
    subprocess.run(words, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start_s


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with running() as site:
        cluster, folder = site.cluster, site.folder()
        source = folder / "source"
        source.write_bytes((b"x" * 99 + b"\n") * LINES)
        plugstack = cluster.folder / "plugstack.conf"
        line = plugstack.read_text()
        work = {
            "srun true": ["true"],
            "1e6 lines to a file": ["-o", f"{folder}/out.%t", "cat", str(source)],
            "1e6 lines through srun": ["cat", str(source)],
        }
        states = {
            "no tap": ("", []),
            "tap, not relayed": (line, ["--relay-io=no"]),
            "relayed": (line, ["--relay-io=yes"]),
        }
        rows: "dict[tuple[str, str], list[float]]" = {(name, state): [] for name in work for state in states}
        for _ in range(rounds):
            for name, words in work.items():
                for state, (text, options) in states.items():
                    plugstack.write_text(text)  # slurmstepd and srun read it anew each time
                    rows[name, state].append(seconds(cluster, ["srun", "-Q", "-wn1", *options, *words], cluster.conf))
        plugstack.write_text(line)
        daemon = site.rigs["n1"].node
        assert daemon
        daemon.send_signal(signal.SIGSTOP)
        hung = [seconds(cluster, ["srun", "-Q", "-wn1", "--relay-io=yes", "true"], cluster.conf) for _ in range(rounds)]
        daemon.send_signal(signal.SIGCONT)
        print(f"{rounds} rounds; wall seconds: min median max; ratio to no tap: median")
        for (name, state), values in rows.items():
            ratio = statistics.median(one / other for one, other in zip(values, rows[name, "no tap"]))
            shown = f"{min(values):8.3f} {statistics.median(values):8.3f} {max(values):8.3f} {ratio:8.2f}"
            print(f"{name + ', ' + state:45s} {shown}")
        print(f"{'srun true, the daemon hangs':45s} {min(hung):8.3f} {statistics.median(hung):8.3f} {max(hung):8.3f}")


if __name__ == "__main__":
    main()
