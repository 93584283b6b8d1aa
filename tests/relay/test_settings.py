# SPDX-License-Identifier: GPL-2.0-or-later
from pathlib import Path

import pytest

from guard.base.faults import SiteFault
from guard.relay import reasons, settings

FULL = """# the relay
relayioplugin=relay_io/uds_json   RelayIODefaultEnabled=YES
RelayIOParameters=socket=/var/spool/slurmd/relay-io.sock,slurmd_ring_mbytes=2,\\
# a comment does not join
SlurmdUser=slurm
DebugFlags=Backfill,Protocol
"""


def test_a_full_file_is_read() -> None:
    got = settings.parse(FULL.replace(",\\\n#", ",stepd_ring_mbytes=4,max_log_kbytes=32\n#"))
    assert (got.has_plugin, got.is_default, got.is_protocol_debug) == (True, True, True)
    assert (got.socket, got.max_log_bytes) == ("/var/spool/slurmd/relay-io.sock", 32 * 1024)
    assert (got.slurmd_ring_bytes, got.stepd_ring_bytes) == (2 << 20, 4 << 20)
    assert got.users == [(5, "slurm")]


def test_an_empty_file_relays_nothing_with_the_seeds_defaults() -> None:
    got = settings.parse("\n# nothing\n")
    assert (got.has_plugin, got.is_default, got.max_log_bytes, got.owners) == (False, False, 4096, frozenset((0,)))


def test_a_backslash_joins_lines() -> None:
    got = settings.parse("RelayIOPlugin=relay_io/uds_json \\\n  RelayIOParameters=socket=/a/b\n")
    assert got.socket == "/a/b"


P = "RelayIOPlugin=relay_io/uds_json\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("RelayIoPlugins=x", "line 1: RelayIoPlugins is not a key of this file"),
        ("\n\nnonsense", "line 3: nonsense is not Key=Value"),
        ("=x", "line 1: =x is not Key=Value"),
        ("RelayIOPlugin=relay_io/kafka", "line 1: RelayIOPlugin is relay_io/uds_json or nothing, not relay_io/kafka"),
        (P, "line 1: RelayIOParameters needs socket=/absolute/path"),
        (P + "RelayIOParameters=max_log_kbytes=4", "line 2: RelayIOParameters needs socket=/absolute/path"),
        ("RelayIODefaultEnabled=maybe", "line 1: RelayIODefaultEnabled is yes or no, not maybe"),
        ("DebugFlags=a\nDebugFlags=b", "line 2: DebugFlags is set twice"),
        ("RelayIOParameters=socket=rel/path", "line 1: socket=rel/path is not an absolute path"),
        (
            f"RelayIOParameters=socket=/{'x' * 199}",
            "line 1: socket= is 200 bytes long, a socket's path is at most 107",
        ),
        *(
            (f"RelayIOParameters=max_log_kbytes={bad}", f"line 1: max_log_kbytes={bad} is not a number from 1 to 64")
            for bad in ("0", "65", "-1", "4k", "", "1.5", "٤", "9" * 30)
        ),
        ("RelayIOParameters=stepd_ring_mbytes=0", "line 1: stepd_ring_mbytes=0 is not a number from 1 to 1024"),
        ("RelayIOParameters=socket=/a,socket=/b", "line 1: socket is set twice"),
        ("RelayIOParameters=ring=4", "line 1: ring=4 is not a parameter of relay_io/uds_json"),
        ("SlurmUser=root \\", "line 1: the file ends in a backslash"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(SiteFault) as caught:
        settings.parse(text)
    assert caught.value.detail == complaint
    assert complaint in reasons.sentence(caught.value)


def test_all_faults_of_a_file_are_told_at_once() -> None:
    with pytest.raises(SiteFault) as caught:
        settings.parse("a=1\nb=2\nRelayIOParameters=max_log_kbytes=x,y=1")
    assert caught.value.detail.count("line ") == 4


def test_a_missing_socket_folder_and_an_unknown_user_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "relay.conf"
    file.write_text(f"{P}RelayIOParameters=socket={tmp_path}/none/s\nSlurmUser=no-such-user-here\n")
    with pytest.raises(SiteFault) as caught:
        settings.load(str(file))
    assert caught.value.detail == (
        f"{file}: line 3: there is no user no-such-user-here;"
        f" line 2: the socket's folder {tmp_path}/none is not there; make it, owned by root"
    )


def test_users_are_looked_up(tmp_path: Path) -> None:
    file = tmp_path / "relay.conf"
    file.write_text(f"{P}RelayIOParameters=socket={tmp_path}/s\nSlurmUser=nobody\nSlurmdUser=4711\n")
    got = settings.load(str(file))
    assert 4711 in got.owners
    assert len(got.owners) == 3


def test_a_file_that_cannot_be_read_is_a_site_fault(tmp_path: Path) -> None:
    with pytest.raises(SiteFault, match="No such file"):
        settings.load(str(tmp_path / "none"))
