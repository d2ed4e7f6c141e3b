"""Consumed offsets that are committed with the Kafka transaction (KIP-447)."""

import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition


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
