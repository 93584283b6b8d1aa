# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong: the type says who must act, the code names the case. Pure.

SENTENCES is the one table from code to what the reader should do; a test holds that no code lacks one.
The codes of the guard are the tokens of EESSI_ARCH_GUARD_FAILED (seed guard-emits, "Markers"), and one more,
`modules-missing`, whose marker shows the two targets instead.
"""


class Fault(Exception):
    """A known case. code is a key of SENTENCES; detail is for a person, may hold any text, may be empty."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    def sentence(self) -> str:
        """What happened and what to do, as one sentence for a person."""
        text = SENTENCES[self.code]
        return f"{text} ({self.detail})" if self.detail else text


class JobFault(Fault):
    """The job's environment asks for something that cannot be: the job's user must act."""


class SiteFault(Fault):
    """Installation, configuration or repository content is wrong: the site must act."""


class NodeFault(Fault):
    """Time ran out, a child died, a mount is sick: the node must be looked at."""


class PeerFault(Fault):
    """A datagram or frame that cannot be taken: count it by code, nothing else."""


SENTENCES = {
    "no-software-dir": "EESSI has no software folder that this node can use;"
    " the site should check the CVMFS mount and EESSI_PREFIX",
    "archdetect-failed": "EESSI's detector gave no usable answer;"
    " the site should run eessi_archdetect.sh -a cpupath on this node",
    "unsafe-module-name": "the loaded modules cannot be named safely; load exactly one EESSI/<version>"
    " and modules whose names use letters, digits and _ . + - /",
    "unsafe-environment": 'a new value cannot be handed over; use eval "$(eessi-arch-guard --shell)"'
    " in the batch script",
    "lmod-unavailable": "LMOD_CMD does not name a program on this node; the site should install Lmod there",
    "restore-failed": "the modules could not be reloaded; load them in the job script on this node",
    "modules-missing": "not every module is there for this node's target; load what exists in the job script",
    "timeout": "the deadline passed; raise EESSI_ARCH_GUARD_TIMEOUT or have the site look at CVMFS on this node",
    "terminated": "the guard was told to stop before it had finished",
}
