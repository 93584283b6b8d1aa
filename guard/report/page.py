# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's numbers as one HTML page that needs nothing but itself. Pure.

No script: a page that may be opened as root from a log folder shows job output as text and runs nothing (its own
Content-Security-Policy says so too). Bars are boxes with a width, the days an SVG.
"""

import html
import time

from guard.base import faults
from guard.base.message import one_line
from guard.report.limits import SHOWN_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NS = 1_000_000_000
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --paper: #ffffff; --card: #f5f7fa;
  --good: #2f6fb3; --bad: #c2452d; --other: #a8871c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #333c48; --paper: #14181e;
  --card: #1d232b; --good: #6aa5e0; --bad: #ef7b63; --other: #d9b544; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
p { margin: .3rem 0 .8rem; } .soft { color: var(--soft); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.plot { overflow-x: auto; } svg { display: block; width: 100%; min-width: 20rem; height: auto; }
svg text { fill: var(--soft); font-size: 11px; } svg line { stroke: var(--line); }
.f-good { fill: var(--good); } .f-bad { fill: var(--bad); } .f-other { fill: var(--other); }
.key i { display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin: 0 .3rem 0 .9rem; }
.key i:first-child { margin-left: 0; } .b-good { background: var(--good); } .b-bad { background: var(--bad); }
.b-other { background: var(--other); }
ul.bars { list-style: none; margin: 0; padding: 0; }
ul.bars > li { padding: .55rem 0; border-top: 1px solid var(--line); }
.row { display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: baseline; justify-content: space-between; }
.row > :first-child { flex: 1 1 18rem; }
.note { order: 3; flex-basis: 100%; }
code { overflow-wrap: anywhere; }
code { font: .9em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
.row .n { white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: .5rem; margin-top: .35rem; background: var(--card); border-radius: .25rem;
  overflow: hidden; }
.arrow { color: var(--soft); padding: 0 .35em; }
@media (max-width: 40rem) { svg text { font-size: 21px; } }
@media print { body { max-width: none; } .card { border: 1px solid var(--line); } }
"""


def render(result: "dict[str, Any]", made_ns: int) -> str:
    """The page. made_ns: when the report was made, since the epoch."""
    jobs = result["jobs"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>EESSI modules on the wrong target</title><style>{_STYLE}</style></head><body>",
        "<h1>EESSI modules on the wrong target</h1>",
        f'<p class="soft">{_moment(result["first_ns"])} to {_moment(result["last_ns"])} UTC,'
        f" {result['records']:,} records. Made {_moment(made_ns)} UTC.</p>",
        '<div class="cards">',
        _card(f"{jobs['relayed']:,}", f"jobs relayed, on {jobs['nodes']:,} nodes"),
        _card(f"{100 * jobs['share']:.2f} %", f"of them came for another target: {jobs['affected']:,}"),
        _card(f"{jobs['reloaded']:,}", "jobs reloaded", "good"),
        _card(f"{jobs['failed']:,}", "jobs not reloaded", "bad"),
        "</div>",
    ]
    if result["days"]:
        parts.append(
            '<h2>Jobs a day</h2><p class="soft key"><i class="b-good"></i>reloaded<i class="b-bad"></i>not reloaded'
            '<i class="b-other"></i>skipped</p>'
        )
        parts.append(_days(result["days"]))
    parts.append(_list("From target to target", result["reloads"], "good", lambda row: _move(row["was"], row["now"])))
    told: set[str] = set()
    parts.append(_list("Not reloaded, and why", result["failures"], "bad", lambda row: _failure(row, told)))
    parts.append(_list("Skipped", result["skipped"], "other", lambda row: f"<code>{_text(row['reason'])}</code>"))
    parts.append(_kinds("Nodes to look at first", result["worst_nodes"]))
    if result["by"] not in ("target", "node", "day"):
        parts.append(_kinds(f"By {result['by']}", result["groups"]))
    parts.append(_trust(result))
    return "".join(parts) + "</body></html>\n"


def _trust(result: "dict[str, Any]") -> str:
    losses = result["losses"]
    items = (
        f"{result['jobs']['unended']:,} starts of a job on a node have no end: running still, or the node is gone.",
        f"{losses['reports']:,} drop reports from {losses['nodes']:,} nodes: at least {losses['records_at_least']:,}"
        f" records were lost; {losses['doubtful_lines']:,} lines are doubtful.",
        f"{result['bad_lines']:,} lines of the files are no records and were left out.",
        "The guard speaks through job output, so a job can claim what it likes.",
    )
    return "<h2>How far this can be trusted</h2><ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _card(number: str, text: str, tone: str = "") -> str:
    return f'<div class="card"><b class="{tone}">{number}</b><span>{text}</span></div>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _text(text: object) -> str:
    """Text of a job for the page."""
    return html.escape(one_line(str(text))).replace("/", "/<wbr>")


