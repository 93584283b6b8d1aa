# SPDX-License-Identifier: GPL-2.0-or-later
"""cvmfs-publish.sh against a strict stand-in for cvmfs_server.

Whatever happens: no transaction is open that the script opened, none was aborted that it did not open, `current` leads
to a whole version, and nothing was touched outside of a transaction. `settled` holds all four.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import need_program
from tests.publish.conftest import NEW, OLD, git
from tests.publish.stand import REPO, Publisher, content

PREFIX = "eessi-arch-guard"
FILE = "eessi-arch-guard.pyz"
Checkouts = "dict[str, Path]"


def run(
    publisher: Publisher,
    checkout: Path,
    *arguments: str,
    shell: "tuple[str, ...]" = (),
    fresh: bool = False,
    cwd: "Path | str" = "/",
    umask: int = 0o022,
) -> "subprocess.CompletedProcess[str]":
    """One run of a checkout's script. fresh: with the fresh build that the hash stands for otherwise."""
    return subprocess.run(
        command(checkout, *arguments, shell=shell, fresh=fresh),
        env=publisher.environ(),
        cwd=cwd,
        umask=umask,
        input="n\n",  # for whoever asks
        capture_output=True,
        text=True,
        timeout=240,
    )


def command(checkout: Path, *arguments: str, shell: "tuple[str, ...]" = (), fresh: bool = False) -> "list[str]":
    digest = hashlib.sha256((checkout / "dist" / FILE).read_bytes()).hexdigest()
    known = [] if fresh or "--sha256" in arguments or not arguments else ["--sha256", digest]
    # A test run in the background has SIGINT and SIGQUIT ignored, and a sh cannot take that back.
    return ["env", "--default-signal", *shell, f"{checkout}/cvmfs-publish.sh", *arguments, *known]


def published(publisher: Publisher, checkout: Path, *arguments: str) -> None:
    """A publish that goes well, without its calls on record."""
    done = run(publisher, checkout, "transaction", *arguments)
    assert done.returncode == 0, done.stderr
    publisher.log.unlink()


def settled(publisher: Publisher, checkouts: "dict[str, Path]", version: "str | None", prefix: str = PREFIX) -> None:
    """That no transaction is open, nothing forbidden was done, and `current` leads to this whole version."""
    assert not publisher.is_open()
    assert publisher.violations() == ""
    assert [call for call in publisher.calls() if call[0] == "abort"] in ([], [["abort", "-f", publisher.repo]])
    base = publisher.tree / prefix
    if version is None:
        assert not (base / "current").is_symlink()
        return
    assert os.readlink(base / "current") == version
    file = base / "current" / FILE
    assert file.read_bytes() == (checkouts[version] / "dist" / FILE).read_bytes()
    assert [path.stat().st_mode & 0o777 for path in (base, file.parent, file)] == [0o755] * 3
    said = subprocess.run([file, "--version"], capture_output=True, text=True, check=True, env={})
    assert said.stdout == f"eessi-arch-guard {version}\n"
    assert not [path.name for path in base.iterdir() if path.name not in (OLD, NEW, "current")]


# --- what goes well -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", [(), ("dash",), ("bash",), ("busybox", "sh")])
def test_a_version_is_published_in_one_transaction_and_current_leads_to_it(
    publisher: Publisher, checkouts: "dict[str, Path]", shell: "tuple[str, ...]"
) -> None:
    for program in shell[:1]:
        need_program(program)
    done = run(publisher, checkouts[OLD], "transaction", shell=shell)
    assert done.returncode == 0, done.stderr
    assert publisher.calls() == [
        ["transaction", f"{REPO}/{PREFIX}"],
        ["publish", "-m", f"eessi-arch-guard:{OLD}", REPO],
    ]
    settled(publisher, checkouts, OLD)


