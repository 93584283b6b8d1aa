# SPDX-License-Identifier: GPL-2.0-or-later
"""A strict stand-in for cvmfs_server on a publisher: one folder is the repository, one file says that it is open.

Run as a program it is `cvmfs_server`; imported, it makes such a publisher and tells what was done to it. What it
refuses, with which status and words, is cvmfs ae7450e (2024-10, 2.12.0): cvmfs/server/cvmfs_server_publish.sh,
_ingest.sh, cvmfs/publish/cmd_transaction.cc, cmd_abort.cc. It was held against that, built and run; a gateway, autofs,
gc, ingest and the faults `layout`, `io`, `dirtab`, `manifest` were only read. Stricter than that: whoever touches the
repository outside of a transaction, or gives it a text that `sh -c` would take apart, has it on record as a violation.
"""

import getopt
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPO = "software.eessi.io"
PAUSE_MAX_S = 120.0

# What a failure says, and its status. Those of publish leave the transaction open.
TRANSACTION_FAULTS = {
    "busy": (16, "CernVM-FS transaction error: lease path busy"),
    "layout": (22, "incompatible layout revision"),
    "whitelist": (5, "cannot load whitelist [expired whitelist]"),
    "server": (5, "cannot load whitelist [failed to download whitelist]"),
    "key": (5, "cannot load private key, thus cannot commit changes"),
    "io": (5, "cannot open reflog"),
    "unknown": (1, "CernVM-FS error: Unable to find the configuration file `server.conf` for the cvmfs publisher: x"),
    "permission": (1, "Permission error: No write permission to repository"),
    "autofs": (1, "(unexpected termination) Autofs on /cvmfs has to be disabled"),
    "before-hook": (3, "transaction hook failed, not opening a transaction"),
}
PUBLISH_FAULTS = {
    "whitelist": (1, f"Repository whitelist for {REPO} is expired!"),
    "permission": (1, f"Permission denied: Repository {REPO} is owned by cvmfs"),
    "before-hook": (3, "the site says no"),
    "another": (1, f"Another publish process is active for {REPO}"),
    "unavailable": (1, f"Repository unavailable under http://localhost/cvmfs/{REPO}"),
    "dirtab": (1, "Failed to apply .cvmfsdirtab"),
    "sync": (1, "Synchronization failed\n\nExecuted Command:\ncvmfs_swissknife sync"),
    "manifest": (1, "Manifest creation failed"),
    "tagging": (1, "Tagging failed"),
    "signing": (1, "Signing failed"),
}
# Those of its last steps: the new revision is signed by then, and the abort that follows mounts it.
PUBLISH_LATE_FAULTS = {
    "gc": (1, "Signing new manifest\nGarbage collection failed (1)"),
    "root-hash": (1, "Signing new manifest\nRoot hash update failed"),
    "remount": (32, "Remounting newly created repository revision\nmount: /cvmfs: mount point not mounted"),
    "late-kill": (137, "Signing new manifest"),
}
# An abort asks the web server and the keys as well, and the lock of a publish that runs.
ABORT_FAULTS = {
    "io": (5, "Trying to mount /var/spool/cvmfs/x/rdonly... fail"),
    "server": (1, "(unexpected termination) cannot load whitelist [failed to download whitelist]"),
    "whitelist": (1, "(unexpected termination) cannot load whitelist [expired whitelist]"),
    "key": (1, "(unexpected termination) cannot load private key, thus cannot commit changes"),
    "another": (22, "Could not acquire lock /var/spool/cvmfs/x/is_publishing.lock"),
    "crash": (134, "cvmfs_publish: sql.cc:22: Assertion `success' failed."),
    "hook": (9, "abort hook failed, not aborting"),
}


