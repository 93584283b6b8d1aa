# SPDX-License-Identifier: GPL-2.0-or-later
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.arch import detect
from guard.arch.request import Target
from guard.base.deadline import Deadline
from guard.base.faults import Fault, NodeFault, SiteFault
from guard.base.watch import Watch
from tests.eessi.tree import CC80, GENERIC, ZEN2, ZEN4, Tree

SHARED = Path(__file__).parent.parent.parent.parent / "shared" / "archdetect"

OPTIONS = [
    (b"x86_64/amd/zen4:x86_64/generic\n", 0, [b"x86_64/amd/zen4", b"x86_64/generic"]),
    (b"aarch64/generic", 0, [b"aarch64/generic"]),
    (b"a/b\n\n", 0, [b"a/b"]),
    (b"", 0, None),
    (b"\n", 0, None),
    (b"x86_64/amd/zen4\n", 1, None),
    (b"x86_64/amd/zen4\n", -11, None),
    (b"x86_64\n", 0, None),
    (b"/x86_64/generic", 0, None),
    (b"x86_64/generic/", 0, None),
    (b"x86_64//generic", 0, None),
    (b"x86_64/../../etc", 0, None),
    (b"x86_64/generic:", 0, None),
    (b"x86_64/generic: a/b", 0, None),
    (b"log line\nx86_64/generic\n", 0, None),
    (b"x86_64/gen\xffric", 0, None),
    (b"\0" * 1000, 0, None),
]


@pytest.mark.parametrize(("answer", "status", "options"), OPTIONS)
def test_the_cpu_answer_is_a_list_of_targets_or_a_fault(
    answer: bytes, status: int, options: "list[bytes] | None"
) -> None:
    if options is not None:
        assert detect.cpu_options(answer, status) == options
        return
    with pytest.raises(SiteFault) as caught:
        detect.cpu_options(answer, status)
    assert caught.value.code == "archdetect-failed"


ACCELS = [
    (b"accel/nvidia/cc80\n", 0, b"accel/nvidia/cc80", False),
    (b"accel/nvidia/cc100", 0, b"accel/nvidia/cc100", False),
    (b"accel/amd/gfx90a", 0, b"accel/amd/gfx90a", False),
    (b"", 2, None, False),
    (b"", 3, None, True),
    (b"NVIDIA-SMI has failed because it couldn't communicate\n", 3, None, True),
    (b"accel/nvidia/cc\n", 0, None, True),
    (b"accel/nvidia/ccN/A\n", 0, None, True),
    (b"accel/amd/gfx90g", 0, None, True),
    (b"accel/intel/xe", 0, None, True),
    (b"warning\naccel/nvidia/cc80\n", 0, None, True),
    (b"accel/nvidia/cc80\n", 1, None, True),
    (b"\xff" * 5000, 0, None, True),
]


@pytest.mark.parametrize(("answer", "status", "accel", "is_odd"), ACCELS)
def test_the_accelerator_answer_is_one_or_none_and_what_is_odd_is_quoted(
    answer: bytes, status: int, accel: "bytes | None", is_odd: bool
) -> None:
    got, remark = detect.accel_answer(answer, status)
    assert got == accel
    assert bool(remark) == is_odd
    assert len(remark) < 700


OVERRIDES = [(b"accel/nvidia/cc80", b"accel/nvidia/cc80"), (b"", None), (b"site/own", b"site/own"), (b"/abs", None)]


@pytest.mark.parametrize(("value", "accel"), [*OVERRIDES, (b"a/../b", None), (b"a b/c", None)])
def test_an_accelerator_override_is_taken_as_eessi_takes_it(value: bytes, accel: "bytes | None") -> None:
    assert detect.accel_override(value)[0] == accel


def test_a_bash_of_ours_gets_nothing_that_it_would_run() -> None:
    kept = detect.child_environ(
        {b"BASH_ENV": b"x", b"ENV": b"x", b"SHELLOPTS": b"x", b"BASHOPTS": b"x", b"BASH_FUNC_f%%": b"() {", b"A": b"1"}
    )
    assert kept == {b"A": b"1", b"PATH": b"/usr/bin:/bin:/usr/sbin:/sbin"}
    assert detect.child_environ({b"PATH": b"/job"})[b"PATH"] == b"/usr/bin:/bin:/usr/sbin:/sbin:/job"


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch() as opened:
        yield opened


def environ(tree: Tree, **more: str) -> "dict[bytes, bytes]":
    given = {
        "EESSI_PREFIX": str(tree.prefix),
        "EESSI_INIT_PREFIX": str(tree.init),
        "EESSI_OS_TYPE": "linux",
        "EESSI_PROC_CPUINFO": str(tree.cpuinfo),
        "EESSI_MACHINE_TYPE": "x86_64",
        "PATH": str(tree.gpu_folder),
        **more,
    }
    return {name.encode(): value.encode() for name, value in given.items()}


