# SPDX-License-Identifier: GPL-2.0-or-later
"""The model of Slurm's reader (tests/arch/slurm_reader.py) held against slurmstepd itself, on generated outputs.

Each task of a few steps has an output of its own, which its TaskProlog writes; the model is told what environment that
prolog had, and must say what the task has and what is on its stdout. The installed Slurm is of one generation.
"""

import os
import random
from pathlib import Path

import pytest

from tests.arch import slurm_reader
from tests.slurm.host import reads_lines
from tests.slurm.site import Desk, Site, parsed

pytestmark = pytest.mark.xdist_group("slurm")

SEED = int(os.environ.get("FUZZ_SEED", "20505"))
CASES_COUNT = int(os.environ.get("FUZZ_CASES", "500"))
STEP_TASKS_COUNT = 125
# So that the end of what was printed is known, whatever that was.
MARK = b"\n-- the program's own output --\n"

DIRECTIVES = (
    b"export",
    b"export",
    b"export",
    b"export",
    b"unset",
    b"unset",
    b"print",
    b"print",
    b"prin",
    b"EXPORT",
    b"",
)
SPACES = (b" ", b" ", b" ", b" ", b"  ", b"\t", b" \t", b"\v", b"\f", b"\r", b"", b"   ")
NAMES = (b"A", b"B", b"AB", b"GIVEN", b"GIVEN2", b"A B", b"A-B", b"9", b"", b"A\tB", b"\xc3\xa9", b"\xff", b"A\r")
VALUES = (
    b"",
    b"1",
    b"a b",
    b" lead",
    b"trail ",
    b"a=b",
    b"=",
    b"$HOME `id`",
    b"'q'",
    b"x\r",
    b"\t",
    b"\xff\xfe",
    b"a\0b",
)
LINE_ENDS = (b"\n", b"\n", b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b" \n", b"\t\n", b"\0\n", b"\n \n")
CUTS = (b"", b" ", b"export B=cut", b"unset GIVEN", b"print cut", b" \t export B=cut", b"\0export B=cut")
# Around the old line length, the first sizes of the read buffer, and what an entry may have at most.
LENGTHS = (4085, 4094, 4095, 4096, 8192, 65535, 131072 - 7, 131072 - 4, 131072 - 3, 131072, 262143, 262144, 300000)

WRITTEN_OUT = (
    b"",
    b"\n",
    b"\0",
    b"\0export A=1\n",
    b"export A=1",
    b"export A=1\0export B=2\n",
    b"export A=1\n\0export B=2\n",
    b"export A\nexport B=1\n",
    b"export \nA=1\n",
    b"export  \n\nexport A=1\n",
    b"export =x\n",
    b"export  =x\nexport =\n",
    b"export A =1\n",
    b"export \t A \t= 1 \nexport B=2\n",
    b"export A=1\nexport A=2\nunset A\nexport A=3\n",
    b"print \nexport A=1\n",
    b"print   \n  x\nexport A=1\n",
    b"print",
    b"print ",
    b"print x",
    b"print  x\nprint y",
    b"unset GIVEN",
    b"unset GIVEN  ",
    b"unset GIVEN \nexport A=1\n",
    b"unset  \n GIVEN\nexport A=1\n",
    b"export =x\nunset \n\nA\n",
    b"unset  \n GIVEN",
    b"export A=b=c\nunset A=b\n",
    b"unset \nexport A=1\n",
    b"unset GIVEN GIVEN2\n",
    b" export A=1\n\texport B=1\n",
    b"export\tA=1\n",
    b"export A=1\r\nprint hello\r\nunset GIVEN\r\n",
    b"export TMPDIR=/tmp\nexport PATH=\n",
    b"unset PATH\nunset HOME\n",
    b"export SLURM_JOB_ID=1\nunset SLURM_PROCID\n",
)


