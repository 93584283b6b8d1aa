# SPDX-License-Identifier: GPL-2.0-or-later
"""A sink from its part of the configuration; what a sink needs is imported only when it is chosen."""

import base64
import importlib
import sys

from guard.base.faults import SiteFault
from guard.scraper import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guard.scraper.sinks.http import Poster
    from guard.scraper.sinks.verdict import Sink

_BY_HTTP = ("loki", "bulk", "otlp")


def require(settings: "config.SinkConfig") -> None:
    """Raises: SiteFault - this Python does not have the package that the sink of settings needs."""
    where = f"sink {settings.name}; {sys.executable} does not have it"
    if settings.kind in _BY_HTTP and not _has("urllib3"):
        raise SiteFault("urllib3-missing", where)
    if settings.kind == "kafka" and not _has("confluent_kafka"):
        raise SiteFault("kafka-missing", where)


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def sink(
    settings: "config.SinkConfig", keep: "Callable[[dict[str, object]], None]", kept: "dict[str, object]"
) -> "Sink":
    """The sink of settings.

    Takes: keep - keeps a note beside the sink's cursor; kept - the note that was found there.
    Raises: SiteFault - an extra is missing, or a file that is named cannot be read; OSError - no folder can be made.
    """
    require(settings)
    options = settings.options
    if settings.kind == "file":
        from guard.scraper.sinks.file import FileSink

        return FileSink(
            options["directory"],
            options["per"],
            options["max_mbytes"] << 20,
            options["max_age_seconds"],
            options["keep_days"],
            int(options["mode"], 8),
            keep,
            kept,
        )
    if settings.kind == "syslog":
        from guard.scraper.sinks.syslog import SyslogSink

        target = config.syslog_target(options["to"])
        if target is None:
            raise SiteFault("config-bad", options["to"])
        return SyslogSink(target[0], target[1], options["facility"], options["app"])
    if settings.kind == "journald":
        from guard.scraper.sinks.journald import JournaldSink

        return JournaldSink(options["socket"], options["identifier"])
    if settings.kind == "kafka":
        from guard.scraper.sinks.kafka import KafkaSink

        return KafkaSink(options["settings"], options["topic"])
    if settings.kind == "loki":
        from guard.scraper.sinks.loki import LokiSink

        poster = _poster(options, "/loki/api/v1/push")
        return LokiSink(poster, tuple(options["labels"]), options["fixed_labels"])
    if settings.kind == "bulk":
        from guard.scraper.sinks.bulk import BulkSink

        return BulkSink(_poster(options, "/_bulk"), options["index"])
    from guard.scraper.sinks.otlp import OtlpSink

    return OtlpSink(_poster(options, "/v1/logs"))


def _poster(options: "dict[str, Any]", path: str) -> "Poster":
    """A poster to the url, to which the API's path is added unless it is there; secrets come from files of their own,
    since a configuration is read by more people than they are meant for."""
    from guard.scraper.sinks.http import Poster

    url = options["url"].rstrip("/")
    headers = {str(name): str(value) for name, value in options["headers"].items()}
    if options["token_file"]:
        headers["Authorization"] = f"Bearer {_secret(options['token_file'])}"
    elif options["password_file"]:
        pair = f"{options['user']}:{_secret(options['password_file'])}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
    return Poster(url if url.endswith(path) else url + path, headers, options["ca_file"] or None)


def _secret(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SiteFault("config-unreadable", f"{path}: {error}")
