"""Groups of kafka-python and aiokafka consumers, which speak older versions than librdkafka."""

import asyncio
import threading

import aiokafka
import pytest

from dualwrite.broker import BrokerProcess
from tests.groups.kafka_python import KafkaConsumer, OffsetAndMetadata
from tests.groups.kafka_python import TopicPartition as Place
from tests.groups.readers import committed, create_topic, produce, readers, share, wait_for

TIMEOUTS = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100}


@pytest.fixture(scope="module")
def broker():
    with BrokerProcess(settings={"group.min.session.timeout.ms": 1_000}) as broker:
        yield broker


class KafkaPythonReader:
    """A kafka-python consumer in a thread of its own, which commits after each poll."""

    def __init__(self, broker, group, topic):
        self.assigned = frozenset()
        self.values = []
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            reconnect_backoff_max_ms=200,
            **TIMEOUTS,
        )
        # A leader that doesn't know the topic yet gives everybody nothing at first.
        wait_for(lambda: self._consumer.partitions_for_topic(topic), "the topic is known")
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            # kafka-python 3.0 forgets an assignment that arrives as a poll's time ends: poll long.
            found = self._consumer.poll(timeout_ms=1_000)
            self.assigned = frozenset(place.partition for place in self._consumer.assignment())
            if found:
                self.values += [record.value for records in found.values() for record in records]
                self._consumer.commit()
        self.assigned = frozenset()
        self._consumer.close()

    def stop(self):
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_kafka_python_members_share_and_hand_over(broker):
    create_topic(broker, "py")
    with readers(lambda: KafkaPythonReader(broker, "py", "py"), 3) as members:
        wait_for(lambda: share(members), "three members share six partitions")
        produce(broker, "py", [b"a%d" % n for n in range(30)])
        wait_for(lambda: committed(broker, "py", "py") == 30, "all is committed")
        gone = members.pop()
        gone.stop()
        wait_for(lambda: share(members), "two members share six partitions")
        produce(broker, "py", [b"b%d" % n for n in range(30)])
        wait_for(lambda: committed(broker, "py", "py") == 60, "all is committed")
        values = [value for member in (*members, gone) for value in member.values]

    assert sorted(values) == sorted(b"%s%d" % (life, n) for life in (b"a", b"b") for n in range(30))


def test_kafka_python_commit_metadata_comes_back(broker):
    create_topic(broker, "metadata", 2)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="metadata")
    places = [Place("metadata", p) for p in range(2)]
    consumer.assign(places)
    consumer.commit({places[0]: OffsetAndMetadata(5, "größer", -1)})
    found = [consumer.committed(place, metadata=True) for place in places]
    consumer.close()

    assert (found[0].offset, found[0].metadata) == (5, "größer")
    assert found[1] is None


async def aiokafka_member(broker, group, topic, **more):
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        **TIMEOUTS,
        **more,
    )
    await consumer.start()
    return consumer


async def read(consumer, values):
    while True:
        found = await consumer.getmany(timeout_ms=100)
        for place, messages in found.items():
            values += [message.value for message in messages]
            await commit(consumer, place, messages[-1].offset + 1)


async def commit(consumer, place, offset):
    while True:
        try:
            await consumer.commit({place: offset})
            return
        except aiokafka.errors.KafkaError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.05)


async def until(condition, what):
    await asyncio.to_thread(wait_for, condition, what)


def covered(consumers):
    held = [place.partition for consumer in consumers for place in consumer.assignment()]
    return all(c.assignment() for c in consumers) and sorted(held) == list(range(6))


def test_aiokafka_members_share_survive_a_kill_and_hand_over():
    with BrokerProcess(settings={"group.min.session.timeout.ms": 1_000}) as broker:
        create_topic(broker, "aio")
        values = asyncio.run(read_over_a_kill(broker))
        assert committed(broker, "aio", "aio") == 60

    assert set(values) == {b"%s%d" % (life, n) for life in (b"a", b"b") for n in range(30)}


async def read_over_a_kill(broker):
    values = []
    members = [await aiokafka_member(broker, "aio", "aio") for _ in range(3)]
    tasks = [asyncio.create_task(read(member, values)) for member in members]
    try:
        await until(lambda: covered(members), "three members share six partitions")
        await asyncio.to_thread(produce, broker, "aio", [b"a%d" % n for n in range(30)])
        await until(lambda: len(values) >= 30, "all messages are read")
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.restart)
        await asyncio.to_thread(produce, broker, "aio", [b"b%d" % n for n in range(30)])
        await until(lambda: committed(broker, "aio", "aio") == 60, "all is committed")
        tasks.pop().cancel()
        await members.pop().stop()
        await until(lambda: covered(members), "two members share six partitions")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in members:
            await member.stop()
    return values


def test_aiokafka_consume_transform_produce(broker):
    """Version 0 of every transaction request: no member is named, so none is checked."""
    create_topic(broker, "in")
    create_topic(broker, "out", 1)
    produce(broker, "in", [b"%d" % n for n in range(12)])

    async def run():
        member = await aiokafka_member(broker, "copy", "in")
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="aio-copy"
        )
        await producer.start()
        copied = 0
        while copied < 12:
            found = await member.getmany(timeout_ms=1_000)
            async with producer.transaction():
                ends = {place: messages[-1].offset + 1 for place, messages in found.items()}
                for messages in found.values():
                    for message in messages:
                        await producer.send("out", message.value)
                        copied += 1
                if ends:
                    await producer.send_offsets_to_transaction(ends, "copy")
        await producer.stop()
        await member.stop()
        reader = await aiokafka_member(broker, None, "out")
        values = [(await reader.getone()).value for _ in range(12)]
        await reader.stop()
        return values

    assert sorted(asyncio.run(run())) == sorted(b"%d" % n for n in range(12))
    assert committed(broker, "copy", "in") == 12
