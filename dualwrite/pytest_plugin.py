"""Fixtures for tests that need a broker; pytest finds them by itself once dualwrite is installed.

def test_orders(kafka_broker, read_committed):
    place_order(bootstrap_servers=kafka_broker.bootstrap_servers)
    assert [m.value() for m in read_committed("orders")] == [b"..."]
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dualwrite.broker import Broker, BrokerProcess

Message = Any  # confluent_kafka.Message, which has no type information


@pytest.fixture
def kafka_broker() -> "Iterator[Broker]":
    """A broker of its own for this test, in this process, with nothing in it."""
    from dualwrite.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka_broker_process() -> "Iterator[BrokerProcess]":
    """A broker in a child process, for tests that kill and restart it."""
    from dualwrite.broker import BrokerProcess

    with BrokerProcess() as broker:
        yield broker


@pytest.fixture
def read_committed(request: pytest.FixtureRequest) -> Callable[..., list[Message]]:
    """`read_committed(topic)`: the messages that a read_committed consumer sees, from all partitions.

    Reads the test's broker, or the one given as `bootstrap_servers`, up to what is stable now.
    """

    def read(topic: str, bootstrap_servers: str | None = None) -> list[Message]:
        if bootstrap_servers is None:
            names = ("kafka_broker", "kafka_broker_process")
            mine = [name for name in names if name in request.fixturenames] or names[:1]
            bootstrap_servers = request.getfixturevalue(mine[0]).bootstrap_servers
        return read_topic(topic, bootstrap_servers)

    return read


def read_topic(topic: str, bootstrap_servers: str, timeout: float = 30.0) -> list[Message]:
    """All committed messages of a topic, by partition and offset; none of one that does not exist."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "read_committed",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is told by an empty answer
            "auto.offset.reset": "earliest",
        }
    )
    try:
        described = consumer.list_topics(topic, timeout=timeout).topics[topic]
        error = described.error
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return []  # whoever was rolled back before the first message has not made it
        if error is not None:
            raise KafkaException(error)
        consumer.assign([TopicPartition(topic, index, 0) for index in described.partitions])
        return _read_to_end(consumer, set(described.partitions), timeout)
    finally:
        consumer.close()


def _read_to_end(consumer: Any, open_partitions: set[int], timeout: float) -> list[Message]:
    from confluent_kafka import KafkaError, KafkaException

    messages: list[Message] = []
    while open_partitions:
        message = consumer.poll(timeout)
        if message is None:
            raise TimeoutError(f"partitions {sorted(open_partitions)} did not end")
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            open_partitions.discard(message.partition())
        else:
            raise KafkaException(error)
    return sorted(messages, key=lambda m: (m.partition(), m.offset()))
