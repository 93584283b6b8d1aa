# SPDX-License-Identifier: GPL-2.0-or-later
import hashlib
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem, set_uid

from guard.arch import cache
from guard.arch.emit import Outcome
from guard.base import files

STEP = {
    b"SLURM_JOB_ID": b"42",
    b"SLURM_STEP_ID": b"3",
    b"SLURMD_NODENAME": b"n1",
    b"EESSI_SOFTWARE_SUBDIR": b"x86_64/amd/zen4",
    b"LOADEDMODULES": b"EESSI/2023.06",
    b"PATH": b"/usr/bin",
}


def test_the_name_is_the_seeds_with_its_digest() -> None:
    joined = b"\0".join([b"x86_64/amd/zen4", b"", b"EESSI/2023.06", b"", b"", b"", b"/usr/bin"])
    digest = hashlib.sha256(joined).hexdigest()[:16]
    expected = f"/tmp/.eessi-arch-guard.{os.getuid()}.n1.42.3.prolog.{digest}"
    assert cache.path(STEP, "prolog") == expected.encode()


def test_there_is_no_file_outside_of_slurm() -> None:
    assert cache.path({**STEP, b"SLURM_JOB_ID": b""}, "prolog") is None
    assert cache.path({name: value for name, value in STEP.items() if name != b"SLURM_JOB_ID"}, "prolog") is None


def test_without_a_step_id_the_step_is_batch() -> None:
    path = cache.path({name: value for name, value in STEP.items() if name != b"SLURM_STEP_ID"}, "shell")
    assert path
    assert b".n1.42.batch.shell." in path


PARTS = [
    (b"n1", b"n1"),
    (b"n" * 64, b"n" * 64),
    (b"A-b_9.c", b"A-b_9.c"),
    *((odd, hashlib.sha256(odd).hexdigest()[:16].encode()) for odd in (b"", b"n" * 65, b"a/b", b"..\n", b"\xff")),
]


@pytest.mark.parametrize(("text", "part"), PARTS)
def test_a_part_is_as_is_or_a_prefix_of_its_hash(text: bytes, part: bytes) -> None:
    assert cache.part(text) == part


def test_no_environment_leads_out_of_the_folder() -> None:
    odd = {**STEP, b"SLURM_JOB_ID": b"../../x", b"SLURM_STEP_ID": b"a/b", b"SLURMD_NODENAME": b"\n"}
    path = cache.path(odd, "prolog")
    assert path
    assert re.fullmatch(rb"/tmp/\.eessi-arch-guard\.[0-9]+(\.[0-9a-f]{16}){3}\.prolog\.[0-9a-f]{16}", path)


@pytest.mark.parametrize("name", cache.KEY)
def test_steps_that_differ_in_a_key_variable_do_not_share(name: bytes) -> None:
    assert cache.path({**STEP, name: b"other"}, "prolog") != cache.path(STEP, "prolog")


@pytest.mark.parametrize("name", [b"EESSI_ARCH_GUARD", b"SLURM_LOCALID", b"SLURM_PROCID", b"HOME"])
def test_tasks_that_differ_in_anything_else_share(name: bytes) -> None:
    assert cache.path({**STEP, name: b"other"}, "prolog") == cache.path(STEP, "prolog")


def test_prolog_and_shell_do_not_share() -> None:
    assert cache.path(STEP, "prolog") != cache.path(STEP, "shell")


# The fall-back from TMPDIR to /tmp, on a fake file system.


@pytest.fixture
def disk(fs: FakeFilesystem) -> FakeFilesystem:
    fs.chmod("/tmp", 0o1777)
    set_uid(1000)
    fs.create_dir("/scratch", perm_bits=0o777)
    fs.create_dir("/closed", perm_bits=0o500)
    fs.create_file("/file")
    fs.create_symlink("/link", "/scratch")
    fs.create_symlink("/dangling", "/nowhere")
    return fs


FOLDERS = [
    (None, b"/tmp"),
    (b"", b"/tmp"),
    (b"relative", b"/tmp"),
    (b"./scratch", b"/tmp"),
    (b"/missing", b"/tmp"),
    (b"/file", b"/tmp"),
    (b"/file/below", b"/tmp"),
    (b"/dangling", b"/tmp"),
    (b"/closed", b"/tmp"),
    (b"/nul\0", b"/tmp"),
    (b"/scratch", b"/scratch"),
    (b"/scratch/", b"/scratch/"),
    (b"/link", b"/link"),
]


@pytest.mark.parametrize(("tmpdir", "folder"), FOLDERS)
def test_the_folder_is_tmpdir_when_it_can_be_used_else_tmp(
    disk: FakeFilesystem, tmpdir: "bytes | None", folder: bytes
) -> None:
    assert cache.folder({} if tmpdir is None else {b"TMPDIR": tmpdir}) == folder


def test_an_outcome_is_left_and_found_in_tmpdir_or_tmp(disk: FakeFilesystem) -> None:
    outcome = Outcome(b"export A=1\n", b"said", b"detail")
    for tmpdir, folder in ((b"/scratch", "/scratch"), (b"/missing", "/tmp")):
        path = cache.path({**STEP, b"TMPDIR": tmpdir}, "prolog")
        assert path
        assert cache.publish(path, outcome)
        found = cache.stored(path)
        assert found
        assert (found.directives, found.message, found.detail) == (b"export A=1\n", b"said", b"detail")
        assert os.path.basename(os.fsdecode(path)) in os.listdir(folder)


def test_an_outcome_is_not_left_where_it_cannot_be(disk: FakeFilesystem) -> None:
    assert not cache.publish(b"/missing/name", Outcome(b"", b"", b""))
    assert not cache.publish(b"/tmp/name", Outcome(b"x" * (8 << 20), b"", b""))
    assert os.listdir("/tmp") == []


def test_a_link_at_the_outcomes_place_is_not_read(disk: FakeFilesystem) -> None:
    path = cache.path(STEP, "prolog")
    assert path
    cache.publish(b"/scratch/x", Outcome(b"export EVIL=1\n", b"", b""))
    os.symlink("/scratch/x", os.fsdecode(path))
    with pytest.raises(files.Unusable):
        cache.stored(path)


OUTCOMES = st.builds(Outcome, st.binary(), st.binary(), st.binary())


@given(OUTCOMES, st.binary(min_size=1, max_size=20))
def test_what_is_packed_is_unpacked(outcome: Outcome, name: bytes) -> None:
    got = cache.unpack(cache.pack(outcome, name), name)
    assert got
    assert (got.directives, got.message, got.detail) == (outcome.directives, outcome.message, outcome.detail)


@given(OUTCOMES, st.data())
def test_a_cut_or_changed_file_is_refused_and_so_is_another_ones(outcome: Outcome, data: st.DataObject) -> None:
    packed = cache.pack(outcome, b"name")
    at = data.draw(st.integers(0, len(packed) - 1))
    assert cache.unpack(packed[:at], b"name") is None
    bit = 1 << data.draw(st.integers(0, 7))
    assert cache.unpack(packed[:at] + bytes([packed[at] ^ bit]) + packed[at + 1 :], b"name") is None
    assert cache.unpack(packed + b"x", b"name") is None
    assert cache.unpack(packed, b"other") is None


@given(st.binary())
def test_junk_is_refused(junk: bytes) -> None:
    assert cache.unpack(junk, b"name") is None
