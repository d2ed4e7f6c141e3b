"""Four client libraries behind one small interface: a transactional producer and a reader of one's own.

Our producer has no consumer beside it; its reader is confluent-kafka's, as for our users. The others
can also send outside of transactions, by an idempotent producer (`send_alone`); ours cannot.

`offsets` are those of the last transaction's records as far as they were told, and -1 otherwise.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import aiokafka
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from dualwrite import TwoPhaseProducer
from tests.bounce.clients import LIBRDKAFKA
from tests.broker.kafka_python import KafkaConsumer, KafkaProducer
from tests.broker.kafka_python import TopicPartition as KafkaPythonPartition

TOPIC = "lists"
PARTITIONS = 4
TIMEOUT = 15.0

Seen = list[tuple[int, int, str]]  # partition, offset, value


class LibrdkafkaReader:
    """confluent-kafka's consumer on every partition from its beginning."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                **LIBRDKAFKA,
            }
        )
        self._consumer.assign([ConfluentPartition(TOPIC, p, 0) for p in range(PARTITIONS)])

    def poll(self) -> Seen:
        messages = self._consumer.consume(200, 0.05)
        return [
            (m.partition(), m.offset(), m.value().decode()) for m in messages if m.error() is None
        ]


class Ours(LibrdkafkaReader):
    sends_alone = False

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(bootstrap)
        self._config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "max.block.ms": int(TIMEOUT * 1000),
        }
        self._producer: Any = None
        self.offsets: list[int] = []

    def renew(self) -> None:
        """Begin anew: whatever the last producer left open is ended."""
        if self._producer is not None:
            with contextlib.suppress(Exception):
                self._producer.close(0)
        self._producer = TwoPhaseProducer(self._config)
        self._producer.init_transactions()

    def begin(self) -> None:
        self.offsets = []
        self._producer.begin_transaction()

    def send(self, partition: int, value: str) -> None:
        offsets, place = self.offsets, len(self.offsets)  # it may be told after the next has begun
        offsets.append(-1)

        def delivered(error: Any, message: Any) -> None:
            offsets[place] = -1 if error else message.offset()

        self._producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)

    def flush(self) -> None:
        if self._producer.flush(TIMEOUT):
            raise TimeoutError

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()


class Librdkafka(Ours):
    sends_alone = True

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        super().__init__(bootstrap, transactional_id)
        del self._config["max.block.ms"]
        self._config |= LIBRDKAFKA
        self._loner: Any = None

    def renew(self) -> None:
        self._producer = Producer(self._config)
        self._producer.init_transactions(TIMEOUT)

    def send_alone(self, partition: int, value: str) -> int:
        if self._loner is None:
            others = {k: v for k, v in self._config.items() if k != "transactional.id"}
            self._loner = Producer({**others, "enable.idempotence": True})
        told: list[tuple[Any, Any]] = []
        self._loner.produce(
            TOPIC, value, partition=partition, on_delivery=lambda *args: told.append(args)
        )
        self._loner.flush(TIMEOUT)
        if not told or told[0][0] is not None:
            raise TimeoutError(str(told))
        return int(told[0][1].offset())

    def forget_loner(self) -> None:
        self._loner = None


class KafkaPython:
    sends_alone = True

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._transactional_id = transactional_id
        self._producer: Any = None
        self._loner: Any = None
        self._futures: list[Any] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        self._consumer.assign([KafkaPythonPartition(TOPIC, p) for p in range(PARTITIONS)])

    def renew(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(Exception):
                self._producer.close(timeout=0)
        self._producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=self._transactional_id,
            max_block_ms=int(TIMEOUT * 1000),
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._futures = []
        self._producer.begin_transaction()

    def send(self, partition: int, value: str) -> None:
        self._futures.append(self._producer.send(TOPIC, value.encode(), partition=partition))

    def flush(self) -> None:
        for future in self._futures:
            future.get(timeout=TIMEOUT)

    @property
    def offsets(self) -> list[int]:
        return [future.value.offset if future.succeeded() else -1 for future in self._futures]

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def send_alone(self, partition: int, value: str) -> int:
        if self._loner is None:
            self._loner = KafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                max_block_ms=int(TIMEOUT * 1000),
            )
        sent = self._loner.send(TOPIC, value.encode(), partition=partition)
        return int(sent.get(timeout=TIMEOUT).offset)

    def forget_loner(self) -> None:
        loner, self._loner = self._loner, None
        if loner is not None:
            loner.close(timeout=0)

    def poll(self) -> Seen:
        found = self._consumer.poll(timeout_ms=50)
        return [
            (m.partition, m.offset, m.value.decode()) for batch in found.values() for m in batch
        ]


class AioKafka:
    sends_alone = True

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._bootstrap = bootstrap
        self._transactional_id = transactional_id
        self._producer: Any = None
        self._loner: Any = None
        self._sent: list[Any] = []
        self._run(self._start_reader())

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT))

    async def _start_reader(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        await self._consumer.start()
        partitions = [aiokafka.TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        self._consumer.assign(partitions)
        await self._consumer.seek_to_beginning(*partitions)

    async def _start_producer(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, transactional_id=self._transactional_id
        )
        await self._producer.start()

    def renew(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(Exception):
                self._run(self._producer.stop())
        self._run(self._start_producer())

    def begin(self) -> None:
        self._sent = []
        self._run(self._producer.begin_transaction())

    def send(self, partition: int, value: str) -> None:
        sent = self._run(self._producer.send(TOPIC, value.encode(), partition=partition))
        self._sent.append(sent)

    def flush(self) -> None:
        for sent in self._sent:
            self._run(sent)

    @property
    def offsets(self) -> list[int]:
        return [sent.result().offset if _has_succeeded(sent) else -1 for sent in self._sent]

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def send_alone(self, partition: int, value: str) -> int:
        if self._loner is None:
            self._run(self._start_loner())
        sent = self._loner.send_and_wait(TOPIC, value.encode(), partition=partition)
        return int(self._run(sent).offset)

    async def _start_loner(self) -> None:
        self._loner = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, enable_idempotence=True
        )
        await self._loner.start()

    def forget_loner(self) -> None:
        loner, self._loner = self._loner, None
        if loner is not None:
            self._run(loner.stop())

    def poll(self) -> Seen:
        found = self._run(self._consumer.getmany(timeout_ms=50))
        return [
            (m.partition, m.offset, m.value.decode()) for batch in found.values() for m in batch
        ]


def _has_succeeded(sent: Any) -> bool:
    return sent.done() and not sent.cancelled() and sent.exception() is None


CLIENTS: dict[str, Any] = {
    "ours": Ours,
    "confluent": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
