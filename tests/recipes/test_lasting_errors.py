"""What a consumer must not pass over: records that are gone, rights that are missing, an unknown end."""

import threading

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dualwrite import ConfigurationError, OutcomeUnknown
from dualwrite.recipes import consume_transform_produce
from dualwrite.recipes.consume_to_db import DatabaseConsumer
from tests.dualwrite.world import unique
from tests.recipes.test_consumers import insert, position_table


@pytest.fixture
def gap(world):
    """A consumer's settings: 0 to 2 are in the database, and of 0 to 9 Kafka still has 7 to 9."""
    topic, table = unique("source"), position_table()
    with world.writer() as dw, dw.transaction() as tx:
        for number in range(10):
            tx.produce(topic, key=str(number), value=b"x", partition=0)
    config = {"bootstrap.servers": world.bootstrap, "group.id": topic, "log_level": 0}
    consumer = DatabaseConsumer(config, world.engine, [topic], table=table, create=True)
    with consumer:
        while world.rows() != [0, 1, 2]:
            consumer.run_once(lambda s, m: insert(world, s, int(m.key())), 3)
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result(30)
    return config, topic, table


def run_until_nine(world, consumer):
    done = threading.Event()

    def handle(session, message):
        insert(world, session, int(message.key()))
        if message.key() == b"9":
            done.set()

    with consumer:
        consumer.run(handle, stop=done)


def test_records_that_are_gone_are_an_error(world, gap):
    config, topic, table = gap
    consumer = DatabaseConsumer(config, world.engine, [topic], table=table)
    with pytest.raises(KafkaException, match="offset"):
        run_until_nine(world, consumer)

    assert world.rows() == [0, 1, 2]


def test_who_wants_it_goes_on_with_what_is_left(world, gap):
    config, topic, table = gap
    config["auto.offset.reset"] = "earliest"
    run_until_nine(world, DatabaseConsumer(config, world.engine, [topic], table=table))

    assert world.rows() == [0, 1, 2, 7, 8, 9]


def test_nobody_begins_at_the_end(world):
    config = {"bootstrap.servers": "h:1", "group.id": "g", "auto.offset.reset": "latest"}
    with pytest.raises(ConfigurationError, match="leave out"):
        DatabaseConsumer(config, world.engine, ["t"])


def test_after_an_unknown_outcome_the_consumer_is_closed(world):
    """Going on behind the batch would lose it, going back could do it twice."""
    topic = unique("source")
    with world.writer() as dw, dw.transaction() as tx:
        tx.produce(topic, value=b"x", partition=0)
    config = {
        "bootstrap.servers": world.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(consume_transform_produce.consumer_config(config))
    consumer.subscribe([topic])

    def transform(tx, message):
        raise OutcomeUnknown("COMMIT was sent")

    with world.writer() as dw, pytest.raises(OutcomeUnknown):
        consume_transform_produce.run(consumer, dw, transform, stop=threading.Event())
    with pytest.raises(RuntimeError, match="closed"):
        consumer.consume(1, 0)
