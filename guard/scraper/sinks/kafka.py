# SPDX-License-Identifier: GPL-2.0-or-later
"""Lines to a Kafka topic through librdkafka (extra `kafka`), keyed so that a task's stream stays in one partition."""

import functools

from guard.base.faults import NodeFault, SiteFault
from guard.scraper import decode
from guard.scraper.limits import ATTEMPT_S, SINK_BATCH_BYTES, SINK_BATCH_RECORDS
from guard.scraper.sinks.verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guard.scraper.sinks.verdict import Item


class KafkaSink:
    """settings: librdkafka's own, bootstrap.servers among them; topic: where the lines go."""

    def __init__(self, settings: "dict[str, Any]", topic: str) -> None:
        """Raises: SiteFault(config-bad)."""
        import confluent_kafka

        self.lines_max = SINK_BATCH_RECORDS
        self.bytes_max = SINK_BATCH_BYTES
        self._topic = topic
        self._too_large = (
            confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE,
            confluent_kafka.KafkaError._INVALID_ARG,
        )
        self._error = confluent_kafka.KafkaException
        try:
            self._producer = confluent_kafka.Producer(
                {
                    # Within one producer's life a repeated message is stored once, and order is kept over retries.
                    "enable.idempotence": True,
                    "compression.type": "zstd",
                    "linger.ms": 5,
                    "delivery.timeout.ms": int(ATTEMPT_S * 1000),
                    "log_level": 3,
                    **settings,
                }
            )
        except (confluent_kafka.KafkaException, TypeError) as error:
            raise SiteFault("config-bad", f"kafka: {error}")

    def send(self, items: "list[Item]") -> Verdict:
        """Produces all and waits for the brokers' word on each."""
        failed: dict[int, Any] = {}
        answered: set[int] = set()

        def answer(index: int, error: "Any", _message: "Any" = None) -> None:
            answered.add(index)
            if error is not None:
                failed[index] = error

        for index, (item_id, line) in enumerate(items):
            fields = decode.quick_loads(line)
            slurm = fields["slurm"]
            key = "/".join(
                str(part)
                for part in (slurm["cluster"], slurm["node"], slurm.get("job_id", ""), slurm.get("step_id", ""))
            )
            try:
                self._producer.produce(
                    self._topic,
                    line.rstrip(b"\n"),
                    key.encode("utf-8"),
                    headers={"id": item_id.encode("ascii")},
                    timestamp=fields["time"] // 1_000_000,
                    on_delivery=functools.partial(answer, index),
                )
            except self._error as error:
                answer(index, error.args[0])
            except BufferError as error:
                raise NodeFault("sink-failed", f"kafka: {error}")
        self._producer.flush(ATTEMPT_S * 1.5)
        refused = {index: str(error) for index, error in failed.items() if error.code() in self._too_large}
        retry = sorted({*failed, *(set(range(len(items))) - answered)} - refused.keys())
        if len(retry) == len(items):
            self._producer.purge()
            raise NodeFault("sink-failed", f"kafka: {next(iter(failed.values()), 'no answer')}")
        return Verdict(refused, retry, why=f"kafka: {failed[retry[0]]}" if retry and retry[0] in failed else "kafka")

    def reopen(self) -> None:
        """Nothing to do."""

    def idle(self) -> None:
        """Lets librdkafka do what it does between batches."""
        self._producer.poll(0)

    def close(self) -> None:
        """Everything was flushed with its batch."""
        self._producer.purge()
        self._producer.flush(1.0)