def _move(was: object, now: object) -> str:
    return f'<code>{_text(was)}<span class="arrow">&rarr;</span>{_text(now)}</code>'


def _failure(row: "dict[str, Any]", told: "set[str]") -> str:
    """Reason and target, and what to do about a reason where it comes first."""
    advice = "" if row["reason"] in told else faults.SENTENCES.get(row["reason"], "")
    told.add(row["reason"])
    more = f'<div class="soft note">{_text(advice)}</div>' if advice else ""
    return f"<span><code>{_text(row['reason'])}</code> from <code>{_text(row['was'])}</code></span>{more}"


def _list(title: str, rows: "list[dict[str, Any]]", tone: str, label: "Any") -> str:
    """Rows with a bar for their jobs."""
    if not rows:
        return ""
    most = max(row["jobs"] for row in rows) or 1
    items = [
        f'<li><div class="row">{label(row)}<span class="n">{_count(row["jobs"], "job")},'
        f" {_count(row['nodes'], 'node')}</span></div>"
        f'<div class="bar"><span class="b-{tone}" style="width:{100 * row["jobs"] / most:.1f}%"></span></div></li>'
        for row in rows[:SHOWN_COUNT]
    ]
    return f'<h2>{title}</h2><ul class="bars">{"".join(items)}</ul>{_rest(rows)}'


def _kinds(title: str, rows: "list[dict[str, Any]]") -> str:
    """Rows with a bar of two colours, for failed and reloaded jobs; rows that have neither are left out."""
    rows = [row for row in rows if row["failed_jobs"] + row["reloaded_jobs"]]
    if not rows:
        return ""
    most = max(row["failed_jobs"] + row["reloaded_jobs"] for row in rows)
    items = []
    for row in rows[:SHOWN_COUNT]:
        failed, reloaded = row["failed_jobs"], row["reloaded_jobs"]
        items.append(
            f'<li><div class="row"><code>{_text(row["key"])}</code><span class="n">'
            f'<span class="bad">{failed:,} not reloaded</span>,'
            f' <span class="good">{reloaded:,} reloaded</span></span></div>'
            f'<div class="bar"><span class="b-bad" style="width:{100 * failed / most:.1f}%"></span>'
            f'<span class="b-good" style="width:{100 * reloaded / most:.1f}%"></span></div></li>'
        )
    return f'<h2>{title}</h2><ul class="bars">{"".join(items)}</ul>{_rest(rows)}'


def _rest(rows: "list[dict[str, Any]]") -> str:
    left = len(rows) - SHOWN_COUNT
    return f'<p class="soft">and {left:,} more; --json has all.</p>' if left > 0 else ""


def _days(rows: "list[dict[str, Any]]") -> str:
    """Stacked columns, one a day, days without any kept as gaps."""
    days = _calendar([row["key"] for row in rows])
    by_day = {row["key"]: row for row in rows}
    most = max(row["failed_jobs"] + row["reloaded_jobs"] + row["skipped_jobs"] for row in rows) or 1
    top = _round_up(most)
    width, height, left, bottom, top_room = 720, 220, 72, 28, 18
    step = (width - left) / len(days)
    parts = [f'<div class="plot"><svg viewBox="0 0 {width} {height}" role="img" aria-label="jobs a day">']
    for part in (0, 0.5, 1):
        y = top_room + (height - bottom - top_room) * (1 - part)
        parts.append(f'<line x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part:,.0f}</text>')
    every = max(1, -(-len(days) // 8))
    for number, day in enumerate(days):
        x = left + number * step
        y = float(height - bottom)
        row = by_day.get(day, {})
        for name, tone in (("failed_jobs", "bad"), ("reloaded_jobs", "good"), ("skipped_jobs", "other")):
            size = (height - bottom - top_room) * row.get(name, 0) / top
            if size:
                y -= size
                parts.append(
                    f'<rect class="f-{tone}" x="{x + step * 0.12:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}"'
                    f' height="{size:.1f}"><title>{day}: {row[name]:,} {name.replace("_", " ")}</title></rect>'
                )
        if number % every == 0:
            at = x + step / 2
            parts.append(f'<text x="{at:.1f}" y="{height - 6}" text-anchor="middle">{day[5:]}</text>')
    parts.append("</svg></div>")
    return "".join(parts)


def _calendar(days: "list[str]") -> "list[str]":
    """Every day from the first to the last; only those that are there when they are years apart."""
    import datetime

    first, last = (datetime.date.fromisoformat(day) for day in (days[0], days[-1]))
    count = (last - first).days + 1
    if count > 400:
        return days
    return [(first + datetime.timedelta(number)).isoformat() for number in range(count)]


def _round_up(number: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 ... that halves to a whole number from 2 on."""
    size = 1
    while True:
        for part in (2, 4, 10):
            if size * part >= number:
                return size * part
        size *= 10


def _moment(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_ns // _NS)) if time_ns else "-"