class Publisher:
    """A publisher whose every file is below folder."""

    def __init__(self, folder: Path, repo: str = REPO) -> None:
        self.folder = folder
        self.repo = repo
        self.root = folder / "cvmfs"
        self.tree = self.root / repo
        self.spool = folder / "spool"
        self.lock = self.spool / "in_transaction.lock"
        self.rdonly = self.spool / "rdonly"
        self.seal = self.spool / "seal"
        self.faults = folder / "faults.json"
        self.log = folder / "calls.log"
        self.bad = folder / "violations.log"

    def make(self) -> "Publisher":
        """A new one, with the folders that EESSI's repository has."""
        for part in ("init/modules", "versions/2023.06/scripts", "versions/2023.06/init"):
            (self.tree / part).mkdir(parents=True)
        (self.tree / "README.eessi").write_text("EESSI\n")
        self.spool.mkdir()
        program = self.folder / "bin" / "cvmfs_server"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).resolve()} "$@"\n')
        program.chmod(0o755)
        self.faults.write_text("{}")
        self.close()
        return self

    def environ(self) -> "dict[str, str]":
        """What a program needs in its environment to meet this publisher."""
        return {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "CUSTOM_CVMFS_ROOT": str(self.root),
            "CVMFS_SPOOL_DIR": str(self.spool),
            "CVMFS_STAND": str(self.folder),
            "CVMFS_STAND_REPO": self.repo,
        }

    def fail(self, **faults: str) -> None:
        """From now on these commands fail in these ways."""
        self.faults.write_text(json.dumps(faults))

    def calls(self) -> "list[list[str]]":
        """The arguments of each call so far."""
        return (
            [json.loads(line)["arguments"] for line in self.log.read_text().splitlines()] if self.log.exists() else []
        )

    def commands(self) -> "list[str]":
        """The first argument of each call so far."""
        return [call[0] for call in self.calls()]

    def violations(self) -> str:
        """What was done that must never be done; the state of the tree now included."""
        self.look()
        return self.bad.read_text() if self.bad.exists() else ""

    def is_open(self) -> bool:
        return self.lock.exists()

    def open(self) -> None:
        """Opens a transaction."""
        shutil.copytree(self.tree, self.rdonly, symlinks=True)
        self.lock.touch(0o600)

    def close(self) -> None:
        """Ends a transaction with the tree as it is."""
        self.lock.unlink(missing_ok=True)
        shutil.rmtree(self.rdonly, ignore_errors=True)
        self.seal.write_text(traces(self.tree))

    def discard(self) -> None:
        """Ends a transaction with the tree as it was."""
        shutil.rmtree(self.tree)
        shutil.copytree(self.rdonly, self.tree, symlinks=True)
        self.close()

    def look(self) -> None:
        """Puts on record a tree that was touched outside of a transaction."""
        if not self.is_open() and traces(self.tree) != self.seal.read_text():
            self.violation("the repository was touched outside of a transaction")

    def violation(self, text: str) -> None:
        with self.bad.open("a") as file:
            file.write(text + "\n")

    def pause(self) -> None:
        """Waits in the middle of a command until the test says `go`."""
        (self.folder / "reached").touch()
        end = time.monotonic() + PAUSE_MAX_S
        while not (self.folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)


def content(tree: Path) -> "dict[str, tuple[int, str]]":
    """Every path below tree with its mode and what is in it."""
    found = {}
    for path in sorted(tree.rglob("*")):
        if path.is_symlink():
            inside = "-> " + os.readlink(path)
        else:
            inside = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(tree))] = (path.lstat().st_mode, inside)
    return found


def traces(tree: Path) -> str:
    """What no change to tree leaves as it was, not even one that was taken back."""
    return "".join(
        f"{path} {path.lstat().st_ino} {path.lstat().st_ctime_ns}\n" for path in (tree, *sorted(tree.rglob("*")))
    )


