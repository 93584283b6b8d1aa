# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kind of step, relayed and not: the same local bytes and status; the records hold each stream whole."""

from dataclasses import dataclass, field

import pytest

from tests.relay.rig import LONG_S
from tests.spank.site import Ran, Relayed, kinds, output

pytestmark = pytest.mark.xdist_group("spank-slurm")

# What a task does first: leaves the job's id for the test. `tty` of a stream is told in a file, not in the stream.
_ID = "[ $SLURM_PROCID = 0 ] && echo $SLURM_JOB_ID >id; for fd in 1 2; do [ -t $fd ] && : >tty$SLURM_PROCID.$fd; done; "
_TALK = "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2; printf tail"
# Where both streams go to one file, the order between them is nobody's promise: whole lines only.
_LINES = "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2"
_OUT_LINES = {("stdout", 0): b"out 0\n", ("stderr", 0): b"err 0\n"}
_TWO_LINES = {**_OUT_LINES, ("stdout", 1): b"out 1\n", ("stderr", 1): b"err 1\n"}
_OUT = {("stdout", 0): b"out 0\ntail", ("stderr", 0): b"err 0\n"}
_TWO = {**_OUT, ("stdout", 1): b"out 1\ntail", ("stderr", 1): b"err 1\n"}
# srun takes no more of a task once it knows that this was killed, with and without the relay: it must have it before.
_DIES = "echo before; until [ -s out ]; do sleep 0.05; done; kill -{} $$"


@dataclass
class Row:
    """options: of srun; text: what each task runs; streams: what the records must say, by stream and task."""

    name: str
    options: "tuple[str, ...]"
    streams: "dict[tuple[str, int], bytes]"
    text: str = _TALK
    stdin: "bytes | None" = None
    status: str = "0"
    environ: "dict[bytes, bytes]" = field(default_factory=dict)


ROWS = [
    Row("to srun's own stdout", (), _OUT),
    Row("one file, which srun writes", ("-o", "f.out"), _OUT_LINES, _LINES),
    Row("a file for each task, on the node", ("-n2", "-o", "f.%t.out", "-e", "f.%t.err"), _TWO),
    # Slurm 26.05 puts both into the first of them (step_launch.c, error_filename), with and without the relay.
    Row("stdout to a file on the node, stderr to one of srun's", ("-o", "f.%t.out", "-e", "f.err"), _OUT_LINES, _LINES),
    Row("discarded", ("-n2", "--output=none"), _TWO),
    Row("to /dev/null", ("-o", "/dev/null"), _OUT),
    Row("of task 1 only", ("-n2", "-o", "1"), _TWO_LINES, _LINES),
    Row("with labels", ("-n2", "--label"), _TWO),
    Row("with labels, to files", ("-n2", "--label", "-o", "f.%t"), _TWO_LINES, _LINES),
    Row("unbuffered, on a terminal of Slurm's", ("--unbuffered",), _OUT),
    Row("appended to a file that is there", ("-o", "f.%t", "--open-mode=append"), _OUT_LINES, _LINES),
    Row("stdin to the task", (), {("stdout", 0): b"hello\nworld"}, "cat", b"hello\nworld"),
    Row("much stdin through a task", (), {("stdout", 0): b"0123456789" * 30_000}, "cat", b"0123456789" * 30_000),
    Row("stdout closed by the task", (), {("stderr", 0): b"err\n"}, "exec >&-; echo err >&2"),
    Row("its own streams by name", (), {("stdout", 0): b"a\n", ("stderr", 0): b"b\n"}, "echo a; echo b >/dev/stderr"),
    *(Row(f"status {code}", (), {}, f"exit {code}", status=str(code)) for code in (1, 2, 7)),
    Row("a segmentation fault", ("-o", "out"), {("stdout", 0): b"before\n"}, _DIES.format("SEGV"), status="139"),
    Row("killed as for its memory", ("-o", "out"), {("stdout", 0): b"before\n"}, _DIES.format("KILL"), status="137"),
    Row("bytes that are no text", (), {("stdout", 0): "a\ufffdb\n".encode()}, "printf 'a\\377b\\n'"),
]


def _told(ran: Ran) -> "dict[str, list[bytes]]":
    """Everything that came of a run, comparable with another's: tasks may come in any order, jobs have other ids."""
    texts = {"stdout": ran.output, "stderr": ran.error, **ran.files}
    return {
        name: sorted(
            line
            for line in data.replace(ran.job_id.encode(), b"JOB").splitlines(keepends=True)
            if not line.startswith(b"srun: job JOB ")  # that it waited, if it did
        )
        for name, data in texts.items()
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_step_is_the_same_with_the_relay_and_its_streams_are_whole_in_the_records(relayed: Relayed, row: Row) -> None:
    command = [*row.options, "sh", "-c", _ID + row.text]
    plain = relayed.run("srun", "-wn1", *command, stdin=row.stdin, environ=row.environ)
    tapped = relayed.run("srun", "-wn1", "--relay-io=yes", *command, stdin=row.stdin, environ=row.environ)
    assert plain.status == tapped.status == row.status
    assert _told(tapped) == _told(plain)
    records = relayed.records(tapped.job_id)
    assert {key: output(records, *key, step_id="0") for key in row.streams} == row.streams
    assert [kind for kind in kinds(records) if kind != "log 0"] == [
        "job_start",
        "step_start 0",
        "step_end 0",
        "job_end",
    ]
    unbuffered = {one.get("unbuffered", False) for one in records if one["type"] == "log"}
    assert unbuffered <= {"--unbuffered" in row.options}
    assert relayed.is_silent(plain.job_id)


def test_an_attached_terminal_sees_what_the_records_hold(relayed: Relayed) -> None:
    folder = relayed.folder()
    text = f"echo $SLURM_JOB_ID >{folder}/id; until [ -e {folder}/go ]; do echo tick; sleep 0.05; done; seq 100"
    step = relayed.cluster.popen_as(
        "root", "srun", "-wn1", "--relay-io=yes", "-o", str(folder / "f.out"), "sh", "-c", text
    )
    relayed.cluster.wait_for(lambda: (folder / "id").exists() and bool((folder / "id").read_text()), "no step")
    job_id = (folder / "id").read_text().strip()
    attached = relayed.cluster.popen_as("root", "sattach", f"{job_id}.0")
    assert attached.stdout and attached.stdout.readline() == b"tick\n"
    (folder / "go").touch()
    assert step.wait(LONG_S) == 0
    seen, _ = attached.communicate(timeout=LONG_S)
    whole = (folder / "f.out").read_bytes()
    assert whole.endswith(b"".join(b"%d\n" % number for number in range(1, 101)))
    assert output(relayed.records(job_id), step_id="0") == whole
    assert whole.endswith(b"tick\n" + seen) and seen.endswith(b"\n99\n100\n")
