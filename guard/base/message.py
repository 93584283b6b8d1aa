# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard's one line to people, one grammar for all who write or read it. Pure.

    eessi-arch-guard: reloaded 34 modules on n1: x86_64/amd/zen4->x86_64/amd/zen3
    eessi-arch-guard: NOT reloaded on n1: x86_64/amd/zen4->timeout: the deadline passed; ...
    eessi-arch-guard: skipped, ValueError: ...                      (seed guard-emits, "Deadline")
    eessi-arch-guard: nothing to do, target already matches this node

No line begins with a directive's name (`print`, `export`, `unset`): from Slurm 22.05.1 on, a prolog's stderr is read
as directives too (run_command.c).
"""

PREFIX = "eessi-arch-guard: "


def reloaded(count: int, node: str, marker: str) -> str:
    """The line after a reload that was handed to Slurm. marker: the text of EESSI_ARCH_GUARD_RELOADED."""
    return one_line(f"{PREFIX}reloaded {count} modules on {node}: {marker}")


def failed(node: str, marker: str, sentence: str) -> str:
    """The line after a reload that could not be. marker: the text of EESSI_ARCH_GUARD_FAILED."""
    return one_line(f"{PREFIX}NOT reloaded on {node}: {marker}: {sentence}")


def skipped(reason: str) -> str:
    """The line when the guard could not do its work at all."""
    return one_line(f"{PREFIX}skipped, {reason}")


def nothing(reason: str) -> str:
    """The verbose line when there was nothing to do."""
    return one_line(f"{PREFIX}nothing to do, {reason}")


def one_line(text: str) -> str:
    """text with each character that is not printable as `?`."""
    return "".join(character if character.isprintable() else "?" for character in text)