def open_files(tree: Path) -> "tuple[list[str], list[str]]":
    """What any process has open below tree: for reading, for writing."""
    reading: list[str] = []
    writing: list[str] = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:  # it may end at any moment
            for fd in os.listdir(f"/proc/{process}/fd"):
                path = os.readlink(f"/proc/{process}/fd/{fd}")
                if path.startswith(f"{tree}/"):
                    flags = re.search(r"flags:\s*0([0-7]+)", Path(f"/proc/{process}/fdinfo/{fd}").read_text())
                    is_writing = flags and int(flags[1], 8) & (os.O_WRONLY | os.O_RDWR)
                    (writing if is_writing else reading).append(path)
        except OSError:
            continue
    return reading, writing


def umask() -> int:
    """This process's."""
    found = os.umask(0)
    os.umask(found)
    return found


class Ended(Exception):
    """A command ends here: its status, what it says."""


def transaction(publisher: Publisher, arguments: "list[str]", fault: str) -> None:
    _, names = options(arguments, "t:T:U:V:")
    repo, _, lease = names[0].partition("/")
    if repo != publisher.repo:
        raise Ended(*TRANSACTION_FAULTS["unknown"])
    if fault in TRANSACTION_FAULTS:
        raise Ended(*TRANSACTION_FAULTS[fault])
    if fault == "behind":
        # A publish that was cut short has left the mount behind; opening a transaction brings it up to date.
        shutil.rmtree(publisher.tree)
        (publisher.folder / "newest").rename(publisher.tree)
    if fault == "taken":
        publisher.open()
    if publisher.is_open():
        raise Ended(17, "CernVM-FS transaction error: another transaction is already open")
    parent = (publisher.tree / lease).parent
    if lease and not parent.exists():
        raise Ended(2, f"CernVM-FS transaction error: cannot open transaction on non-existing path {parent}")
    if lease and not parent.is_dir():
        raise Ended(20, f"CernVM-FS transaction error: cannot open transaction on {parent}, which is not a directory")
    publisher.open()
    if fault == "after-hook":
        raise Ended(4, "post transaction hook failed")
    if fault == "mount":
        raise Ended(1, "(unexpected termination) Trying to remount /cvmfs/x read/write... fail")


def publish(publisher: Publisher, arguments: "list[str]", fault: str) -> None:
    given, names = options(arguments, "F:NXZ:pa:c:m:vn:fed")
    text = dict(given).get("-m", "")
    if not re.fullmatch(r"[A-Za-z0-9._:-]*", text):
        publisher.violation(f"sh -c would take this text apart: {text}")
    if os.readlink("/proc/self/fd/0") != os.devnull:
        publisher.violation("publish may ask, and its stdin is not empty")
    if names[0].partition("/")[0] != publisher.repo:
        raise Ended(1, f"The repository {names[0]} does not exist.")
    if fault in ("permission", "unavailable", "whitelist", "another"):
        raise Ended(*PUBLISH_FAULTS[fault])
    if fault in ("aborted", "stolen"):
        publisher.discard()
        if fault == "stolen":
            publisher.open()
        raise Ended(1, f"Repository {publisher.repo} is not in a transaction")
    if not publisher.is_open():
        raise Ended(1, f"Repository {publisher.repo} is not in a transaction")
    reading, writing = open_files(publisher.tree)
    if writing:
        raise Ended(1, f"Open writable file descriptors on {publisher.repo}")
    if f"{os.getcwd()}/".startswith(f"{publisher.tree}/"):
        raise Ended(1, f"Current working directory is in {publisher.tree}.  Please release, e.g. by 'cd $HOME'.")
    if reading and fault != "read-elsewhere" and ("-f", "") not in given:
        print(f"WARNING! There are open read-only file descriptors in {publisher.tree}")
        print("Do you want to proceed anyway? (y/N) ", flush=True)
        if sys.stdin.readline().strip() not in ("y", "Y"):
            raise Ended(1, "aborted.")
    if fault in PUBLISH_FAULTS:
        raise Ended(*PUBLISH_FAULTS[fault])
    if umask() & 0o055:
        raise Ended(1, "catalog does not exist\nTagging failed")
    for folder in publisher.tree.glob(fault.partition("dirtab:")[2] or "no such name"):
        (folder / ".cvmfscatalog").touch(0o644)
    if fault in PUBLISH_LATE_FAULTS:
        shutil.rmtree(publisher.rdonly)
        shutil.copytree(publisher.tree, publisher.rdonly, symlinks=True)
        raise Ended(*PUBLISH_LATE_FAULTS[fault])
    if fault == "lying":
        return
    if fault == "torn":
        for file in publisher.tree.rglob("*.pyz"):
            os.truncate(file, 5000)
    publisher.close()
    if fault == "after-hook":
        raise Ended(3, "the site says no")


