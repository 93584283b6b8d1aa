# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay report`: files -> numbers -> table, JSON or page. The outermost door."""

import argparse
import datetime
import json
import os
import re
import sys
import time

from guard.base.faults import Fault, NodeFault, SiteFault
from guard.report import reasons
from guard.scraper import extras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AGE = re.compile(r"(\d{1,5})([hd])\Z")
_UNIT_S = {"h": 3600, "d": 86400}
_NS = 1_000_000_000


def main(arguments: "list[str]", _environ: "dict[bytes, bytes]") -> int:
    """Makes one report. Gives: 0, 1 for a fault, 2 for wrong use."""
    extras.make_reachable()
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        result = _counted(options, since_ns(options.since, time.time_ns()))
        if options.html:
            from guard.report import page

            _write(options.html, page.render(result, time.time_ns()))
        elif options.json:
            sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
        else:
            from guard.report import table

            table.show(result)
        return 0
    except Fault as fault:
        sys.stderr.write(f"eessi-arch-guard relay report: {reasons.sentence(fault)}\n")
        return 1
    except BrokenPipeError:
        # `| head` has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def since_ns(text: str, now_ns: int) -> int:
    """The first time that counts, nanoseconds since the epoch: from a date, a date with a time, both UTC, or an age.

    Raises: SiteFault(bad-since).
    """
    if not text:
        return 0
    age = _AGE.match(text)
    if age:
        return now_ns - int(age[1]) * _UNIT_S[age[2]] * _NS
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise SiteFault("bad-since", text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return int(moment.timestamp()) * _NS


def _counted(options: argparse.Namespace, first_ns: int) -> "dict[str, Any]":
    if options.engine == "duckdb":
        from guard.report import duck

        return duck.result(options.files, first_ns, options.by)
    from guard.report import gather, tally

    counts = tally.Tally(first_ns, options.by)
    for path in options.files:
        for line in gather.lines(path):
            counts.add(line)
    return counts.result()


def _write(path: str, text: str) -> None:
    try:
        # Beside it and renamed: a page on a web server is never half of one.
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)
    except OSError as error:
        raise NodeFault("unwritable", f"{path}: {error.strerror}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eessi-arch-guard relay report",
        description="What the guard did across the fleet, counted from the files that `relay scrape` wrote.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="NDJSON, plain, gzip or zstd; - for stdin")
    parser.add_argument("--since", default="", help="2026-08-01, 2026-08-01T12:00 (UTC), 36h or 7d")
    parser.add_argument("--by", default="target", choices=("target", "reason", "node", "user", "day"))
    parser.add_argument("--engine", default="plain", choices=("plain", "duckdb"), help="duckdb: for more than memory")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all numbers as JSON")
    form.add_argument("--html", metavar="FILE", help="one page that needs no network")
    return parser
