"""Consume, transform, produce, and write to a database, exactly once (KIP-447 with a database).

    run(consumer, writer, transform, stop=event)

    def transform(tx, message):
        tx.session.execute(...)                      # database
        tx.produce("out", key=message.key(), value=...)  # Kafka

Each batch is one dual write: rows, output records and the consumed offsets are committed together,
or not at all. The offsets carry the group's generation, so a consumer that has lost its partitions
cannot commit for them. The consumer is the caller's own; it must not commit by itself, and must read
committed records only.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dualwrite.dual_writer import DualWriter, Transaction
from dualwrite.errors import InvalidTxnState, OutcomeUnknown, RetryableError

Transform = Callable[[Transaction, Any], object]

POLL_SECONDS = 0.5


def consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's settings with what exactly-once needs of a consumer."""
    return {**config, "enable.auto.commit": False, "isolation.level": "read_committed"}


def run(
    consumer: Consumer,
    writer: DualWriter,
    transform: Transform,
    *,
    stop: threading.Event,
    batch_size: int = 100,
) -> None:
    """Work until `stop` is set.

    A batch that failed before its decision is read again. With `OutcomeUnknown` the consumer is closed,
    because nobody knows yet where to go on: start anew, and the group's offsets wait for the
    transaction's end.
    """
    while not stop.is_set():
        messages = [
            message for message in consumer.consume(batch_size, POLL_SECONDS) if is_record(message)
        ]
        if messages:
            _handle(consumer, writer, transform, messages)


def _handle(
    consumer: Consumer, writer: DualWriter, transform: Transform, messages: Sequence[Any]
) -> None:
    block = writer.transaction()
    try:
        with block as tx:
            for message in messages:
                transform(tx, message)
            tx.send_offsets(next_offsets(messages), consumer.consumer_group_metadata())
    except RetryableError:
        rewind(consumer, messages)
    except OutcomeUnknown:
        consumer.close()
        raise
    except BaseException:
        if not _is_committed(block):  # an interrupt may strike when all of it is done
            rewind(consumer, messages)
        raise


def _is_committed(block: Transaction) -> bool:
    try:
        return block.outcome.database == "committed"
    except InvalidTxnState:
        return False


LASTING = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # with auto.offset.reset=error
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
"""What librdkafka reports and goes on; no record would ever come."""


def is_record(message: Any) -> bool:
    """Whether it is one, and not word of something that passes; what does not pass is raised."""
    error = message.error()
    if error is None:
        return True
    if error.fatal() or error.code() in LASTING:
        raise KafkaException(error)
    return False


def next_offsets(messages: Sequence[Any]) -> dict[tuple[str, int], int]:
    """The offset after the last message of each partition."""
    found: dict[tuple[str, int], int] = {}
    for message in messages:
        place = (message.topic(), message.partition())
        found[place] = max(found.get(place, 0), message.offset() + 1)
    return found


def rewind(consumer: Consumer, messages: Sequence[Any]) -> None:
    """Go back to the first message of each partition, as far as it is still ours."""
    first: dict[tuple[str, int], int] = {}
    for message in messages:
        place = (message.topic(), message.partition())
        first[place] = min(first.get(place, message.offset()), message.offset())
    for (topic, partition), offset in first.items():
        # A partition that was taken away cannot be sought, and need not be.
        with contextlib.suppress(KafkaException):
            consumer.seek(TopicPartition(topic, partition, offset))
