# SPDX-License-Identifier: GPL-2.0-or-later
"""Against librdkafka's own mock cluster: real protocol, real sockets."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from guard.base.faults import NodeFault, SiteFault
from guard.scraper.sinks.kafka import KafkaSink
from tests.scraper import records
from tests.scraper.lines import Bench, items, many


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Bootstrap servers of a mock cluster, which lives as long as the client that made it."""
    holder = confluent_kafka.Producer({"bootstrap.servers": "ignored", "test.mock.num.brokers": 3})
    metadata = holder.list_topics(timeout=60)
    yield ",".join(f"{broker.host}:{broker.port}" for broker in metadata.brokers.values())
    holder.flush(1)


def consumed(cluster: str, topic: str, count: int) -> "list[Any]":
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster, "group.id": topic})
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
    found: list[Any] = []
    deadline_s = time.monotonic() + 120
    while len(found) < count and time.monotonic() < deadline_s:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


def test_lines_arrive_with_key_id_and_time_in_the_order_of_their_stream(cluster: str) -> None:
    sink = KafkaSink({"bootstrap.servers": cluster}, "t1")
    what = [*many(50), records.log("other\n", job_id=175)]
    verdict = sink.send(items(what))
    assert not verdict.retry and not verdict.refused
    sink.close()
    found = consumed(cluster, "t1", 51)
    mine = [message for message in found if message.key() == b"slurm/node1/174/0"]
    assert [json.loads(message.value())["body"] for message in mine] == [f"line {number}\n" for number in range(50)]
    assert len({message.partition() for message in mine}) == 1
    assert dict(mine[0].headers())["id"] == b"abc-0"
    assert mine[0].timestamp()[1] == records.TIME_NS // 1_000_000
    assert len(found) == 51


def test_one_line_that_is_too_large_is_set_aside_and_the_others_arrive(cluster: str, tmp_path: Path) -> None:
    sink = KafkaSink({"bootstrap.servers": cluster, "message.max.bytes": 5000}, "t2")
    bench = Bench(tmp_path, sink, [*many(5), records.log("x" * 20_000), *many(5, 5)])
    bench.run()
    sink.close()
    assert (bench.delivered(), bench.dropped("refused")) == (10, 1)
    assert len(consumed(cluster, "t2", 10)) == 10


def test_no_broker_is_a_fault_within_the_attempts_time() -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:9", "delivery.timeout.ms": 500, "linger.ms": 0}, "t3")
    with pytest.raises(NodeFault, match="kafka"):
        sink.send(items(many(3)))
    sink.close()


def test_settings_that_librdkafka_does_not_know_are_said() -> None:
    with pytest.raises(SiteFault) as caught:
        KafkaSink({"bootstrap.servers": "h:1", "no.such.setting": "x"}, "t4")
    assert caught.value.code == "config-bad"
