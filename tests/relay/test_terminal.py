# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay exec` on a real pty that the test types on and reads."""

import fcntl
import os
import pty
import select
import shlex
import shutil
import signal
import struct
import termios
import time
from collections.abc import Iterator

import pytest

from tests.conftest import need
from tests.relay.rig import LONG_S, Rig, eventually


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """A terminal with a program in its foreground, in a session of its own. size: its rows and columns."""

    def __init__(self, command: "list[str]", environ: "dict[str, str]", size: "tuple[int, int]" = (24, 80)) -> None:
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                _resize(0, *size)
                os.execvpe(command[0], command, environ)
            finally:
                os._exit(127)

    def resize(self, rows: int, columns: int) -> None:
        _resize(self.fd, rows, columns)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str) -> None:
        """Reads until text was seen; forgets everything up to it."""
        end_s = time.monotonic() + LONG_S
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"{text!r} was not seen, but {self.seen!r}"
            self.seen += self._read()
        self.seen = self.seen.partition(text.encode())[2]

    def _read(self) -> bytes:
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        assert data, f"it ended: {self.seen!r}"
        return data

    def status(self) -> int:
        """Its exit status; whatever it still writes is read."""
        while True:
            pid, raw = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(raw)
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    pass

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def screens(node: Rig) -> "Iterator[list[Screen]]":
    opened: "list[Screen]" = []
    yield opened
    for screen in opened:
        try:
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)
        except OSError:
            pass
        screen.close()


def on_screen(node: Rig, screens: "list[Screen]", *command: str, **more: str) -> Screen:
    screen = Screen(node.exec_command("--", *command), {**node.environ(PS1="$ ", LC_ALL="C"), **more})
    screens.append(screen)
    return screen


def test_the_command_has_a_terminal_of_the_same_size_and_is_relayed_as_stdout(
    node: Rig, screens: "list[Screen]"
) -> None:
    script = "read x; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; echo $x >&2; exit 6"
    screen = Screen(node.exec_command("--", "sh", "-c", script), node.environ(LC_ALL="C"), (33, 111))
    screens.append(screen)
    screen.type("typed\n")
    screen.expect("33 111\r\n")
    assert screen.status() == 6
    node.ended()
    assert node.output("stderr") == ""
    assert node.output().endswith("33 111\r\ntyped\r\n")


def test_a_resize_and_control_c_reach_the_command(node: Rig, screens: "list[Screen]") -> None:
    screen = on_screen(
        node,
        screens,
        "sh",
        "-c",
        "trap 'stty size' WINCH; trap 'echo INT; exit 9' INT; echo go; while :; do sleep 0.05; done",
    )
    screen.expect("go")
    screen.resize(44, 99)
    screen.expect("44 99")
    screen.type("\x03")
    screen.expect("INT")
    assert screen.status() == 9


def test_an_interactive_bash_edits_and_controls_jobs(node: Rig, screens: "list[Screen]") -> None:
    need("bash", shutil.which("bash"))
    screen = on_screen(node, screens, "bash", "--norc", "--noprofile", "-i", TERM="dumb")
    screen.expect("$ ")
    screen.type("echo ab\x08c\n")
    screen.expect("\nac\r\n")
    screen.type("sh -c 'echo sleeps; exec sleep 100'\n")
    screen.expect("\nsleeps")
    screen.type("\x1a")
    screen.expect("Stopped")
    screen.type("jobs; bg; kill %1; wait; echo over\n")
    screen.expect("\nover\r\n")
    screen.type("exit 7\n")
    assert screen.status() == 7
    node.ended()
    assert "\nac\r\n" in node.output()


def test_vi_edits_a_file(node: Rig, screens: "list[Screen]") -> None:
    need("vi", shutil.which("vi"))
    file = node.base / "edited.txt"
    screen = on_screen(node, screens, "vi", "-u", "NONE", str(file))
    screen.expect("edited.txt")
    screen.type("ihello from vi\x1b")
    screen.expect("hello from vi")
    screen.type(":wq\r")
    assert screen.status() == 0
    assert file.read_text() == "hello from vi\n"


