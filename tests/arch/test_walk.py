# SPDX-License-Identifier: GPL-2.0-or-later
import errno
import os
from pathlib import Path

import pytest

from guard.arch import walk
from guard.arch.request import Target

ENVIRON = {b"EESSI_PREFIX": b"/p", b"EESSI_OS_TYPE": b"linux"}
TOP = b"/p/software/linux/"
ZEN4, ZEN2, GENERIC = b"x86_64/amd/zen4", b"x86_64/amd/zen2", b"x86_64/generic"
CC89, CC80 = b"accel/nvidia/cc89", b"accel/nvidia/cc80"


def cpu_folder(cpu: bytes) -> bytes:
    return TOP + cpu + b"/software"


def accel_folder(cpu: bytes, accel: bytes) -> bytes:
    return TOP + cpu + b"/" + accel + b"/modules/all"


def present(folders: "list[bytes]", options: "list[bytes]", accel: "bytes | None", **more: bytes) -> walk.Walked:
    environ = {**ENVIRON, **{name.encode(): value for name, value in more.items()}}
    return walk.present(environ, options, accel, folders.__contains__)


CASES = [
    # folders that are there, options, accelerator, selected
    ([cpu_folder(ZEN4)], [ZEN4, ZEN2], None, Target(ZEN4, None)),
    ([cpu_folder(ZEN2)], [ZEN4, ZEN2], None, Target(ZEN2, None)),
    ([cpu_folder(GENERIC)], [ZEN4, ZEN2, GENERIC], None, Target(GENERIC, None)),
    ([], [ZEN4, ZEN2, GENERIC], None, None),
    ([], [], None, None),
    ([cpu_folder(ZEN4), accel_folder(ZEN4, CC89)], [ZEN4], CC89, Target(ZEN4, CC89)),
    ([cpu_folder(ZEN4), accel_folder(ZEN4, CC80)], [ZEN4], CC89, Target(ZEN4, CC80)),
    ([cpu_folder(ZEN4), accel_folder(ZEN4, CC80)], [ZEN4], CC80, Target(ZEN4, CC80)),
    ([cpu_folder(ZEN4), accel_folder(ZEN4, CC89)], [ZEN4], CC80, Target(ZEN4, None)),
    ([cpu_folder(ZEN4), accel_folder(ZEN2, CC80)], [ZEN4, ZEN2], CC80, Target(ZEN4, None)),
]


@pytest.mark.parametrize(("folders", "options", "accel", "selected"), CASES)
def test_the_walks(
    folders: "list[bytes]", options: "list[bytes]", accel: "bytes | None", selected: "Target | None"
) -> None:
    assert present(folders, options, accel).target == selected


def test_the_accelerators_cpu_folder_can_be_overridden() -> None:
    folders = [cpu_folder(ZEN4), accel_folder(ZEN2, CC80)]
    walked = present(folders, [ZEN4], CC80, EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE=ZEN2)
    assert walked.target == Target(ZEN4, CC80)


def test_each_folder_that_was_tried_is_told_once() -> None:
    walked = present([cpu_folder(ZEN2)], [ZEN4, ZEN2, GENERIC], CC80)
    assert walked.tried == [
        (cpu_folder(ZEN4), False),
        (cpu_folder(ZEN2), True),
        (accel_folder(ZEN2, CC80), False),
    ]


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG]
)
def test_a_sick_mount_ends_the_walk_and_is_no_fall_back_to_a_lower_target(number: int) -> None:
    asked = []

    def has_folder(path: bytes) -> bool:
        asked.append(path)
        raise OSError(number, "sick")

    walked = walk.present(ENVIRON, [ZEN4, ZEN2], CC80, has_folder)
    assert walked.target is None
    assert walked.sick == (cpu_folder(ZEN4), number)
    assert asked == [cpu_folder(ZEN4)]


def test_a_sick_accelerator_folder_is_told_too() -> None:
    def has_folder(path: bytes) -> bool:
        if b"accel" in path:
            raise OSError(errno.EIO, "sick")
        return True

    assert walk.present(ENVIRON, [ZEN4], CC80, has_folder).sick == (accel_folder(ZEN4, CC80), errno.EIO)


def test_only_enoent_and_enotdir_mean_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    here = os.fsencode(tmp_path)
    assert walk.has_folder(here + b"/folder")
    assert walk.has_folder(here + b"/link")
    assert not walk.has_folder(here + b"/file")
    assert not walk.has_folder(here + b"/file/below")
    assert not walk.has_folder(here + b"/missing")
    for sick in (b"/loop", b"/" + b"n" * 300):
        with pytest.raises(OSError):
            walk.has_folder(here + sick)
