# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's numbers for a terminal: by rich where it is installed, else in plain columns."""

import sys
import time

from guard.base.message import one_line
from guard.report.limits import SHOWN_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # title, names of the columns, rows
    Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

_NS = 1_000_000_000


def show(result: "dict[str, Any]") -> None:
    """Writes the report to stdout."""
    try:
        import rich.console
        import rich.table
        import rich.text
    except ImportError:
        sys.stdout.write(plain(result))
        return
    console = rich.console.Console()
    console.print(headline(result), highlight=False, markup=False, soft_wrap=True)
    for title, names, rows in tables(result):
        table = rich.table.Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for number, name in enumerate(names):
            is_number = bool(rows) and all(row[number].replace(".", "").isdigit() for row in rows)
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(rich.text.Text(cell) for cell in row))  # no markup: it comes from job output
        console.print()
        console.print(table)


def plain(result: "dict[str, Any]") -> str:
    """The report as plain text."""
    parts = [headline(result)]
    for title, names, rows in tables(result):
        widths = [max(len(row[number]) for row in (names, *rows)) for number in range(len(names))]
        parts.append("")
        parts.append(title)
        for row in (names, *rows):
            parts.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return "\n".join(parts) + "\n"


def headline(result: "dict[str, Any]") -> str:
    """The report in some sentences."""
    jobs = result["jobs"]
    losses = result["losses"]
    lines = [
        f"{jobs['relayed']} jobs on {jobs['nodes']} nodes, {result['records']} records,"
        f" {_moment(result['first_ns'])} to {_moment(result['last_ns'])}",
        f"{jobs['affected']} jobs ({100 * jobs['share']:.2f} %) came with modules for another target:"
        f" {jobs['reloaded']} were reloaded, {jobs['failed']} could not be",
    ]
    if jobs["unended"]:
        lines.append(f"{jobs['unended']} starts of a job on a node have no end (running, or the node is gone)")
    if losses["reports"] or losses["doubtful_lines"]:
        lines.append(
            f"at least {losses['records_at_least']} records were dropped on {losses['nodes']} nodes"
            f" ({losses['reports']} reports), {losses['doubtful_lines']} lines are doubtful"
        )
    if result["bad_lines"]:
        lines.append(f"{result['bad_lines']} lines are no records and were left out")
    return "\n".join(lines)


def tables(result: "dict[str, Any]") -> "list[Table]":
    """Title, columns and rows of every table that has rows; what comes from job output is made printable."""
    found = [
        _table("Reloaded", result["reloads"], ("was", "now", "jobs", "nodes", "lines")),
        _table("Not reloaded", result["failures"], ("was", "reason", "jobs", "nodes", "lines")),
        _table("Skipped", result["skipped"], ("reason", "jobs", "nodes", "lines")),
        _table("Nodes with most failures", result["worst_nodes"], ("key", "failed_jobs", "reloaded_jobs", "lines")),
    ]
    if result["by"] not in ("target", "node"):
        names = ("key", "failed_jobs", "reloaded_jobs", "skipped_jobs", "lines")
        found.insert(3, _table(f"By {result['by']}", result["groups"], names))
    return [table for table in found if table[2]]


def _table(title: str, rows: "list[dict[str, Any]]", names: "tuple[str, ...]") -> "Table":
    more = f" (first {SHOWN_COUNT} of {len(rows)}, --json has all)" if len(rows) > SHOWN_COUNT else ""
    shown = [tuple(one_line(str(row[name])) for name in names) for row in rows[:SHOWN_COUNT]]
    return title + more, tuple(name.replace("_", " ") for name in names), shown


def _moment(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_ns // _NS)) if time_ns else "-"
