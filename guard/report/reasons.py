# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's codes and what each asks of its reader. Pure."""

from guard.base import faults

SENTENCES = {
    "unreadable": "a file cannot be read",
    "zstandard-missing": "this file is zstd and needs the package zstandard; pip install 'eessi-arch-guard[report]'",
    "duckdb-missing": "--engine duckdb needs the package duckdb; pip install 'eessi-arch-guard[report]'",
    "duckdb-failed": "DuckDB could not count; the plain engine reads the same files",
    "bad-since": "--since must be a date like 2026-08-01 or 2026-08-01T12:00 (UTC), or an age like 36h or 7d",
    "unwritable": "the report cannot be written",
}


def sentence(fault: faults.Fault) -> str:
    """What happened and what to do, as one sentence for a person."""
    return f"{SENTENCES[fault.code]}: {fault.detail}" if fault.detail else SENTENCES[fault.code]
