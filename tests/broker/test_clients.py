"""Three clients that people use, against a real broker: records in, records out."""

import asyncio
import time

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from dualwrite.pytest_plugin import read_topic
from tests.broker.kafka_python import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tests.broker.kafka_python import TopicPartition as KafkaPythonPartition

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def confluent_producer(bootstrap, **config):
    return Producer({"bootstrap.servers": bootstrap, **config})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_confluent_records_come_back_as_they_were(bootstrap, topic, codec, idempotent):
    producer = confluent_producer(
        bootstrap, **{"compression.type": codec, "enable.idempotence": idempotent}
    )
    stamp = int(time.time() * 1000) - 5_000
    for number in range(50):
        producer.produce(
            topic,
            key=b"key %d" % number,
            value=b"value" * number or None,
            headers=[("a", b"1"), ("b", None)],
            timestamp=stamp + number,
        )
    assert producer.flush(20) == 0

    messages = read_topic(topic, bootstrap)

    assert [m.key() for m in messages] == [b"key %d" % n for n in range(50)]
    assert [m.value() for m in messages] == [None] + [b"value" * n for n in range(1, 50)]
    assert {tuple(m.headers()) for m in messages} == {(("a", b"1"), ("b", None))}
    assert [m.timestamp()[1] for m in messages] == [stamp + n for n in range(50)]
    assert [m.offset() for m in messages] == list(range(50))


@pytest.mark.parametrize("codec", [None, "gzip"])  # the others need packages of their own
def test_kafka_python_records_come_back_as_they_were(bootstrap, topic, codec):
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
    for number in range(20):
        producer.send(topic, key=b"%d" % number, value=b"x" * 100, headers=[("h", b"v")])
    producer.send(topic, key=b"gone", value=None)
    producer.flush(20)
    producer.close()

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([KafkaPythonPartition(topic, 0)])
    found = []
    while len(found) < 21:
        for batch in consumer.poll(timeout_ms=1_000).values():
            found += batch
    consumer.close()

    assert [m.key for m in found] == [b"%d" % n for n in range(20)] + [b"gone"]
    assert found[0].headers[0][1] == b"v"
    assert found[-1].value is None


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_records_come_back_as_they_were(bootstrap, topic, codec):
    async def run():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=True
        )
        await producer.start()
        for number in range(10):
            await producer.send_and_wait(topic, value=b"%d" % number, headers=[("h", b"v")])
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found = [await consumer.getone() for _ in range(10)]
        await consumer.stop()
        return found

    assert [m.value for m in asyncio.run(run())] == [b"%d" % n for n in range(10)]


def transact_with_confluent(bootstrap, topic, transactional_id):
    producer = confluent_producer(bootstrap, **{"transactional.id": transactional_id})
    producer.init_transactions(20)
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        producer.produce(topic, value=outcome.encode(), partition=0)
        producer.flush(20)
        if outcome == "commit":
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)


def transact_with_kafka_python(bootstrap, topic, transactional_id):
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        producer.send(topic, value=outcome.encode(), partition=0)
        producer.flush(20)
        if outcome == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


def transact_with_aiokafka(bootstrap, topic, transactional_id):
    async def run():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        await producer.start()
        for outcome in ("commit", "abort", "commit"):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, value=outcome.encode(), partition=0)
            if outcome == "commit":
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    "transact", [transact_with_confluent, transact_with_kafka_python, transact_with_aiokafka]
)
def test_transactions_show_to_readers_by_their_isolation(bootstrap, client, topic, transact):
    transact(bootstrap, topic, topic)

    committed = [m.value() for m in read_topic(topic, bootstrap)]
    everything = client.fetch(topic)

    assert committed == [b"commit", b"commit"]
    # Three records and three markers, the aborted record among them (read_uncommitted sees it).
    assert everything.high_watermark == everything.last_stable_offset == 6
    assert bytes(everything.records).count(b"abort") == 1


def test_a_second_instance_fences_the_first(bootstrap, topic):
    first = confluent_producer(bootstrap, **{"transactional.id": topic})
    first.init_transactions(20)
    first.begin_transaction()
    first.produce(topic, value=b"old", partition=0)
    first.flush(20)
    second = confluent_producer(bootstrap, **{"transactional.id": topic})
    second.init_transactions(20)

    with pytest.raises(KafkaException) as failure:
        first.commit_transaction(20)

    assert failure.value.args[0].fatal()
    assert read_topic(topic, bootstrap) == []


def test_confluent_admin_handles_topics_partitions_and_settings(bootstrap, name):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1000"})])[name].result(20)
    admin.create_partitions([NewPartitions(name, 5)])[name].result(20)
    resource = ConfigResource(ResourceType.TOPIC, name)
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(20)

    described = admin.list_topics(name, timeout=20).topics[name]
    configs = admin.describe_configs([resource])[resource].result(20)

    assert sorted(described.partitions) == [0, 1, 2, 3, 4]
    assert configs["retention.ms"].value == "1000"
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["segment.bytes"].is_default
    admin.delete_topics([name])[name].result(20)
    assert admin.list_topics(timeout=20).topics.get(name) is None


def test_kafka_python_admin_reads_topics_cluster_and_broker_settings(bootstrap, topic):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        topics = admin.list_topics()
        cluster = admin.describe_cluster()
        described = admin.describe_topics([topic])
    finally:
        admin.close()

    assert topic in topics
    assert cluster["controller_id"] == 1
    assert len(described[0]["partitions"]) == 1


def test_confluent_lists_offsets_by_position_and_time(bootstrap, topic):
    producer = confluent_producer(bootstrap)
    begin = int(time.time() * 1000) - 60_000
    # The largest timestamp is not the last one.
    for delta in (0, 1_000, 9_000, 2_000):
        producer.produce(topic, value=b"x", timestamp=begin + delta, partition=0)
        producer.flush(20)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partition = TopicPartition(topic, 0)

    def offset(spec):
        return admin.list_offsets({partition: spec})[partition].result(20).offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 4
    assert offset(OffsetSpec.max_timestamp()) == 2
    assert offset(OffsetSpec.for_timestamp(begin + 1)) == 1
    assert offset(OffsetSpec.for_timestamp(begin + 2_000)) == 2
    assert offset(OffsetSpec.for_timestamp(begin + 10_000)) == -1


def test_a_consumer_group_goes_on_where_it_committed(bootstrap, topic):
    producer = confluent_producer(bootstrap)
    for number in range(6):
        producer.produce(topic, value=b"%d" % number, partition=0)
    producer.flush(20)

    def read(count):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        found = []
        while len(found) < count:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value())
                consumer.commit(message, asynchronous=False)
        consumer.close()
        return found

    assert read(3) == [b"0", b"1", b"2"]
    assert read(3) == [b"3", b"4", b"5"]
