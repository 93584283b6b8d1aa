# SPDX-License-Identifier: GPL-2.0-or-later
"""`events=no`: the site's own Prolog and Epilog tell of jobs, by the lines and recipes that docs/relay.md gives."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, need
from tests.relay.rig import Record, command
from tests.slurm import host
from tests.spank.site import Relayed, kinds, output, running

pytestmark = pytest.mark.xdist_group("spank-slurm")

_DOCS = (ROOT / "docs" / "relay.md").read_text()
_LINES = dict(re.findall(r"^    (Prolog|Epilog):  (.*)$", _DOCS, re.MULTILINE))
_BY_PARTITION, _BY_COMMENT = re.findall(r"^```sh\n(case .*?)^```$", _DOCS, re.MULTILINE | re.DOTALL)
(_LUA,) = re.findall(r"^```lua\n(.*?)^```$", _DOCS, re.MULTILINE | re.DOTALL)
_TEXT = "echo one; echo two >&2; srun -n1 sh -c 'echo three; exit 3'; exit 5"


class Told:
    """A node whose Prolog and Epilog tell of jobs."""

    def __init__(self, relayed: Relayed) -> None:
        self.relayed = relayed
        self.rig = relayed.rigs["n1"]
        # What is installed on a node under this name.
        self.program = relayed.place / "eessi-arch-guard"
        own = f'{shlex.join(command())} "$@" --folder {self.rig.folder}'
        self.program.write_text(f'#!/bin/sh\n[ "$1" = relay ] && shift && exec {own}\n')
        self.program.chmod(0o755)
        self.script(relayed.cluster.folder / "Epilog", _LINES["Epilog"])

    def prolog(self, text: str) -> None:
        """The site's Prolog, from these lines of the docs."""
        self.script(self.relayed.place / "Prolog", text)

    def script(self, path: Path, text: str) -> None:
        path.write_text("#!/bin/sh\n" + text.replace("eessi-arch-guard", str(self.program)))
        path.chmod(0o755)

    def default(self, wish: str) -> None:
        """What the node does with jobs that ask for nothing."""
        self.rig.configure(default=wish, parameters="stepd_ring_mbytes=64")
        self.rig.stop_node()
        self.rig.start_node()


def _settings(folder: Path) -> "list[str]":
    plugstack = folder / "plugstack.conf"
    plugstack.write_text(plugstack.read_text().replace("\n", " events=no\n"))
    return [f"Epilog={folder}/Epilog", "PartitionName=audited Nodes=ALL OverSubscribe=YES"]


@pytest.fixture(scope="module")
def told(slurm: None) -> "Iterator[Told]":
    need("Slurm's job_submit/lua", any(Path("/usr/lib").glob("*/slurm*/job_submit_lua.so")))
    with running(("n1",), _settings) as made:
        yield Told(made)


def _same(records: "list[Record]") -> "list[str]":
    """Records, comparable with another job's, ordered: between steps no order is promised."""
    for one in records:
        del one["time"], one["slurm"]["job_id"]
        one["slurm"].pop("sluid", None)  # from Slurm 25.11 on
    return sorted(map(str, records))


def test_the_records_are_those_of_the_plugins_own_hook(told: Told, relayed: Relayed) -> None:
    told.prolog(_LINES["Prolog"])
    told.default("yes")
    by_prolog = told.relayed.batch(_TEXT, "-wn1", "--error=err")
    told.default("no")
    by_plugin = relayed.batch(_TEXT, "-wn1", "--error=err", "--relay-io=yes")
    assert by_prolog.status == by_plugin.status == "5:0"
    records, others = told.relayed.records(by_prolog.job_id), relayed.records(by_plugin.job_id)
    assert kinds(records)[0] == "job_start" and output(records, step_id="0") == b"three\n"
    for one in (records, others):
        assert (one[0]["type"], one[-1]["type"]) == ("job_start", "job_end")
        for record in one:  # slurmstepd's and srun's lines have the job's number in them
            if "body" in record:
                record["body"] = re.sub("[0-9]{4,}", "N", record["body"])
    assert _same(records) == _same(others)