def outputs(seed: int, count: int) -> "list[list[tuple[int, bytes]]]":
    """count prolog outputs, each as the pieces that go to fd 1 or 2, in order."""
    chance = random.Random(seed)
    made = [[(1, text)] for text in WRITTEN_OUT]
    made += [[(1, b"export A=%s\nexport B=after\n" % (b"x" * length))] for length in LENGTHS]
    made += [[(1, b"unset %s\nprint %s\nexport B=1\n" % (b"x" * length, b"y" * length))] for length in (4094, 70000)]
    while len(made) < count:
        pieces = []
        for _ in range(chance.randint(1, 8)):
            line = chance.choice(DIRECTIVES) + chance.choice(SPACES)
            kind = chance.random()
            if kind < 0.75:
                line += (
                    chance.choice(NAMES) + chance.choice(SPACES) * chance.randint(0, 1) + b"=" + chance.choice(VALUES)
                )
            elif kind < 0.95:
                line += chance.choice(NAMES)
            else:
                line += bytes(chance.choice(b" \t\r\n=\0AB\xff") for _ in range(chance.randint(0, 12)))
            if chance.random() < 0.1:
                # To just about where the older ones cut a line, with what then begins the rest of it.
                filler = chance.choice((b"x", b" "))
                line += filler * (chance.choice((4094, 8188)) - len(line) + chance.randint(-3, 3)) + chance.choice(CUTS)
            pieces.append((chance.choice((1, 1, 1, 2)), line + chance.choice(LINE_ENDS)))
        if chance.random() < 0.3:
            pieces[-1] = (pieces[-1][0], pieces[-1][1].rstrip(b"\n"))
        made.append(pieces)
    return made[:count]


def write_out(folder: Path, number: int, pieces: "list[tuple[int, bytes]]") -> None:
    """A file of sh that writes the pieces; by cat, one after the other, so that their order is what it says."""
    lines = []
    for index, (fd, data) in enumerate(pieces):
        (folder / f"{number}.{index}").write_bytes(data)
        lines.append(f"/bin/cat {folder}/{number}.{index} >&{fd}\n")
    (folder / f"{number}.sh").write_text("".join(lines))


def test_slurmstepd_does_with_generated_outputs_what_the_model_says(site: Site, desk: Desk) -> None:
    folder = desk.folder / "outputs"
    results = desk.folder / "results"
    for made in (folder, results):
        made.mkdir()
        made.chmod(0o777)
    cases = outputs(SEED, CASES_COUNT)
    for index, pieces in enumerate(cases):
        write_out(folder, index, pieces)
    (desk.folder / "mark").write_bytes(MARK)
    number = "$((STEP_START + SLURM_PROCID))"
    prolog = f"/bin/cat /proc/$$/environ >{results}/{number}.environ\n. {folder}/{number}.sh"
    site.prolog(site.script("writes-out", prolog))
    for start in range(0, len(cases), STEP_TASKS_COUNT):
        count = min(STEP_TASKS_COUNT, len(cases) - start)
        environ = {b"GIVEN": b"as it was", b"GIVEN2": b"too", b"STEP_START": b"%d" % start}
        # Not --error=/dev/null: 26.05 puts what goes to a file of srun's to stdout's (step_launch.c, error_filename).
        where = ("-w", "n1,n2", f"--output={results}/{start}.%t", f"--error={results}/{start}.%t.err")
        program = ("/bin/cat", desk.folder / "mark", "/proc/self/environ")
        run = site.run("srun", *where, f"-n{count}", "--overcommit", *program, environ=environ)
        assert run.status == "0", run.error
    is_old = reads_lines()
    generation = slurm_reader.FGETS if is_old else slurm_reader.WHOLE
    wrong = []
    for index, pieces in enumerate(cases):
        start, rank = index - index % STEP_TASKS_COUNT, index % STEP_TASKS_COUNT
        before = parsed((results / f"{index}.environ").read_bytes())
        # ulimits.c, set_user_limits: made use of and taken out between the prolog and the program.
        before = {name: value for name, value in before.items() if not name.startswith(b"SLURM_RLIMIT_")}
        if is_old:
            del before[b"SLURM_SCRIPT_CONTEXT"]  # set in the fork that becomes the prolog, from 22.05.1 on before it
        # stderr is closed in a prolog of the older ones, and in the same pipe in the newer.
        output = b"".join(data for fd, data in pieces if fd == 1 or not is_old)
        after, printed = slurm_reader.applied(before, output, generation)
        if before[b"SLURM_LOCALID"] == b"0":
            after.setdefault(b"TMPDIR", b"/tmp")  # task.c, _make_tmpdir
        got_printed, mark, got = (results / f"{start}.{rank}").read_bytes().partition(MARK)
        assert mark
        if (printed, after) != (got_printed, parsed(got)):
            wrong.append((output[:300], printed[:300], got_printed[:300], _apart(parsed(got), after)))
    assert wrong == [], f"{len(wrong)} of {len(cases)}; output, printed by the model, by Slurm, (Slurm, model) by name"


def _apart(got: "dict[bytes, bytes]", expected: "dict[bytes, bytes]") -> "dict[bytes, tuple[object, object]]":
    names = {**got, **expected}
    return {
        name: ((got.get(name) or b"")[:80], (expected.get(name) or b"")[:80])
        for name in names
        if got.get(name) != expected.get(name)
    }
