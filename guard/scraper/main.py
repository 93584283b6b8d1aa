# SPDX-License-Identifier: GPL-2.0-or-later
"""`relay scrape`: options -> configuration -> the keeper. The outermost door."""

import argparse
import sys

from guard.base.faults import Fault, SiteFault
from guard.scraper import extras, reasons
from guard.scraper.limits import LOCK_WAIT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(arguments: "list[str]", environ: "dict[bytes, bytes]") -> int:
    """Runs the scraper until it is told to stop. Gives: 0, 1 for a fault, 2 for wrong use."""
    extras.make_reachable()
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    from guard.scraper import config

    try:
        settings = config.parse(_tables(options))
        if options.check:
            from guard.scraper.sinks import make

            for sink in settings.sinks:
                make.require(sink)
            names = ", ".join(f"{sink.name} ({sink.kind})" for sink in settings.sinks)
            sys.stdout.write(f"the configuration is good: {settings.socket} -> {settings.spool} -> {names}\n")
            return 0
        from guard.scraper import keeper

        return keeper.start(settings, environ, LOCK_WAIT_S)()
    except Fault as fault:
        sys.stderr.write(f"eessi-arch-guard relay scrape: {reasons.sentence(fault)}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eessi-arch-guard relay scrape",
        description="Reads relay_io's socket of this node and hands every record on: to files, syslog, journald, Loki,"
        " Elasticsearch or OpenSearch, an OpenTelemetry collector, Kafka.",
        epilog="SIGTERM ends it in order, SIGHUP makes it open its files anew, SIGUSR1 shows the counters.",
    )
    parser.add_argument("--config", metavar="FILE", help="settings in TOML, see docs/scraper.md")
    parser.add_argument("--to", metavar="file:DIR", action="append", default=[], help="a sink, without any file")
    parser.add_argument("--socket", metavar="PATH", help="the socket= of RelayIOParameters")
    parser.add_argument("--spool", metavar="DIR", help="where lines wait for their sinks; a tmpfs makes it memory")
    parser.add_argument("--metrics", metavar="FILE", help="counters for node_exporter's textfile collector")
    parser.add_argument("--check", action="store_true", help="only say whether the configuration is good")
    return parser


def _tables(options: argparse.Namespace) -> "dict[str, Any]":
    """The file's tables, with what the command line says in their place."""
    from guard.scraper import config

    tables = config.read(options.config) if options.config else {}
    for target in options.to:
        kind, _, place = target.partition(":")
        if kind != "file" or not place.startswith("/"):
            raise SiteFault("config-bad", f"--to {target}: must be file:/DIR; other sinks need --config")
        number = len(tables.setdefault("sink", []))
        tables["sink"].append({"kind": "file", "name": f"file{number or ''}", "directory": place})
        if not options.config:
            tables.setdefault("spool", place + "/.spool")
    for key, value in (("socket", options.socket), ("spool", options.spool), ("metrics_file", options.metrics)):
        if value:
            tables[key] = value
    return tables
