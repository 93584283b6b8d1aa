# SPDX-License-Identifier: GPL-2.0-or-later
"""What a reload changed, less the variables that are nobody's business but the shell's and Slurm's. Pure."""

# Seed guard-emits, "Variables the delta never includes", in its order. TMPDIR is made by slurmstepd after the prolog.
EXCLUDED = frozenset(
    b"""_ SHLVL PWD OLDPWD TMPDIR BASH_ENV ENV SHELLOPTS BASHOPTS BASH_XTRACEFD PS4 BASH_ARGC BASH_ARGV BASH_LINENO
    BASH_SOURCE BASH_VERSINFO BASH_VERSION DIRSTACK EPOCHREALTIME EPOCHSECONDS FUNCNAME GROUPS HOSTNAME HOSTTYPE IFS
    MACHTYPE OPTERR OPTIND OSTYPE PIPESTATUS PPID""".split()
)
EXCLUDED_PREFIXES = (b"BASH_FUNC_", b"SLURM_")


def between(before: "dict[bytes, bytes]", after: "dict[bytes, bytes]") -> "list[tuple[bytes, bytes | None]]":
    """(name, new value) of each variable that differs, (name, None) of each that is gone; by name, sets first."""
    sets = [(name, value) for name, value in sorted(after.items()) if before.get(name) != value]
    gone = [(name, None) for name in sorted(before) if name not in after]
    return [change for change in (*sets, *gone) if may_change(change[0])]


def may_change(name: bytes) -> bool:
    """Whether the guard may set or unset a variable of this name at all."""
    return name not in EXCLUDED and not name.startswith(EXCLUDED_PREFIXES)
