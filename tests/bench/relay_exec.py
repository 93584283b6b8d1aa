# SPDX-License-Identifier: GPL-2.0-or-later
"""What `relay exec` costs a command: its start and a million lines, bare, not relayed and relayed, side by side.

Real daemon, worker and a scraper that writes what it reads to a file. Wall seconds as min, median, max over the rounds,
and the ratio to the bare command of the same round.

    python tests/bench/relay_exec.py [ROUNDS]
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.relay.rig import Rig

LINES = 1_000_000


def seconds(argv: "list[str]", environ: "dict[str, str]", out: Path) -> float:
    with open(out, "wb") as file:
        start_s = time.monotonic()
        subprocess.run(argv, env=environ, stdout=file, check=True)
        return time.monotonic() - start_s


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rig = Rig()
    rig.configure(parameters="stepd_ring_mbytes=64")
    rig.start()
    rig.event("job_start")
    source = rig.base / "source"
    source.write_bytes((b"x" * 99 + b"\n") * LINES)
    out = rig.base / "out"
    relayed = rig.environ()
    outside = {name: value for name, value in relayed.items() if name != "SLURM_JOB_ID"}
    cases: "dict[str, tuple[list[str], dict[str, str]]]" = {}
    for name, words in (("start: true", ["true"]), ("1e6 lines of 100 bytes: cat", ["cat", str(source)])):
        cases[f"{name}, bare"] = (words, relayed)
        cases[f"{name}, a bare Python before it"] = (
            [sys.executable, "-I", "-S", "-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *words],
            relayed,
        )
        cases[f"{name}, relay exec outside a job"] = ([*rig.exec_command("--"), *words], outside)
        cases[f"{name}, relay exec"] = ([*rig.exec_command("--"), *words], relayed)
    rows: "dict[str, list[float]]" = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (argv, environ) in cases.items():
            rows[name].append(seconds(argv, environ, out))
    print(f"{rounds} rounds; wall seconds: min median max; ratio to bare: median")
    for name, values in rows.items():
        bare = rows[name.split(",")[0] + ", bare"]
        ratio = statistics.median(one / other for one, other in zip(values, bare))
        print(f"{name:55s} {min(values):8.3f} {statistics.median(values):8.3f} {max(values):8.3f} {ratio:8.2f}")
    print(f"relay dropped: {rig.log().count('relay dropped')} reports; ring 64 MiB")
    assert os.path.getsize(out) == LINES * 100
    rig.close()


if __name__ == "__main__":
    main()
