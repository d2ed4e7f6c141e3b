"""Consumed offsets that are committed with the Kafka transaction (KIP-447)."""

import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from dualwrite import GroupMetadata
from tests.dualwrite.crashed import FOREIGN_OWNER, CrashedInstance


@pytest.fixture
def group(world):
    """A consumer that reads stable offsets only, at partition 0 of a topic named like its group."""
    name = "source-" + uuid.uuid4().hex[:8]
    consumer = Consumer(
        {
            "bootstrap.servers": world.bootstrap,
            "group.id": name,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    yield consumer, TopicPartition(name, 0)
    consumer.close()


def leave_offset_in_doubt(world, place):
    """A dead instance has prepared offset 7, with an order, and the database has decided."""
    with world.writer(app="filler") as dw, dw.transaction() as tx:
        tx.produce(place.topic, value="x", partition=0)
    crashed = CrashedInstance(world, f"{world.app}-5")
    crashed.number = 1
    crashed.producer.begin_transaction()
    crashed.producer.produce(world.topic, key="1", value=b"x")
    crashed.producer.send_offsets_to_transaction({(place.topic, 0): 7}, GroupMetadata(place.topic))
    crashed.state = crashed.producer.prepare_transaction()
    crashed.decide().die()


def test_offsets_of_a_dead_instance_are_readable_when_the_writer_is_open(world, group):
    consumer, place = group
    leave_offset_in_doubt(world, place)
    with pytest.raises(KafkaException):
        consumer.committed([place], timeout=1)

    with world.writer():
        assert consumer.committed([place], timeout=20)[0].offset == 7
    world.assert_agree([1])


def test_offsets_of_a_dead_peer_are_readable_within_the_lease(world, group):
    consumer, place = group
    with world.writer(lease_seconds=1):
        world.store.lease(FOREIGN_OWNER, 3600)
        leave_offset_in_doubt(world, place)
        world.store.end_lease(FOREIGN_OWNER)

        assert consumer.committed([place], timeout=30)[0].offset == 7
    world.assert_agree([1])


def test_consumed_offsets_go_into_the_transaction(world):
    source = "source-" + uuid.uuid4().hex[:8]
    with world.writer() as dw:
        with dw.transaction() as tx:
            tx.produce(source, value="x", partition=0)
        consumer = Consumer(
            {"bootstrap.servers": world.bootstrap, "group.id": source, "log_level": 0}
        )
        with dw.transaction() as tx:
            world.order(tx, 1)
            tx.send_offsets([TopicPartition(source, 0, 1)], consumer.consumer_group_metadata())
        with pytest.raises(ValueError), dw.transaction() as tx:
            tx.send_offsets({(source, 0): 5}, consumer.consumer_group_metadata())
            raise ValueError
        committed = consumer.committed([TopicPartition(source, 0)], timeout=20)
        consumer.close()

    assert committed[0].offset == 1
    world.assert_agree([1])