def test_a_node_is_seen_through_both_detectors_and_both_walks(tree: Tree, watch: Watch) -> None:
    (tree.software(ZEN2) / CC80 / "modules" / "all").mkdir(parents=True)
    tree.node(ZEN2, accel="8.9")
    found = detect.survey(environ(tree), Deadline(120), watch)
    assert found.options == [ZEN2.encode(), GENERIC.encode()]
    assert found.accel == b"accel/nvidia/cc89"
    assert found.walked.target == Target(ZEN2.encode(), CC80.encode())


def test_overrides_are_honoured_without_asking_the_detector(tree: Tree, watch: Watch) -> None:
    tree.node(ZEN4)
    given = environ(tree, EESSI_ARCHDETECT_OPTIONS_OVERRIDE=f"{ZEN2}:{GENERIC}", EESSI_ACCELERATOR_TARGET_OVERRIDE="")
    assert detect.survey(given, Deadline(120), watch).walked.target == Target(ZEN2.encode(), None)
    assert tree.decisions() == 0


def test_the_detectors_own_override_is_passed_on(tree: Tree, watch: Watch) -> None:
    tree.node(ZEN4)
    given = environ(tree, EESSI_SOFTWARE_SUBDIR_OVERRIDE=GENERIC)
    assert detect.survey(given, Deadline(120), watch).walked.target == Target(GENERIC.encode(), None)


def script(tree: Tree, text: str) -> None:
    (tree.init / "eessi_archdetect.sh").write_text(text)


BAD_DETECTORS = {
    "fails": "exit 1",
    "prints nothing": "exit 0",
    "prints junk": "echo 'export A=1'",
    "kills itself": "kill -SEGV $$",
    "is not sh": "\0\1\2",
    "floods": "yes x86_64/generic | head -n 100000",
}


@pytest.mark.parametrize("how", BAD_DETECTORS)
def test_a_detector_without_a_usable_answer_is_a_fault(tree: Tree, watch: Watch, how: str) -> None:
    script(tree, BAD_DETECTORS[how])
    with pytest.raises(SiteFault) as caught:
        detect.survey(environ(tree), Deadline(120), watch)
    assert caught.value.code == "archdetect-failed"


@pytest.mark.parametrize("prefix", ["", "relative", "../x", "\n/x"])
def test_a_prefix_that_is_not_absolute_is_a_fault(tree: Tree, watch: Watch, prefix: str) -> None:
    with pytest.raises(SiteFault) as caught:
        detect.survey(environ(tree, EESSI_INIT_PREFIX=prefix), Deadline(120), watch)
    assert caught.value.code == "archdetect-failed"
    with pytest.raises(SiteFault) as caught:
        detect.survey(environ(tree, EESSI_PREFIX=prefix), Deadline(120), watch)
    assert caught.value.code == "no-software-dir"


def test_a_detector_that_hangs_ends_at_the_deadline_with_what_it_started(tree: Tree, watch: Watch) -> None:
    os.mkfifo(tree.root / "hang")
    script(tree, f'trap "" TERM; (sleep 1000 &) ; read < "{tree.root}/hang"')
    with pytest.raises(NodeFault) as caught:
        detect.survey(environ(tree), Deadline(0.5), watch)
    assert caught.value.code == "timeout"


def test_a_script_on_a_mount_that_hangs_ends_at_the_deadline(tree: Tree, watch: Watch) -> None:
    (tree.init / "eessi_archdetect.sh").unlink()
    os.mkfifo(tree.init / "eessi_archdetect.sh")
    with pytest.raises(NodeFault) as caught:
        detect.survey(environ(tree), Deadline(0.5), watch)
    assert caught.value.code == "timeout"


def test_a_signal_to_stop_ends_the_detection(tree: Tree, watch: Watch) -> None:
    script(tree, "sleep 1000")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(NodeFault) as caught:
        detect.survey(environ(tree), Deadline(60), watch)
    timer.join()
    assert caught.value.code == "terminated"


def test_an_nvidia_smi_that_hangs_ends_at_the_deadline(tree: Tree, watch: Watch) -> None:
    smi = tree.gpu_folder / "nvidia-smi"
    smi.write_text('#!/bin/sh\ntrap "" TERM\nsleep 1000\n')
    smi.chmod(0o755)
    with pytest.raises(Fault) as caught:
        detect.survey(environ(tree), Deadline(0.5), watch)
    assert caught.value.code == "timeout"


def test_both_detectors_run_at_the_same_time(tree: Tree, watch: Watch) -> None:
    # Each waits for the other's file: one after the other, neither would ever end.
    script(
        tree,
        f'cd "{tree.root}"; if [ "$1" = -a ]; then touch cpu; other=accel; else touch accel; other=cpu; fi\n'
        "while [ ! -e $other ]; do sleep 0.01; done\n"
        'if [ "$1" = -a ]; then echo x86_64/generic; else exit 2; fi\n',
    )
    assert detect.survey(environ(tree), Deadline(120), watch).walked.target == Target(b"x86_64/generic", None)


@pytest.mark.skipif(not SHARED.exists(), reason="EESSI's recorded machines are not beside this checkout")
def test_every_recorded_machine_s_answer_is_taken() -> None:
    outputs = list(SHARED.rglob("*.all.output"))
    assert len(outputs) > 10
    for output in outputs:
        data = output.read_bytes()
        assert b":".join(detect.cpu_options(data, 0)) == data.strip()
