# SPDX-License-Identifier: GPL-2.0-or-later
"""What the task arrived with: is EESSI loaded, may the guard act, which modules, for which targets. Pure.

An environment is a dict of bytes to bytes throughout: it need not be UTF-8 (design section 3).
"""

from guard.base.limits import DEADLINE_DEFAULT_S, DEADLINE_MAX_S, DEADLINE_MIN_S, MODULE_NAME_MAX_BYTES

_OFF = (b"0", b"off", b"no", b"false")
_DIGITS = b"0123456789"
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME_START = _LETTERS + _DIGITS + b"_"
_VERSION_START = _NAME_START + b"."
_NAME_REST = _NAME_START + b".+-"


class Target:
    """What software is built for. cpu: as `x86_64/amd/zen4`; accel: as `accel/nvidia/cc80`, None for none."""

    __slots__ = ("accel", "cpu")

    def __init__(self, cpu: bytes, accel: "bytes | None") -> None:
        self.cpu = cpu
        self.accel = accel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and (self.cpu, self.accel) == (other.cpu, other.accel)

    def __hash__(self) -> int:
        return hash((self.cpu, self.accel))

    def __repr__(self) -> str:
        return f"Target({self.cpu!r}, {self.accel!r})"


def skip_reason(environ: "dict[bytes, bytes]") -> "str | None":
    """Why there is nothing to do here, or None. Design section 3."""
    if not environ.get(b"EESSI_SOFTWARE_SUBDIR"):
        return "EESSI is not loaded"
    if environ.get(b"EESSI_ARCH_GUARD", b"").lower() in _OFF:
        return "switched off by EESSI_ARCH_GUARD"
    return None


def loaded_target(environ: "dict[bytes, bytes]") -> Target:
    """The target that the loaded modules were built for. Only where skip_reason gave None."""
    return Target(environ[b"EESSI_SOFTWARE_SUBDIR"], environ.get(b"EESSI_ACCELERATOR_TARGET") or None)


def module_names(environ: "dict[bytes, bytes]") -> "tuple[list[bytes], str]":
    """The loaded modules in their order, and why they cannot be reloaded: empty when they can.

    The grammar is design section 3; the seed's guard-design, "What runs" 4, asks for exactly one EESSI/<version>.
    Lmod itself writes no empty entries; one that is there (a hand-made list) names nothing and is passed over.
    """
    names = [name for name in environ.get(b"LOADEDMODULES", b"").split(b":") if name]
    for name in names:
        if not is_module_name(name):
            return names, f"this is no module name: {name[:80].decode('ascii', 'backslashreplace')!r}"
    found = [name for name in names if name.startswith(b"EESSI/")]
    if not found:
        return names, "no EESSI module is loaded; instead of sourcing init/bash use: module load EESSI/<version>"
    if len(found) > 1:
        return names, "more than one EESSI module is loaded: " + b" ".join(found).decode("ascii")
    return names, ""


def is_module_name(name: bytes) -> bool:
    """Whether Lmod can be given name as it is: nothing in it is an option, a path or shell syntax."""
    if len(name) > MODULE_NAME_MAX_BYTES:
        return False
    start = _NAME_START
    for part in name.split(b"/"):
        if not part or part[0] not in start or part.strip(_NAME_REST):
            return False
        start = _VERSION_START
    return True


def deadline_s(environ: "dict[bytes, bytes]", default_s: float = DEADLINE_DEFAULT_S) -> "tuple[float, str]":
    """The deadline in seconds, and a remark for the verbose line when the variable could not be used."""
    text = environ.get(b"EESSI_ARCH_GUARD_TIMEOUT")
    if text is None:
        return default_s, ""
    seconds = seconds_from(text)
    if seconds is None:
        return default_s, f"EESSI_ARCH_GUARD_TIMEOUT is not a number from 1 to 600, {default_s:g} is used"
    return seconds, ""


def seconds_from(text: bytes) -> "float | None":
    """A deadline from its digits, with or without decimals; None outside the grammar or DEADLINE_MIN_S..MAX_S."""
    whole, _, part = text.partition(b".")
    if not whole or whole.strip(_DIGITS) or part.strip(_DIGITS) or len(text) > 16 or text.endswith(b"."):
        return None
    seconds = float(text)
    return seconds if DEADLINE_MIN_S <= seconds <= DEADLINE_MAX_S else None
