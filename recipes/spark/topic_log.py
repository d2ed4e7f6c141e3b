"""The ledger in a compacted topic of the same cluster, for pipelines that have Kafka alone.

One partition, one record per entry, written in ordinary transactions of the id
`spark.<sink>.coordinator`. Every change initialises that id first, which ends what an older writer
left open and fences it; reads to the high watermark; and commits. So between what was read and
what is written nothing can come in, and a change whose commit went unanswered is simply repeated.

A topic that somebody else has made, or changed, must not delete by age or size: whoever opens the ledger
looks. Without the right to see its settings (DESCRIBE_CONFIGS) nobody can tell, and it is taken as it is.
"""

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import KafkaError as ClientsError
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from dualwrite.errors import DualWriteError, Fenced, OutcomeUnknown
from dualwrite.failures import AbortableError, KafkaTimeout
from dualwrite.producer import TwoPhaseProducer
from dualwrite.recipes.spark.client_config import consumer_config
from dualwrite.recipes.spark.decision_log import DecidingTransaction, no_data
from dualwrite.recipes.spark.ledger import Change, Entries, Ledger, Superseded, decode, encode
from dualwrite.recipes.spark.names import coordinator_id, decision_topic
from dualwrite.recipes.spark.patience import passes, patiently, seconds_of
from dualwrite.store import Durability, DurabilityCheck, Verdict

TRIES = 20
BACKOFF_SECONDS = 0.05
READ_SECONDS = 60.0
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # A reader starts at the oldest record, so old ones should be compacted away soon.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

log = logging.getLogger("dualwrite.spark")


class TopicDecisionLog:
    """One sink's ledger in `__dualwrite_decisions.<sink>`."""

    def __init__(self, config: Mapping[str, Any], sink: str) -> None:
        self._config = config
        self._sink = sink
        self._topic = decision_topic(sink)
        self._admin = AdminClient(consumer_config(config))
        self._is_there = False
        self._is_checked = False
        self._ledger = Ledger()
        self._position = 0
        self._consumer = Consumer(
            {
                **consumer_config(config),
                "group.id": f"dualwrite.{self._topic}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
            }
        )

    def read(self) -> Ledger:
        """Read everything that was committed up to now; an open transaction is waited for."""
        if not self._topic_is_there():
            return Ledger()
        end = self._high_watermark()
        if end == 0:
            return Ledger()
        self._consumer.assign([TopicPartition(self._topic, 0, self._position)])
        # Only the newest record of an entry counts; the older ones are not even decoded.
        newest = dict(self._until(end))
        self._ledger = self._ledger.with_entries(
            {name: None if body is None else decode(name, body) for name, body in newest.items()}
        )
        self._position = end
        return self._ledger

    def update(self, change: Change) -> Ledger:
        self._ensure_topic()
        deadline = time.monotonic() + seconds_of(self._config)
        for tries in range(1, TRIES + 1):
            try:
                return self._update_once(change)
            except Superseded:
                raise
            except (Fenced, AbortableError, KafkaTimeout) as error:
                # A lost race or answer. The next try ends what this one may have left open.
                is_away = isinstance(error, KafkaTimeout) and time.monotonic() > deadline
                if is_away or tries == TRIES:
                    raise OutcomeUnknown(f"no answer from {self._topic}: {error}") from error
                time.sleep(random.uniform(0, tries * BACKOFF_SECONDS))
        raise AssertionError("unreachable")

    def transaction(self) -> AbstractContextManager[DecidingTransaction]:
        raise no_data(f"the topic {self._topic}")

    def close(self) -> None:
        self._consumer.close()
        # It has no close of its own. The frames of an error that somebody keeps would keep it, too.
        del self._admin

    def _update_once(self, change: Change) -> Ledger:
        config = {**self._config, "transactional.id": coordinator_id(self._sink)}
        with TwoPhaseProducer(config) as producer:
            producer.init_transactions()
            ledger = self.read()
            entries = change(ledger)
            if entries:
                self._write(producer, entries)
            return ledger.with_entries(entries)

    def _write(self, producer: TwoPhaseProducer, entries: Entries) -> None:
        producer.begin_transaction()
        for name, entry in entries.items():
            body = None if entry is None else encode(entry)
            producer.produce(self._topic, key=name.encode(), value=body, partition=0)
        producer.commit_transaction()

    def _high_watermark(self) -> int:
        partition = TopicPartition(self._topic, 0)

        def ask(seconds: float) -> int:
            asked = self._admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=seconds,
            )
            return int(asked[partition].result().offset)

        return patiently(ask, self._config)

    def _until(self, end: int) -> Iterator[tuple[str, bytes | None]]:
        """Committed records below `end`. The end is reached, not guessed: the client says so.

        An end of partition below `end` is the last stable offset: a transaction is still open
        there, and what it holds must be waited for.
        """
        deadline = time.monotonic() + READ_SECONDS
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message.key().decode(), message.value()
                if message.offset() + 1 >= end:
                    return
            elif error.code() != ClientsError._PARTITION_EOF:
                if not passes(error):
                    raise KafkaException(error)
            elif message.offset() >= end:
                return
        raise DualWriteError(f"{self._topic} could not be read up to {end} in {READ_SECONDS:.0f} s")

    def _topic_is_there(self) -> bool:
        # The consumer asks, so that it knows the leader: a topic that librdkafka is given when it is
        # connected already is looked up by a timer, up to a second later.
        if not self._is_there:
            found = patiently(
                lambda seconds: self._consumer.list_topics(self._topic, seconds), self._config
            )
            self._is_there = found.topics[self._topic].error is None
        return self._is_there

    def _ensure_topic(self) -> None:
        if self._topic_is_there():
            if not self._is_checked:
                check = durability(self._admin, self._topic, self._config)
                Durability((check,)).require()
                self._is_checked = True
            return
        topic = NewTopic(self._topic, num_partitions=1, config=TOPIC_CONFIG)
        try:
            self._admin.create_topics([topic])[self._topic].result()
            self._is_checked = True
        except KafkaException as error:
            if error.args[0].code() != ClientsError.TOPIC_ALREADY_EXISTS:
                raise
        self._is_there = True


def durability(admin: AdminClient, topic: str, config: Mapping[str, Any]) -> DurabilityCheck:
    """Whether the decisions in a topic stay there."""
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask(seconds: float) -> str:
        asked = admin.describe_configs([resource], request_timeout=seconds)
        return str(asked[resource].result()["cleanup.policy"].value)

    name, wanted = f"cleanup.policy of {topic}", TOPIC_CONFIG["cleanup.policy"]
    try:
        policy = patiently(ask, config)
    except KafkaException as error:
        return DurabilityCheck(name, error.args[0].str(), wanted, Verdict.UNKNOWN)
    verdict = Verdict.SAFE if policy == wanted else Verdict.UNSAFE
    return DurabilityCheck(name, policy, wanted, verdict)