def abort(publisher: Publisher, arguments: "list[str]", fault: str) -> None:
    given, names = options(arguments, "f")
    if names[0].partition("/")[0] != publisher.repo:
        raise Ended(1, "CernVM-FS error: unknown repository")
    if f"{os.getcwd()}/".startswith(f"{publisher.tree}/"):
        raise Ended(1, f"Current working directory is in {publisher.tree}.  Please release, e.g. by 'cd $HOME'.")
    if ("-f", "") not in given:
        print("You are about to DISCARD ALL CHANGES OF THE CURRENT TRANSACTION!  Are you sure (y/N)? ", flush=True)
        answer = sys.stdin.readline(2)
        if answer and answer[0] not in "yY":  # the end of stdin counts as yes
            raise Ended(4, "")
    if fault in ABORT_FAULTS:
        raise Ended(*ABORT_FAULTS[fault])
    if not publisher.is_open():
        raise Ended(22, "not in a transaction")
    publisher.discard()
    if fault == "after-hook":
        raise Ended(7, "post abort hook failed")


def ingest(publisher: Publisher, arguments: "list[str]", _fault: str) -> None:
    """Only as EESSI's ingest-tarball.sh calls it."""
    given, names = options(arguments, "t:b:")
    if names[0] != publisher.repo or dict(given)["-t"] != "-":
        raise Ended(1, "Impossible to start a transaction")
    transaction(publisher, [publisher.repo], "")
    subprocess.run(["tar", "-x", "-C", publisher.tree / dict(given)["-b"]], stdin=sys.stdin, check=True)
    publisher.close()


COMMANDS = {"transaction": transaction, "publish": publish, "abort": abort, "ingest": ingest}


def options(arguments: "list[str]", letters: str) -> "tuple[list[tuple[str, str]], list[str]]":
    """Options and the one name that must follow them."""
    try:
        given, names = getopt.getopt(arguments, letters)
    except getopt.GetoptError as error:
        raise Ended(1, f"Unrecognized option: {error}") from error
    if len(names) != 1 or not names[0]:
        raise Ended(1, "Usage: cvmfs_server COMMAND [options] <repository>")
    return given, names


def main(arguments: "list[str]") -> int:
    """Does one command as cvmfs_server would, and gives its status."""
    publisher = Publisher(Path(os.environ["CVMFS_STAND"]), os.environ["CVMFS_STAND_REPO"])
    with publisher.log.open("a") as file:
        file.write(json.dumps({"arguments": arguments, "cwd": os.getcwd()}) + "\n")
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        publisher.violation(f"no command that is needed: {arguments}")
        return 1
    publisher.look()
    fault = json.loads(publisher.faults.read_text()).get(command, "")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "pause" and command != "transaction":
        publisher.pause()
    try:
        COMMANDS[command](publisher, arguments[1:], fault)
        if fault == "pause" and command == "transaction":
            publisher.pause()
        return 0
    except Ended as end:
        status, text = end.args
        print(text, file=sys.stderr)
        return int(status)
    except Exception as error:  # a mistake of ours, which must not pass for a refusal
        publisher.violation(f"the stand-in itself failed: {error!r}")
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