def test_a_prolog_chooses_by_partition(told: Told) -> None:
    told.prolog(_BY_PARTITION)
    chosen = told.relayed.batch(_TEXT, "-paudited")
    # The user's own wish is not seen there.
    other = told.relayed.batch(_TEXT, "-pp", "--relay-io=yes")
    assert output(told.relayed.records(chosen.job_id), step_id="0") == b"three\n"
    assert told.relayed.is_silent(other.job_id)


def test_a_daemon_that_is_away_does_not_fail_the_prolog(told: Told) -> None:
    told.prolog(_LINES["Prolog"])
    told.rig.stop_node()
    try:
        ran = told.relayed.batch(_TEXT, "--error=err")
        assert (ran.status, ran.output) == ("5:0", b"one\nthree\n")
        told.relayed.cluster.wait_idle("n1")  # and not drained
    finally:
        told.rig.start_node()
    assert told.relayed.is_silent(ran.job_id)
    assert "error: Prolog" not in told.relayed.log()


@pytest.fixture
def lua(told: Told) -> "Iterator[Relayed]":
    """The cluster, its jobs marked by job_submit.lua and its Prolog looking at the mark."""
    if host.slurm_version() < (22, 5):
        pytest.skip("SLURM_JOB_COMMENT is in a Prolog from Slurm 22.05 on")
    cluster = told.relayed.cluster
    lines = cluster.lines
    (cluster.folder / "job_submit.lua").write_text(_LUA)
    told.prolog(_BY_COMMENT)
    cluster.reconfigure([*lines, "JobSubmitPlugins=lua"])
    yield told.relayed
    cluster.reconfigure(lines)


@pytest.mark.parametrize(
    ("options", "is_relayed"),
    [
        ((), False),
        (("--relay-io=yes",), True),
        (("--account=audited",), True),
        (("--account=audited", "--comment=mine relay-io=no"), True),
        (("--comment=mine relay-io=yes",), False),
        (("--relay-io=no", "--comment=relay-io=yes"), False),
    ],
)
def test_job_submit_lua_chooses(lua: Relayed, options: "tuple[str, ...]", is_relayed: bool) -> None:
    ran = lua.batch(_TEXT, "--error=err", *options)
    assert (ran.status, ran.output) == ("5:0", b"one\nthree\n")
    if is_relayed:
        records = lua.records(ran.job_id)
        assert (output(records), output(records, step_id="0")) == (b"one\nthree\n", b"three\n")
    else:
        assert lua.is_silent(ran.job_id)


def test_job_submit_lua_does_not_overrule_a_users_no(lua: Relayed) -> None:
    ran = lua.batch(_TEXT, "--error=err", "--account=audited", "--relay-io=no")
    assert ran.status == "5:0"
    assert kinds(lua.records(ran.job_id)) == ["job_start", "job_end"]


def test_job_submit_lua_chooses_for_srun_and_no_user_changes_that_later(lua: Relayed) -> None:
    first = lua.run("srun", "--relay-io=yes", "sh", "-c", "echo $SLURM_JOB_ID >id; echo hi")
    assert output(lua.records(first.job_id), step_id="0") == b"hi\n"
    for account, is_relayed in (("other", False), ("audited", True)):
        job_id, folder = lua.submit(_TEXT, "--hold", f"--account={account}", "--error=err")
        forged = lua.cluster.run_as(
            "eessi-guard-test",
            "scontrol",
            "update",
            f"JobId={job_id}",
            f"Comment=x relay-io={'no' if is_relayed else 'yes'}",
        )
        assert forged.returncode == 0, forged.stderr
        lua.cluster.command("scontrol", "release", job_id)
        assert lua.ended(job_id, folder).status == "5:0"
        assert lua.is_silent(job_id) != is_relayed
