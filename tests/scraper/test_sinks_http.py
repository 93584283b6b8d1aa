# SPDX-License-Identifier: GPL-2.0-or-later
"""Loki, _bulk and OTLP: against strict stand-ins, which the vendors' own libraries have judged too."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opensearchpy
import opensearchpy.helpers
import pytest

from guard.base.faults import NodeFault
from guard.scraper import config
from guard.scraper.sinks import http, make
from tests.scraper import records
from tests.scraper.http_peer import Bulk, Loki, Otlp, Peer
from tests.scraper.lines import Bench, items, many

KINDS: "list[tuple[str, Any, dict[str, Any]]]" = [
    ("loki", Loki, {}),
    ("bulk", Bulk, {"index": "slurm-jobs"}),
    ("otlp", Otlp, {}),
]


def sink(kind: str, url: str, **more: Any) -> Any:
    tables = {"socket": "/s", "sink": [{"kind": kind, "url": url, **more}]}
    return make.sink(config.parse(tables).sinks[0], lambda _: None, {})


@pytest.fixture(params=KINDS, ids=[kind for kind, _, _ in KINDS])
def pair(request: pytest.FixtureRequest) -> "Iterator[tuple[Any, Peer]]":
    kind, peer, more = request.param
    with peer() as running:
        yield sink(kind, running.url, **more), running


def bodies(peer: Peer) -> "list[str]":
    """The text of what a peer has stored, in order."""
    if isinstance(peer, Loki):
        return [line for _, _, line, _ in sorted(peer.stored, key=lambda entry: int(entry[1]))]
    if isinstance(peer, Bulk):
        return [document["body"].rstrip("\n") for _, document in peer.stored]
    return [record.body.string_value for _, record in peer.stored]


LINES = [f"line {number}" for number in range(20)]


def test_a_batch_arrives_whole(pair: "tuple[Any, Peer]", tmp_path: Path) -> None:
    bench = Bench(tmp_path, pair[0], many(20))
    bench.run()
    assert bodies(pair[1]) == LINES
    assert len(pair[1].requests) == 1
    assert (bench.delivered(), bench.waited_s) == (20, [])


@pytest.mark.parametrize("status", [401, 404, 408, 429, 500, 502, 503, 504, 301])
def test_what_does_not_blame_the_content_is_tried_again(pair: "tuple[Any, Peer]", tmp_path: Path, status: int) -> None:
    pair[1].script = [("status", status, {}), ("status", status, {})]
    bench = Bench(tmp_path, pair[0], many(20))
    bench.run()
    assert bodies(pair[1]) == LINES
    assert bench.waited_s == [0.25, 0.5]
    assert f"HTTP {status}" in bench.told[0]


def test_retry_after_is_heeded(pair: "tuple[Any, Peer]", tmp_path: Path) -> None:
    pair[1].script = [("status", 429, {"Retry-After": "17"}), ("status", 503, {"Retry-After": "0"})]
    bench = Bench(tmp_path, pair[0], many(20))
    bench.run()
    assert bodies(pair[1]) == LINES
    assert bench.waited_s == [17.25, 0.5]


def test_a_cut_connection_is_tried_again(pair: "tuple[Any, Peer]", tmp_path: Path) -> None:
    pair[1].script = [("cut",), ("cut",)]
    bench = Bench(tmp_path, pair[0], many(20))
    bench.run()
    assert bodies(pair[1]) == LINES


def test_a_batch_that_is_too_large_goes_in_halves(pair: "tuple[Any, Peer]", tmp_path: Path) -> None:
    pair[1].body_max_bytes = 6000
    bench = Bench(tmp_path, pair[0], [*many(10), records.log("x" * 9000), *many(10, 10)])
    bench.run()
    assert sorted(bodies(pair[1])) == sorted(LINES)
    assert (bench.delivered(), bench.dropped("too-large")) == (20, 1)


def test_a_slow_peer_is_waited_for(pair: "tuple[Any, Peer]", tmp_path: Path) -> None:
    pair[1].script = [("slow", 0.3)]
    bench = Bench(tmp_path, pair[0], many(20))
    bench.run()
    assert (bodies(pair[1]), bench.waited_s) == (LINES, [])


def test_nobody_there_is_a_fault_that_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(NodeFault, match=r"127\.0\.0\.1:9"):
        sink("loki", "http://127.0.0.1:9").send(items(many(1)))


@pytest.mark.parametrize(("kind", "peer", "more"), KINDS[:2])
def test_a_success_that_got_lost_doubles_nothing(kind: str, peer: Any, more: "dict[str, Any]", tmp_path: Path) -> None:
    with peer() as running:
        running.script = [("lost",)]
        bench = Bench(tmp_path, sink(kind, running.url, **more), many(20))
        bench.run()
        assert bodies(running) == LINES
        assert len(running.requests) == 2


def test_otlp_has_no_ids_so_a_lost_success_doubles_and_each_line_tells_its_id(tmp_path: Path) -> None:
    with Otlp() as peer:
        peer.script = [("lost",)]
        Bench(tmp_path, sink("otlp", peer.url), many(3)).run()
        ids = [
            attribute.value.string_value
            for _, record in peer.stored
            for attribute in record.attributes
            if attribute.key == "relay.id"
        ]
        assert len(ids) == 6 and len(set(ids)) == 3


def test_loki_has_few_labels_and_the_rest_as_structured_metadata() -> None:
    with Loki() as peer:
        sink("loki", peer.url).send(items([records.log("a\n"), records.job("job_start")]))
        (labels, stamp, line, metadata), (event_labels, _, event, _) = peer.stored
        assert dict(labels) == {"job": "slurm", "cluster": "slurm", "type": "log", "stream": "stdout"}
        assert (stamp, line) == (1786000818715000001, "a")
        assert metadata["job_id"] == "174" and metadata["node"] == "node1" and metadata["relay_id"] == "abc-0"
        assert dict(event_labels) == {"job": "slurm", "cluster": "slurm", "type": "job_start"}
        assert event == "job_start job 174 on node1"


def test_lokis_400_for_one_entry_costs_that_entry_alone(tmp_path: Path) -> None:
    with Loki() as peer:
        peer.too_old_ns = 10
        bench = Bench(tmp_path, sink("loki", peer.url), [*many(10), records.log("old\n", 5), *many(10, 10)])
        bench.run()
        assert bodies(peer) == LINES
        assert (bench.delivered(), bench.dropped("refused")) == (20, 1)


def test_bulk_keeps_the_record_exact_and_adds_a_time_that_the_store_understands() -> None:
    with Bulk() as peer:
        sink("bulk", peer.url, index="slurm-jobs").send(items([records.log('a"\\\n', later=[1])]))
        ((known, document),) = peer.stored
        assert known == "abc-0"
        assert document.pop("@timestamp") == "2026-08-06T07:20:18.715000001Z"
        assert document == {**records.log('a"\\\n', later=[1]), "scraper": {"received": 5000}}


def test_bulk_sends_again_only_what_passes_and_sets_aside_only_what_is_refused(tmp_path: Path) -> None:
    with Bulk() as peer:
        bench = Bench(tmp_path, sink("bulk", peer.url, index="i"), many(20))
        peer.statuses = {
            f"{bench.name}-3": [429, 429],
            f"{bench.name}-4": [400],
            f"{bench.name}-5": [503],
            f"{bench.name}-6": [409],
            f"{bench.name}-7": [403, 404],  # of an index that is read-only, or not there
        }
        bench.run()
        assert {known for known, _ in peer.stored} == {f"{bench.name}-{n}" for n in range(20) if n not in (4, 6)}
        assert (bench.delivered(), bench.dropped("refused")) == (19, 1)
        assert bench.counters.get("sink_retried_lines_total", sink="s") == 5


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"errors":true}', b'{"errors":true,"items":[]}', b"<html>"])
def test_bulk_does_not_take_any_200_for_a_success(said: bytes) -> None:
    from guard.scraper.sinks import bulk

    with pytest.raises(NodeFault):
        bulk.read(http.Answer(200, said, None), 1)


def test_the_stand_in_for_bulk_is_one_that_opensearchs_own_client_takes() -> None:
    with Bulk() as peer:
        peer.content_type = "application/json"
        client = opensearchpy.OpenSearch([peer.url])
        peer.statuses = {"b": [400]}
        actions = [
            {"_op_type": "create", "_index": "i", "_id": known, "@timestamp": "2026-08-06T07:20:18Z"} for known in "ab"
        ]
        results = list(opensearchpy.helpers.streaming_bulk(client, actions, raise_on_error=False))
        assert [(is_good, result["create"]["status"]) for is_good, result in results] == [(True, 201), (False, 400)]


def test_otlp_is_what_opentelemetrys_own_definitions_take() -> None:
    with Otlp() as peer:
        sink("otlp", peer.url).send(items([records.log("a\u00e9\n", stream="stderr"), records.job("job_end")]))
        (resource, record), (_, event) = peer.stored
        assert {a.key: a.value.string_value for a in resource.attributes} == {
            "service.name": "slurm",
            "slurm.cluster": "slurm",
            "host.name": "node1",
        }
        assert record.time_unix_nano == 1786000818715000001
        assert record.observed_time_unix_nano == 5000
        assert record.body.string_value == "a\u00e9"
        found = {a.key: a.value for a in record.attributes}
        assert found["slurm.job_id"].int_value == 174
        assert found["slurm.stream"].string_value == "stderr"
        assert event.body.string_value == "job_end job 174 on node1"


def test_what_otlp_rejects_is_counted_and_never_sent_again(tmp_path: Path) -> None:
    with Otlp() as peer:
        peer.rejected = 2
        bench = Bench(tmp_path, sink("otlp", peer.url), many(20))
        bench.run()
        assert (bench.delivered(), bench.dropped("refused"), len(peer.requests)) == (18, 2, 1)


def test_credentials_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "password").write_text("pass\n")
    with Loki() as peer:
        sink("loki", peer.url, token_file=str(tmp_path / "token")).send(items(many(1)))
        sink("loki", peer.url + "/loki/api/v1/push", user="u", password_file=str(tmp_path / "password")).send(
            items(many(1))
        )
        sink("loki", peer.url, headers={"X-Scope-OrgID": "hpc"}).send(items(many(1)))
        first, second, third = (headers for _, headers in peer.requests)
        assert first["Authorization"] == "Bearer s3cret"
        assert second["Authorization"] == "Basic dTpwYXNz"
        assert third["X-Scope-OrgID"] == "hpc"
        assert {path for path, _ in peer.requests} == {"/loki/api/v1/push"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("5", 5.0),
        ("99999", 300.0),
        ("-5", 0.0),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: "str | None", seconds: "float | None") -> None:
    assert http._retry_after_s(text, 40.0) == seconds


def test_a_redirect_is_not_followed_with_our_credentials() -> None:
    with Loki() as there, Loki() as peer:
        peer.script = [("status", 307, {"Location": there.url + "/loki/api/v1/push"})]
        verdict = sink("loki", peer.url).send(items(many(2)))
        assert (verdict.retry, there.requests) == ([0, 1], [])


def test_bodies_are_small_on_the_wire() -> None:
    with Loki() as peer:
        sink("loki", peer.url).send(items(many(1000)))
        assert int(peer.requests[0][1]["Content-Length"]) < len(json.dumps(many(1000))) / 8


def test_times_are_never_floats() -> None:
    started = time.time_ns()
    with Loki() as loki, Bulk() as bulk, Otlp() as otlp:
        for kind, url, more in zip(("loki", "bulk", "otlp"), (loki.url, bulk.url, otlp.url), ({}, {"index": "i"}, {})):
            sink(kind, url, **more).send(items([records.log("x", started | 1)]))
        assert loki.stored[0][1] == bulk.stored[0][1]["time"] == otlp.stored[0][1].time_unix_nano == started | 1
