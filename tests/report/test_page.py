# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTML page, opened in headless Chromium at two widths."""

import html
import html.parser
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guard.base import message
from guard.report import page, tally
from tests.conftest import need_program
from tests.report.fleet import Fleet
from tests.scraper import records

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
]
HOSTILE = '<script>alert(1)</script><img src="http://evil/x" onerror=alert(2)>&"\'\u202e\x1b'


def rendered(what: "list[Any]", by: str = "user") -> str:
    counts = tally.Tally(0, by)
    for fields in what:
        counts.add(fields.encode("utf-8") if isinstance(fields, str) else records.raw(fields))
    return page.render(counts.result(), records.TIME_NS)


class Reader(html.parser.HTMLParser):
    """Refuses what is not closed in its order; keeps tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href", "onerror", "onload") and "url(" not in (value or "")
        if tag not in ("meta", "br", "wbr", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line",):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def hostile() -> "list[Any]":
    return [
        records.log(message.reloaded(3, "n1", f"{HOSTILE}->a/b") + "\n", user_name=HOSTILE, node=HOSTILE),
        records.log(message.skipped(HOSTILE) + "\n", user_name=HOSTILE),
    ]


def test_the_page_stands_alone_and_is_well_formed() -> None:
    text = rendered(list(Fleet(20, 2000).lines()))
    reader = read(text)
    assert "script" not in reader.tags and "link" not in reader.tags and "img" not in reader.tags
    assert not re.search(r"https?://", text)
    assert "default-src 'none'" in text and 'name="viewport"' in text


def test_what_a_job_says_stays_text() -> None:
    reader = read(rendered(hostile()))
    assert "script" not in reader.tags and "img" not in reader.tags
    assert "<script>alert(1)</script>" in reader.text
    assert "\u202e" not in reader.text and "\x1b" not in reader.text


def test_a_fleet_without_a_word_of_the_guard_has_a_page() -> None:
    assert "0.00 %" in read(rendered([records.log("x\n")])).text
    assert "- to - UTC, 0 records" in read(rendered([])).text


def test_a_reasons_advice_stands_once() -> None:
    text = rendered(list(Fleet(20, 4000).lines()))
    assert text.count("not every module is there for this node") == 1


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (["2026-08-01"], 1),
        (["2026-02-27", "2026-03-02"], 4),
        (["2000-01-01", "2026-01-01"], 2),
    ],
)
def test_days_without_a_word_are_gaps(days: "list[str]", expected: int) -> None:
    assert len(page._calendar(days)) == expected


@pytest.mark.parametrize(("number", "top"), [(1, 2), (2, 2), (3, 4), (5, 10), (11, 20), (1500, 2000), (4001, 10000)])
def test_the_axis_ends_at_a_round_number(number: int, top: int) -> None:
    assert page._round_up(number) == top


# Chromium makes no window as narrow as a phone, but a frame can be: media queries and layout are the frame's own.
MEASURE = """<!doctype html><meta charset="utf-8"><body><iframe width="390" height="800" srcdoc="{page}"></iframe>
<iframe width="1280" height="800" srcdoc="{page}"></iframe><p></p><script>onload = () => {
  document.querySelector("p").textContent = "widths " + [...document.querySelectorAll("iframe")].map(
    (frame) => frame.contentWindow.innerWidth + ":" + frame.contentDocument.documentElement.scrollWidth).join(" ")
}</script>"""


@pytest.mark.parametrize("what", ["fleet", "hostile"])
def test_nothing_is_wider_than_a_phone_or_a_laptop(what: str, tmp_path: Path) -> None:
    chromium = need_program("chromium")
    text = rendered(list(Fleet(20, 2000).lines()) if what == "fleet" else hostile())
    (tmp_path / "page.html").write_text(MEASURE.replace("{page}", html.escape(text)), encoding="utf-8")
    done = subprocess.run(
        [chromium, *_FLAGS, f"--user-data-dir={tmp_path}/profile", "--dump-dom", f"file://{tmp_path}/page.html"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "widths 390:390 1280:1280" in done.stdout, done.stdout[-300:] + done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("what", ["fleet", "hostile"])
def test_chromium_shows_it_without_a_complaint(width: int, what: str, tmp_path: Path) -> None:
    chromium = need_program("chromium")
    text = rendered(list(Fleet(20, 2000).lines()) if what == "fleet" else hostile())
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            chromium,
            *_FLAGS,
            f"--user-data-dir={tmp_path}/profile",
            f"--window-size={width},2000",
            f"--screenshot={tmp_path}/page.png",
            f"file://{tmp_path}/page.html",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    data = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (width, 2000)
    assert len(data) > 20_000
