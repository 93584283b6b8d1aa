# SPDX-License-Identifier: GPL-2.0-or-later
"""The scraper's codes and what each asks of its reader. Pure.

A code is a label in the counters, so none is made at run time: REFUSALS and DROPS are all there are.
"""

from guard.base import faults

# Why a datagram became no record. PeerFault.
REFUSALS = {
    "foreign-uid": "sent by a user who is neither root nor SlurmUser; look who can reach the socket",
    "truncated": "longer than the receive buffer, so its end is lost; the buffer has been enlarged for the next",
    "not-utf8": "not UTF-8; relay_io never sends that, so look who else writes to the socket",
    "not-json": "not one JSON object; relay_io never sends that, so look who else writes to the socket",
    "unknown-version": "of another schema version than 1; a newer scraper is needed for this Slurm",
    "unknown-type": "of a type that schema version 1 does not have",
    "bad-field": "a field is missing or has another type than schema version 1 says",
    "reserved-field": "already carries the field `scraper`, which is ours",
}
# Why an item did not reach its sink.
DROPS = {
    "spool-full": "the sink was away for longer than the spool holds; raise spool_max_mbytes or mend the sink",
    "refused": "the sink refused this one for good; it is kept in the quarantine file of the sink",
    "too-large": "the sink refused this one as too large; raise the limit there or lower max_log_kbytes",
    "damaged": "it was no record any more when it was read from the spool; look after the spool's disk",
}
# What the site must act on. SiteFault and NodeFault.
SENTENCES = {
    "config-bad": "the configuration cannot be used",
    "config-unreadable": "the configuration cannot be read",
    "tomli-missing": "this Python has no tomllib (3.11 and later have it); install the package tomli,"
    " or use --to file:DIR",
    "urllib3-missing": "this sink sends by HTTP and needs the package urllib3; pip install 'eessi-arch-guard[scraper]'",
    "kafka-missing": "this sink needs the package confluent-kafka; pip install 'eessi-arch-guard[kafka]'",
    "socket-taken": "another scraper is bound to the socket; stop it first",
    "socket-unsafe": "Slurm would refuse this socket; its folder must belong to root or SlurmUser"
    " and be writable by nobody else",
    "socket-failed": "the socket cannot be bound",
    "no-such-user": "there is no such user on this node",
    "spool-failed": "the spool folder cannot be used",
    "sink-failed": "the sink could not be reached",
}


def sentence(fault: faults.Fault) -> str:
    """What happened and what to do, as one sentence for a person."""
    text = SENTENCES.get(fault.code) or REFUSALS.get(fault.code) or DROPS[fault.code]
    return f"{text}: {fault.detail}" if fault.detail else text