def test_the_next_version_leaves_the_last_one_as_it_was(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    before = content(publisher.tree)
    published(publisher, checkouts[NEW])
    settled(publisher, checkouts, NEW)
    after = content(publisher.tree)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed == {f"{PREFIX}/{NEW}", f"{PREFIX}/{NEW}/{FILE}", f"{PREFIX}/current"}


def test_without_a_hash_the_file_must_be_what_a_fresh_build_gives(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    done = run(publisher, checkouts[OLD], "transaction", fresh=True)
    assert done.returncode == 0, done.stderr
    settled(publisher, checkouts, OLD)


def test_the_fresh_build_knows_the_sites_python(
    publisher: Publisher, checkouts: "dict[str, Path]", tmp_path: Path
) -> None:
    top = tmp_path / "site"
    shutil.copytree(checkouts[OLD], top, symlinks=True)
    python = str(Path("/usr/bin/python3").resolve())
    build = [f"{top}/.venv/bin/python", "build/pyz.py", f"dist/{FILE}", "--python", python]
    subprocess.run(build, cwd=top, check=True)
    assert run(publisher, top, "transaction", "--dry-run", fresh=True).returncode == 65
    done = run(publisher, top, "transaction", "--python", python, fresh=True)
    assert done.returncode == 0, done.stderr
    settled(publisher, {OLD: top}, OLD)


def test_repository_and_folder_can_be_others(tmp_path: Path, checkouts: "dict[str, Path]") -> None:
    (tmp_path / "publisher").mkdir()
    other = Publisher(tmp_path / "publisher", "soft.example.org").make()
    (other.tree / "tools").mkdir()
    other.close()
    done = run(other, checkouts[OLD], "transaction", "--repo", "soft.example.org", "--prefix", "tools/guard/")
    assert done.returncode == 0, done.stderr
    assert other.calls()[0] == ["transaction", "soft.example.org/tools/guard"]
    settled(other, checkouts, OLD, "tools/guard")


def test_publishing_again_does_nothing(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    done = run(publisher, checkouts[OLD], "transaction")
    assert (done.returncode, publisher.commands()) == (0, [])
    assert "nothing to do" in done.stderr
    settled(publisher, checkouts, OLD)


def test_a_version_that_is_there_is_made_current_without_a_copy(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    published(publisher, checkouts[OLD])
    published(publisher, checkouts[NEW])
    before = content(publisher.tree)
    assert run(publisher, checkouts[OLD], "transaction").returncode == 0
    settled(publisher, checkouts, OLD)
    assert {**content(publisher.tree), f"{PREFIX}/current": 0} == {**before, f"{PREFIX}/current": 0}


def test_a_published_version_never_changes(publisher: Publisher, checkouts: "dict[str, Path]", tmp_path: Path) -> None:
    published(publisher, checkouts[OLD])
    top = tmp_path / "other"
    shutil.copytree(checkouts[OLD], top, symlinks=True)
    with (top / "dist" / FILE).open("ab") as file:
        file.write(b"\0")
    done = run(publisher, top, "transaction")
    assert (done.returncode, publisher.commands()) == (65, [])
    assert "raise the version" in done.stderr
    settled(publisher, checkouts, OLD)


def test_a_rollback_changes_nothing_but_the_link(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    published(publisher, checkouts[NEW])
    before = content(publisher.tree)
    done = run(publisher, checkouts[NEW], "transaction", "--rollback", OLD)
    assert done.returncode == 0, done.stderr
    assert publisher.calls()[-1] == ["publish", "-m", f"eessi-arch-guard:rollback:{OLD}", REPO]
    settled(publisher, checkouts, OLD)
    assert {**content(publisher.tree), f"{PREFIX}/current": 0} == {**before, f"{PREFIX}/current": 0}


def test_a_rollback_to_what_is_not_there_names_what_is(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    done = run(publisher, checkouts[OLD], "transaction", "--rollback", "0.9")
    assert (done.returncode, publisher.commands()) == (65, [])
    assert done.stderr.endswith(f"there are: {OLD}\n")
    settled(publisher, checkouts, OLD)


def test_a_rollback_to_a_version_that_is_not_whole_is_refused(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    published(publisher, checkouts[OLD])
    publisher.fail(publish="torn")
    assert run(publisher, checkouts[NEW], "transaction").returncode == 66
    publisher.fail()
    for version in (NEW, OLD):
        assert run(publisher, checkouts[NEW], "transaction", "--rollback", version).returncode == 65


@pytest.mark.parametrize("arguments", [(), ("--rollback", OLD)])
def test_a_dry_run_changes_nothing(
    publisher: Publisher, checkouts: "dict[str, Path]", arguments: "tuple[str, ...]"
) -> None:
    published(publisher, checkouts[OLD])
    published(publisher, checkouts[NEW])
    if not arguments:
        published(publisher, checkouts[NEW], "--rollback", OLD)
    done = run(publisher, checkouts[NEW], "transaction", "--dry-run", *arguments)
    assert (done.returncode, publisher.commands()) == (0, [])
    assert "would open a transaction" in done.stderr
    settled(publisher, checkouts, NEW if arguments else OLD)


def test_a_hard_umask_does_not_hide_what_is_published(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    assert run(publisher, checkouts[OLD], "transaction", umask=0o077).returncode == 0
    settled(publisher, checkouts, OLD)


def test_it_may_be_started_from_inside_the_repository(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    done = run(publisher, checkouts[OLD], "transaction", cwd=publisher.tree / "init")
    assert done.returncode == 0, done.stderr
    settled(publisher, checkouts, OLD)


# --- what fails -----------------------------------------------------------------------------------------------------

# How each command fails; the status; what the sentence says; the calls that follow.
OPENED = ["transaction", "publish", "abort"]
FAILURES = [
    ({"transaction": "busy"}, 16, "has a lease", ["transaction"]),
    ({"transaction": "layout"}, 22, "cvmfs_server check", ["transaction"]),
    ({"transaction": "whitelist"}, 5, "resign", ["transaction"]),
    ({"transaction": "server"}, 5, "the web server", ["transaction"]),
    ({"transaction": "key"}, 5, "/etc/cvmfs/keys", ["transaction"]),
    ({"transaction": "io"}, 5, "look at the disk and the gateway", ["transaction"]),
    ({"transaction": "unknown"}, 1, "cvmfs_server list", ["transaction"]),
    ({"transaction": "permission"}, 1, "run this as root or as the owner", ["transaction"]),
    ({"transaction": "autofs"}, 1, "autofs manages /cvmfs", ["transaction"]),
    ({"transaction": "before-hook"}, 3, "a hook of the site said no", ["transaction"]),
    ({"transaction": "after-hook"}, 4, "a hook of the site said no", ["transaction", "abort"]),
    ({"transaction": "killed"}, 137, "was killed", ["transaction"]),
    ({"publish": "whitelist"}, 1, "resign", OPENED),
    ({"publish": "permission"}, 1, "run this as root or as the owner", OPENED),
    ({"publish": "another"}, 1, "wait for it", OPENED),
    ({"publish": "unavailable"}, 1, "start it", OPENED),
    ({"publish": "dirtab"}, 1, "put it right", OPENED),
    ({"publish": "sync"}, 1, "put it right", OPENED),
    ({"publish": "manifest"}, 1, "put it right", OPENED),
    ({"publish": "tagging"}, 1, "put it right", OPENED),
    ({"publish": "signing"}, 1, "put it right", OPENED),
    ({"publish": "before-hook"}, 3, "put it right", OPENED),
    ({"publish": "killed"}, 137, "was killed", OPENED),
    ({"publish": "lying"}, 1, "still open", OPENED),
    ({"publish": "aborted"}, 1, "somebody has ended the transaction", ["transaction", "publish"]),
    ({"publish": "sync", "abort": "after-hook"}, 1, "aborted", OPENED),
]


@pytest.mark.parametrize(("faults", "status", "sentence", "calls"), FAILURES, ids=lambda value: str(value))
def test_after_a_failure_nothing_is_open_and_current_is_as_before(
    publisher: Publisher,
    checkouts: "dict[str, Path]",
    faults: "dict[str, str]",
    status: int,
    sentence: str,
    calls: "list[str]",
) -> None:
    published(publisher, checkouts[OLD])
    before = content(publisher.tree)
    publisher.fail(**faults)
    done = run(publisher, checkouts[NEW], "transaction")
    assert done.returncode == status, done.stderr
    assert sentence in done.stderr
    assert publisher.commands() == calls
    settled(publisher, checkouts, OLD)
    assert content(publisher.tree) == before
    # And it was no more than that: without the fault the same call goes through.
    publisher.fail()
    assert run(publisher, checkouts[NEW], "transaction").returncode == 0
    settled(publisher, checkouts, NEW)


@pytest.mark.parametrize(
    ("prefix", "status", "sentence"),
    [("no/such/folder", 2, "create and publish it"), ("README.eessi/x", 20, "is a file")],
)
def test_a_folder_that_cannot_be_is_refused(
    publisher: Publisher, checkouts: "dict[str, Path]", prefix: str, status: int, sentence: str
) -> None:
    done = run(publisher, checkouts[OLD], "transaction", "--prefix", prefix)
    assert (done.returncode, publisher.commands()) == (status, ["transaction"])
    assert sentence in done.stderr
    settled(publisher, checkouts, None)


@pytest.mark.parametrize(("mode", "sentence"), [("rb", "reads in"), ("ab", "writes in")])
def test_a_file_that_somebody_has_open_stops_the_publish(
    publisher: Publisher, checkouts: "dict[str, Path]", mode: str, sentence: str
) -> None:
    with (publisher.tree / "README.eessi").open(mode):
        done = run(publisher, checkouts[OLD], "transaction")
    assert (done.returncode, publisher.commands()) == (1, OPENED)
    assert sentence in done.stderr
    settled(publisher, checkouts, None)


@pytest.mark.parametrize("in_the_way", ["eessi-arch-guard", "eessi-arch-guard/1.1.0", "eessi-arch-guard/current"])
def test_what_stands_in_the_way_inside_the_repository_aborts(
    publisher: Publisher, checkouts: "dict[str, Path]", in_the_way: str
) -> None:
    path = publisher.tree / in_the_way
    path.parent.mkdir(exist_ok=True)
    if in_the_way.endswith("current"):
        path.mkdir()
    elif in_the_way.endswith(NEW):
        path.symlink_to("nowhere")
    else:
        path.write_text("")
    publisher.close()
    before = content(publisher.tree)
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.commands()) == (65, ["transaction", "abort"])
    assert "could not be" in done.stderr
    assert not publisher.is_open()
    assert publisher.violations() == ""
    assert content(publisher.tree) == before


def test_a_transaction_of_somebody_else_is_left_alone(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    publisher.open()
    for arguments in ((), ("--dry-run",), ("--rollback", OLD)):
        done = run(publisher, checkouts[NEW], "transaction", *arguments)
        assert (done.returncode, publisher.commands(), publisher.is_open()) == (17, [], True)
        assert "wait until its owner has ended it" in done.stderr


@pytest.mark.parametrize(
    ("faults", "status", "sentence", "calls"),
    [
        ({"transaction": "taken"}, 17, "wait until its owner", ["transaction"]),
        ({"publish": "stolen"}, 1, "somebody has ended the transaction", ["transaction", "publish"]),
        ({"transaction": "mount"}, 1, "nothing tells whether it is ours", ["transaction"]),
    ],
)
def test_a_transaction_that_is_not_known_to_be_ours_is_not_aborted(
    publisher: Publisher,
    checkouts: "dict[str, Path]",
    faults: "dict[str, str]",
    status: int,
    sentence: str,
    calls: "list[str]",
) -> None:
    published(publisher, checkouts[OLD])
    publisher.fail(**faults)
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.commands(), publisher.is_open()) == (status, calls, True)
    assert sentence in done.stderr
    publisher.discard()
    settled(publisher, checkouts, OLD)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("io", "rdonly_umount"),
        ("hook", "a hook of the site"),
        ("killed", "was killed"),
        ("crash", "or crashed"),
        ("server", "the web server"),
        ("whitelist", "resign"),
        ("key", "/etc/cvmfs/keys"),
        ("another", "wait for it"),
    ],
)
def test_an_abort_that_fails_is_said_aloud(
    publisher: Publisher, checkouts: "dict[str, Path]", fault: str, sentence: str
) -> None:
    publisher.fail(publish="sync", abort=fault)
    done = run(publisher, checkouts[OLD], "transaction")
    assert (done.returncode, publisher.commands()) == (67, OPENED)
    assert "IS STILL OPEN" in done.stderr
    assert sentence in done.stderr
    assert f"close it by hand: cvmfs_server abort -f {REPO}" in done.stderr


@pytest.mark.parametrize(("fault", "status"), [("gc", 1), ("root-hash", 1), ("remount", 32), ("late-kill", 137)])
def test_a_publish_that_fails_once_it_has_signed_is_said_to_be_published(
    publisher: Publisher, checkouts: "dict[str, Path]", fault: str, status: int
) -> None:
    published(publisher, checkouts[OLD])
    publisher.fail(publish=fault)
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.commands()) == (status, OPENED)
    assert f"is published: {publisher.tree / PREFIX}/current points to {NEW}" in done.stderr
    assert "as it was before" not in done.stderr
    settled(publisher, checkouts, NEW)


def test_a_hook_that_fails_after_the_publish_does_not_hide_it(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    published(publisher, checkouts[OLD])
    publisher.fail(publish="after-hook")
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.commands()) == (3, ["transaction", "publish"])
    assert f"but {NEW} is published" in done.stderr
    settled(publisher, checkouts, NEW)


def test_a_version_that_appears_when_the_transaction_opens_is_not_written_over(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    published(publisher, checkouts[OLD])
    newest = publisher.folder / "newest"
    shutil.copytree(publisher.tree, newest, symlinks=True)
    (newest / PREFIX / NEW).mkdir()
    (newest / PREFIX / NEW / FILE).write_text("another build\n")
    before = content(newest)
    publisher.fail(transaction="behind")
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.commands()) == (65, ["transaction", "abort"])
    assert "raise the version" in done.stderr
    assert content(publisher.tree) == before


def test_a_catalog_that_publish_adds_does_not_make_a_version_less_whole(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    publisher.fail(publish=f"dirtab:{PREFIX}/*.*.*")
    for version in (OLD, NEW):
        assert run(publisher, checkouts[version], "transaction").returncode == 0
        assert (publisher.tree / PREFIX / version / ".cvmfscatalog").exists()
    assert run(publisher, checkouts[NEW], "transaction", "--rollback", OLD).returncode == 0
    settled(publisher, checkouts, OLD)


def test_a_flag_in_another_place_is_noticed_and_the_transaction_aborted(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    environ = {**publisher.environ(), "CVMFS_SPOOL_DIR": "/nonexistent"}
    done = subprocess.run(command(checkouts[OLD], "transaction"), env=environ, capture_output=True, text=True)
    assert (done.returncode, publisher.commands()) == (65, ["transaction", "abort"])
    assert "set CVMFS_SPOOL_DIR" in done.stderr
    settled(publisher, checkouts, None)


def test_what_does_not_read_back_is_said_with_the_way_out(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    publisher.fail(publish="torn")
    done = run(publisher, checkouts[NEW], "transaction")
    assert (done.returncode, publisher.is_open()) == (66, False)
    assert "--rollback" in done.stderr
    assert publisher.violations() == ""


# --- signals --------------------------------------------------------------------------------------------------------


@contextmanager
def paused(publisher: Publisher, checkout: Path, at: str) -> "Iterator[subprocess.Popen[str]]":
    """A run that stands in the middle of a command of cvmfs_server, alone in its process group; then it goes on."""
    publisher.fail(**{at: "pause"})
    with subprocess.Popen(
        command(checkout, "transaction"),
        env=publisher.environ(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not (publisher.folder / "reached").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        yield process
        (publisher.folder / "go").touch()
        process.communicate(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT], ids=str)
def test_a_signal_to_all_of_it_while_the_transaction_opens_ends_in_an_abort(
    publisher: Publisher, checkouts: "dict[str, Path]", number: signal.Signals
) -> None:
    published(publisher, checkouts[OLD])
    with paused(publisher, checkouts[NEW], "transaction") as process:
        os.killpg(process.pid, number)
    assert (process.returncode, publisher.commands()) == (128 + number, ["transaction", "abort"])
    settled(publisher, checkouts, OLD)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_to_all_of_it_while_it_publishes_comes_too_late(
    publisher: Publisher, checkouts: "dict[str, Path]", number: signal.Signals
) -> None:
    published(publisher, checkouts[OLD])
    with paused(publisher, checkouts[NEW], "publish") as process:
        os.killpg(process.pid, number)
    assert (process.returncode, publisher.commands()) == (0, ["transaction", "publish"])
    settled(publisher, checkouts, NEW)


def test_a_reader_that_goes_away_ends_in_an_abort(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(command(checkouts[NEW], "transaction"), env=publisher.environ(), stderr=write_fd)
    os.close(write_fd)
    assert done.returncode == 141
    settled(publisher, checkouts, OLD)


# --- before anything is touched -------------------------------------------------------------------------------------


def _missing(top: Path) -> None:
    (top / "dist" / FILE).unlink()


def _garbage(top: Path) -> None:
    (top / "dist" / FILE).write_text("exit 3\n")


def _talks(top: Path) -> None:
    text = f'case "$*" in --version) echo "eessi-arch-guard {OLD}" ;; *) echo hello ;; esac\n'
    (top / "dist" / FILE).write_text(text)


def _dirty(top: Path) -> None:
    (top / "guard" / "__main__.py").write_text("")


def _untagged(top: Path) -> None:
    git(top, "tag", "-d", f"v{OLD}")


def _tag_elsewhere(top: Path) -> None:
    git(top, "commit", "-q", "--allow-empty", "-m", "later")


def _another_build(top: Path) -> None:
    with (top / "dist" / FILE).open("ab") as file:
        file.write(b"\0")


def _no_venv(top: Path) -> None:
    (top / ".venv").unlink()


def _no_git(top: Path) -> None:
    shutil.rmtree(top / ".git")


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_missing, "run make pyz"),
        (_garbage, "does not run here"),
        (_talks, "is not silent"),
        (_dirty, "commit them"),
        (_untagged, f"is not at v{OLD}"),
        (_tag_elsewhere, f"is not at v{OLD}"),
        (_another_build, "is not what a fresh build"),
        (_no_venv, "--sha256"),
        (_no_git, "is no git checkout"),
    ],
)
@pytest.mark.parametrize("way", ["transaction", "tarball"])
def test_only_what_a_clean_tag_gives_is_published(
    publisher: Publisher, checkouts: "dict[str, Path]", tmp_path: Path, harm: object, sentence: str, way: str
) -> None:
    top = tmp_path / "harmed"
    shutil.copytree(checkouts[OLD], top, symlinks=True)
    assert callable(harm)
    harm(top)
    done = subprocess.run(
        [top / "cvmfs-publish.sh", way], env=publisher.environ(), capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, publisher.commands()) == (65, [])
    assert sentence in done.stderr
    assert not list(top.glob("dist/*.gz"))


def test_a_hash_of_another_build_is_refused(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    done = run(publisher, checkouts[OLD], "transaction", "--sha256", "0" * 64)
    assert (done.returncode, publisher.commands()) == (65, [])


def test_without_cvmfs_server_or_a_mount_it_says_where_to_run(
    publisher: Publisher, checkouts: "dict[str, Path]"
) -> None:
    for change in ({"PATH": "/usr/bin:/bin"}, {"CUSTOM_CVMFS_ROOT": "/nonexistent"}):
        environ = {**publisher.environ(), **change}
        done = subprocess.run(command(checkouts[OLD], "transaction"), env=environ, capture_output=True, text=True)
        assert (done.returncode, publisher.commands()) == (65, [])
        assert "run this on the publisher" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("publish",),
        ("transaction", "--force"),
        ("transaction", "--repo"),
        ("transaction", "--repo", "a b"),
        ("transaction", "--repo", "../x"),
        ("transaction", "--prefix", "/x"),
        ("transaction", "--prefix", "a/../b"),
        ("transaction", "--prefix", "$(id)"),
        ("transaction", "--rollback", "current"),
        ("transaction", "--rollback", "1;2"),
        ("tarball", "--prefix", "eessi-arch-guard"),
        ("tarball", "--prefix", "versions/2023.06/software/guard"),
        ("tarball", "--prefix", "versions/2023.13/scripts/guard"),
        ("tarball", "--prefix", "versions/2023.06/scripts"),
        ("tarball", "--prefix", "project/versions/2023.06/scripts/guard"),
        ("tarball", "--repo", "dev.eessi.io"),
        ("tarball", "--repo", "dev.eessi.io", "--prefix", "my-project/versions/2023.06/scripts/guard"),
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_refused(
    publisher: Publisher, checkouts: "dict[str, Path]", arguments: "tuple[str, ...]"
) -> None:
    done = run(publisher, checkouts[OLD], *arguments)
    assert (done.returncode, publisher.commands()) == (64, [])
    assert done.stderr


# --- the tarball ----------------------------------------------------------------------------------------------------


def tarball(
    publisher: Publisher, checkout: Path, tmp_path: Path, *arguments: str
) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    """A tarball made from a copy of the checkout, moved out of it."""
    top = tmp_path / "copy"
    shutil.copytree(checkout, top, symlinks=True)
    done = run(publisher, top, "tarball", *arguments)
    assert done.returncode == 0, done.stderr
    made = tmp_path / Path(done.stdout.strip()).name
    shutil.move(done.stdout.strip(), made)
    shutil.rmtree(top)
    return made, done


def ingest(publisher: Publisher, file: Path) -> None:
    """What EESSI's scripts/ingest-tarball.sh checks and does (filesystem-layer 492b5ab)."""
    version, kind = file.name.split("-")[1:3]
    with tarfile.open(file) as opened:
        names = opened.getnames()
    first = next((name for name in names if f"/{kind}/" in name), names[0])
    assert first.split("/")[0] == version
    assert names[:2][-1].split("/")[1] == kind
    assert kind in ("init", "scripts")
    folder = "versions"
    if publisher.repo == "dev.eessi.io":
        folder = file.name.split("-")[-2] + "/versions"
    unpacked = subprocess.run(["gunzip", "-c", file], capture_output=True, check=True).stdout
    (publisher.tree / folder).mkdir(parents=True, exist_ok=True)
    publisher.close()
    subprocess.run(
        ["cvmfs_server", "ingest", "-t", "-", "-b", folder, publisher.repo],
        env=publisher.environ(),
        input=unpacked,
        check=True,
    )


def test_what_eessi_ingests_is_a_published_version(
    publisher: Publisher, checkouts: "dict[str, Path]", tmp_path: Path
) -> None:
    prefix = "versions/2023.06/scripts/eessi-arch-guard"
    for version in (OLD, NEW):
        file, _ = tarball(publisher, checkouts[version], tmp_path)
        assert publisher.commands() == []
        with tarfile.open(file) as opened:
            inside = [(member.name, member.uid, member.mode & 0o777) for member in opened.getmembers()]
        assert inside == [
            (f"2023.06/scripts/eessi-arch-guard/{version}", 0, 0o755),
            (f"2023.06/scripts/eessi-arch-guard/{version}/{FILE}", 0, 0o755),
            ("2023.06/scripts/eessi-arch-guard/current", 0, 0o777),
        ]
        ingest(publisher, file)
        settled(publisher, checkouts, version, prefix)
        assert run(publisher, checkouts[version], "verify", "--prefix", prefix).returncode == 0
        publisher.log.unlink()
    file, _ = tarball(publisher, checkouts[NEW], tmp_path, "--rollback", OLD)
    ingest(publisher, file)
    settled(publisher, checkouts, OLD, prefix)


def test_dev_eessi_io_takes_the_project_from_the_name(tmp_path: Path, checkouts: "dict[str, Path]") -> None:
    (tmp_path / "publisher").mkdir()
    dev = Publisher(tmp_path / "publisher", "dev.eessi.io").make()
    prefix = "guards/versions/2025.06/init/eessi-arch-guard"
    file, _ = tarball(dev, checkouts[OLD], tmp_path, "--repo", "dev.eessi.io", "--prefix", prefix)
    ingest(dev, file)
    settled(dev, checkouts, OLD, prefix)


def test_the_same_version_gives_the_same_tarball(
    publisher: Publisher, checkouts: "dict[str, Path]", tmp_path: Path
) -> None:
    made = []
    for number in range(2):
        file, _ = tarball(publisher, checkouts[OLD], tmp_path)
        made.append(file.rename(tmp_path / f"{number}").read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("arguments", [("--dry-run",), ("--rollback", "0.9")])
def test_no_tarball_is_left_where_none_was_asked_for(
    publisher: Publisher, checkouts: "dict[str, Path]", arguments: "tuple[str, ...]"
) -> None:
    done = run(publisher, checkouts[OLD], "tarball", *arguments)
    assert done.returncode == (0 if arguments == ("--dry-run",) else 65)
    assert not list((checkouts[OLD] / "dist").glob("*.gz"))


# --- reading back ---------------------------------------------------------------------------------------------------


def test_verify_tells_what_is_published(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    done = run(publisher, checkouts[NEW], "verify")
    digest = hashlib.sha256((checkouts[OLD] / "dist" / FILE).read_bytes()).hexdigest()
    assert (done.returncode, publisher.commands()) == (0, [])
    assert f"is version {OLD}, sha256 {digest}" in done.stderr


@pytest.mark.parametrize("harm", ["none", "link", "content", "mode", "name"])
def test_verify_finds_what_is_wrong(publisher: Publisher, checkouts: "dict[str, Path]", harm: str) -> None:
    base = publisher.tree / PREFIX
    if harm != "none":
        published(publisher, checkouts[OLD])
    if harm == "link":
        (base / "current").unlink()
        (base / "current").symlink_to("9.9.9")
    elif harm == "content":
        os.truncate(base / OLD / FILE, 6000)
    elif harm == "mode":
        (base / OLD / FILE).chmod(0o700)
    elif harm == "name":
        (base / OLD).rename(base / NEW)
        (base / "current").unlink()
        (base / "current").symlink_to(NEW)
    done = run(publisher, checkouts[OLD], "verify")
    assert done.returncode == 66, done.stderr


# --- starts while `current` is switched -----------------------------------------------------------------------------


def test_every_start_is_right_while_current_is_switched(publisher: Publisher, checkouts: "dict[str, Path]") -> None:
    published(publisher, checkouts[OLD])
    published(publisher, checkouts[NEW])
    publisher.fail(publish="read-elsewhere")
    base = publisher.tree / PREFIX
    stop = threading.Event()
    switches: list[int] = []

    def publish_to_and_fro() -> None:
        while not stop.is_set():
            version = (OLD, NEW)[len(switches) % 2]
            switches.append(run(publisher, checkouts[NEW], "transaction", "--rollback", version).returncode)

    def switch_to_and_fro() -> None:
        # As often as can be, what the script does once in a while.
        for number in range(10**9):
            if stop.is_set():
                return
            (base / ".new").symlink_to((OLD, NEW)[number % 2])
            (base / ".new").rename(base / "current")

    versions = {f"eessi-arch-guard {version}\n" for version in (OLD, NEW)}
    seen = set()
    for switcher in (publish_to_and_fro, switch_to_and_fro):
        stop.clear()
        thread = threading.Thread(target=switcher)
        thread.start()
        try:
            for _ in range(100):
                environ = {"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0"}
                started = [base / "current" / FILE]
                told = subprocess.run([*started, "--version"], env=environ, capture_output=True, text=True)
                assert (told.returncode, told.stderr) == (0, "")
                assert told.stdout in versions
                seen.add(told.stdout)
                # As a TaskProlog of a task without EESSI, past the sh header and all the way through Python.
                environ["EESSI_ARCH_GUARD_VERBOSE"] = "1"
                silent = subprocess.run(started, env=environ, capture_output=True, text=True)
                assert silent.returncode == 0
                assert silent.stdout == "print eessi-arch-guard: nothing to do, EESSI is not loaded\n"
        finally:
            stop.set()
            thread.join()
    assert seen == versions
    assert len(switches) > 3
    assert set(switches) == {0}
