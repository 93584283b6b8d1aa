# SPDX-License-Identifier: GPL-2.0-or-later
import re
from pathlib import Path
from typing import Any

import pytest

from guard.base.faults import Fault, SiteFault
from guard.scraper import config
from guard.scraper.sinks import make

FILE: "dict[str, Any]" = {"kind": "file", "directory": "/d"}
DOCUMENT = Path(__file__).parents[2] / "docs" / "scraper.md"


def test_one_sink_is_enough() -> None:
    settings = config.parse({"sink": [FILE]})
    assert settings.socket == "/var/spool/slurmd/relay-io.sock"
    assert settings.spool_max_bytes == 1 << 30
    assert [(sink.name, sink.kind) for sink in settings.sinks] == [("file", "file")]
    assert settings.sinks[0].options["per"] == "day"
    assert 0 in settings.uids


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "no sink: records would go nowhere"),
        ({"sink": []}, "no sink"),
        ({"sink": [FILE], "sokcet": "/s"}, "sokcet is no setting"),
        ({"sink": [FILE], "socket": 7}, "socket must be a string"),
        ({"sink": [FILE], "socket": "s"}, "socket must be an absolute path"),
        ({"sink": [FILE], "spool_max_mbytes": True}, "spool_max_mbytes must be a whole number"),
        ({"sink": [FILE], "spool_max_mbytes": 0}, "spool_max_mbytes must be 1 or more"),
        ({"sink": [FILE], "join_unbuffered": 1}, "join_unbuffered must be true or false"),
        ({"sink": FILE}, "sink must be a list"),
        ({"sink": ["file"]}, "sink 1: must be a table"),
        ({"sink": [{"kind": "carrier-pigeon"}]}, "sink 1: kind must be one of bulk, file, journald, kafka, loki, otlp"),
        ({"sink": [FILE, FILE]}, "sink 2: the name file is taken"),
        ({"sink": [{**FILE, "name": "../x"}]}, "sink 1: name must be"),
        ({"sink": [{"kind": "file"}]}, "sink 1: directory is missing"),
        ({"sink": [{**FILE, "per": "week"}]}, 'sink 1: per must be "day" or "job"'),
        ({"sink": [{**FILE, "mode": "rw"}]}, "sink 1: mode must be octal"),
        ({"sink": [{"kind": "syslog", "to": "loghost"}]}, "sink 1: to must be tcp://HOST:PORT"),
        ({"sink": [{"kind": "kafka", "topic": "t"}]}, "sink 1: settings is missing"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tables: "dict[str, Any]", said: str) -> None:
    with pytest.raises(SiteFault) as caught:
        config.parse(tables)
    assert caught.value.code == "config-bad" and said in caught.value.detail


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(SiteFault) as caught:
        config.parse({"a": 1, "b": 2, "sink": [{"kind": "file", "c": 3}]})
    assert len(caught.value.detail.split("; ")) == 4, caught.value.detail


def test_a_user_that_is_not_there_is_said() -> None:
    with pytest.raises(SiteFault) as caught:
        config.parse({"sink": [FILE], "slurm_user": "no-such-user-here"})
    assert caught.value.code == "no-such-user"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("tcp://loghost:514", ("tcp", ("loghost", 514))),
        ("udp://[::1]:514", ("udp", ("::1", 514))),
        ("unix:/dev/log", ("unix", "/dev/log")),
        ("unix:dev/log", None),
        ("tcp://loghost", None),
        ("http://loghost:1", None),
        ("tcp://a:b:1", None),
    ],
)
def test_a_syslog_target(text: str, target: object) -> None:
    assert config.syslog_target(text) == target


def test_a_file_that_is_no_toml_is_said(tmp_path: Path) -> None:
    path = tmp_path / "scrape.toml"
    for content, code in ((b"x = [", "config-bad"), (b"\xff", "config-bad")):
        path.write_bytes(content)
        with pytest.raises(SiteFault) as caught:
            config.read(str(path))
        assert caught.value.code == code and str(path) in caught.value.detail
    with pytest.raises(SiteFault) as caught:
        config.read(str(tmp_path / "none"))
    assert caught.value.code == "config-unreadable"


def test_every_kind_of_sink_can_be_made(tmp_path: Path) -> None:
    least: dict[str, dict[str, Any]] = {
        "file": {"directory": str(tmp_path / "d")},
        "syslog": {"to": "tcp://127.0.0.1:1"},
        "bulk": {"url": "http://127.0.0.1:1", "index": "i"},
        "loki": {"url": "http://127.0.0.1:1"},
        "otlp": {"url": "http://127.0.0.1:1"},
        "journald": {},
        "kafka": {"topic": "t", "settings": {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}},
    }
    assert least.keys() == config.SINK_KEYS.keys()
    for kind, more in least.items():
        settings = config.parse({"sink": [{"kind": kind, **more}]})
        made = make.sink(settings.sinks[0], lambda _: None, {})
        made.idle()
        made.reopen()
        made.close()


def test_a_secret_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    table = {"kind": "loki", "url": "http://h", "token_file": str(tmp_path / "none")}
    with pytest.raises(Fault) as caught:
        make.sink(config.parse({"sink": [table]}).sinks[0], lambda _: None, {})
    assert caught.value.code == "config-unreadable"


def test_the_documentation_has_every_setting_and_its_examples_are_good(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    settings = set(config.KEYS)
    for keys in config.SINK_KEYS.values():
        settings |= keys.keys()
    assert {key for key in settings if f"`{key}`" not in text} == set()
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        (tmp_path / "x.toml").write_text(example)
        tables = config.read(str(tmp_path / "x.toml"))
        tables["slurm_user"] = "root"
        config.parse(tables)
