# SPDX-License-Identifier: GPL-2.0-or-later
"""Unit files, dashboard and alerts, judged by systemd-analyze and promtool."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from guard.scraper.config import KEYS
from guard.scraper.counters import Counters
from tests.conftest import need_program

ROOT = Path(__file__).parents[2]
NAMES = {f"eessi_relay_scrape_{name}" for name, _ in Counters(["x"]).rows}


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in (ROOT / "build" / "systemd").glob("eessi-relay-scrape.*"):
        text = path.read_text().replace("/usr/local/bin/eessi-arch-guard", "/bin/true")
        (tmp_path / path.name).write_text(text)
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        [need_program("systemd-analyze"), "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    complaints = [text for text in done.stderr.splitlines() if "eessi-relay" in text]
    assert (done.returncode, complaints) == (0, [])
    assert len(units) == 2
    service = (tmp_path / "eessi-relay-scrape.service").read_text()
    assert "\nStartLimitIntervalSec=0\n" in service.partition("[Service]")[0]
    assert f"\nStateDirectory={Path(KEYS['spool'][1]).name}\n" in service


def test_the_sysctl_file_sets_the_one_value() -> None:
    path = ROOT / "build" / "sysctl" / "90-eessi-relay.conf"
    settings = [text for text in path.read_text().splitlines() if text and not text.startswith("#")]
    assert settings == ["net.unix.max_dgram_qlen = 512"]


def expressions(node: Any) -> "list[str]":
    """Every PromQL expression of the dashboard."""
    if isinstance(node, dict):
        found = [node["expr"]] if isinstance(node.get("expr"), str) else []
        return found + [text for value in node.values() for text in expressions(value)]
    return [text for value in node for text in expressions(value)] if isinstance(node, list) else []


def judged(rules: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules)
    done = subprocess.run(
        [need_program("promtool"), "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    used = set(re.findall(r"eessi_relay_scrape_\w+", rules))
    assert used and used <= NAMES


def test_the_dashboard_asks_only_for_what_there_is_in_promql_that_promtool_takes(tmp_path: Path) -> None:
    board = json.loads((ROOT / "build" / "grafana" / "relay-scrape.json").read_text())
    asked = expressions(board["panels"])
    assert len(asked) >= len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    rules = [{"record": f"r:{number}", "expr": text.replace("$instance", ".*")} for number, text in enumerate(asked)]
    # JSON is YAML too.
    judged(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), tmp_path)
    seen = set(re.findall(r"eessi_relay_scrape_\w+", " ".join(asked)))
    assert {name for name in NAMES if name.endswith(("refused_records_total", "dropped_lines_total"))} <= seen


def test_the_alerts_of_the_documentation_are_good_rules(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "scraper.md").read_text(encoding="utf-8")
    (rules,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    judged(rules, tmp_path)