def test_the_terminal_is_given_back_as_it_was(node: Rig, screens: "list[Screen]") -> None:
    inner = shlex.join(node.exec_command("--", "sh", "-c", "stty raw; exit 3"))
    before = "stty -a > $B; "
    screen = Screen(
        ["sh", "-c", f"{before}{inner}; echo $? >> $R; stty -a > $A"],
        node.environ(B=str(node.base / "b"), A=str(node.base / "a"), R=str(node.base / "r")),
    )
    screens.append(screen)
    screen.status()
    assert (node.base / "r").read_text() == "3\n"
    assert (node.base / "a").read_text() == (node.base / "b").read_text()


def test_in_the_background_it_leaves_the_keyboard_alone(node: Rig, screens: "list[Screen]") -> None:
    screen = Screen(["bash", "--norc", "--noprofile", "-i"], node.environ(PS1="$ "))
    screens.append(screen)
    screen.expect("$ ")
    words = shlex.join(node.exec_command("--", "sh", "-c", "[ -t 1 ] && printf 'is-%s\\n' terminal"))
    screen.type(words + " &\n")
    screen.expect("is-terminal\r\n")
    screen.type("echo still-$((1+1))\n")
    screen.expect("still-2")
    eventually(lambda: "is-terminal\n" in node.output())


def test_a_stopped_and_continued_pipeline_goes_on(node: Rig, screens: "list[Screen]") -> None:
    """stdout is a file: no pty; control-Z stops command and tap as the one group that they are."""
    out = node.base / "out"
    screen = Screen(["bash", "--norc", "--noprofile", "-i"], node.environ(PS1="$ "))
    screens.append(screen)
    screen.expect("$ ")
    go = node.base / "go"
    script = f"echo a; until [ -e {go} ]; do sleep 0.05; done; echo b"
    words = shlex.join(node.exec_command("--", "sh", "-c", script))
    screen.type(f"{words} > {out}\n")
    eventually(lambda: out.exists() and out.read_text() == "a\n")
    screen.type("\x1a")
    screen.expect("Stopped")
    go.touch()
    screen.type("fg\n")
    eventually(lambda: out.read_text() == "a\nb\n")
    screen.type("echo rc-$?\n")
    screen.expect("rc-0")


def test_control_c_ends_a_command_whose_stdout_is_a_file_by_one_sigint(node: Rig, screens: "list[Screen]") -> None:
    out = node.base / "out"
    end = node.base / "end"
    script = f"trap 'echo INT' INT; echo go; until [ -e {end} ]; do sleep 1; done; echo end"
    screen = Screen(["bash", "--norc", "--noprofile", "-i"], node.environ(PS1="$ "))
    screens.append(screen)
    screen.expect("$ ")
    (node.base / "script").write_text(script)
    words = shlex.join(node.exec_command("--", "sh", str(node.base / "script")))
    screen.type(f"{words} > {out}\n")
    eventually(lambda: out.exists() and out.read_text() == "go\n")
    screen.type("\x03")
    eventually(lambda: out.read_text().endswith("INT\n"))
    end.touch()
    eventually(lambda: out.read_text().endswith("end\n"))
    assert out.read_text() == "go\nINT\nend\n"


def test_only_stderr_on_a_terminal_keeps_that_one(node: Rig, screens: "list[Screen]") -> None:
    out = node.base / "out"
    inner = shlex.join(node.exec_command("--", "sh", "-c", "[ -t 2 ] && ! [ -t 1 ] && echo both; echo err >&2"))
    screen = Screen(["sh", "-c", f"{inner} > {out}"], node.environ())
    screens.append(screen)
    screen.status()
    assert out.read_text() == "both\n"
    node.ended()
    assert (node.output(), node.output("stderr")) == ("both\n", "err\n")
