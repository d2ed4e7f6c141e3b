"""What we compress every client reads: librdkafka and aiokafka."""

import asyncio
import random

import pytest
from aiokafka import AIOKafkaConsumer

from dualwrite import TwoPhaseProducer
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.compression import Compression
from dualwrite.wire.records import BatchHeader

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def contents():
    chance = random.Random(5)
    small = [b"value %d" % number for number in range(200)]
    return [*small, b"a" * 100_000, chance.randbytes(70_000), b"", b"last"]


@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_what_we_compressed(config, servers, name, codec):
    expected = contents()
    with TwoPhaseProducer({**config, "compression.type": codec}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in expected:
            producer.produce(name, value, key=b"k", headers={"h": b"v"})
        producer.commit_transaction()

    messages = read_topic(name, servers)
    assert [m.value() for m in messages] == expected
    assert {tuple(m.headers()) for m in messages} == {(("h", b"v"),)}
    assert asyncio.run(read_by_aiokafka(name, servers, len(expected))) == expected


async def read_by_aiokafka(topic, servers, count):
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_the_batch_says_how_it_is_compressed(codec):
    from tests.client.scripted import ScriptedCluster, put, started

    script = ScriptedCluster()
    flows = started(script, compression_type=codec)
    flows.begin()
    put(script, flows, b"x" * 10_000)
    script.run(flows, flows.commit())
    (header,) = script.logs[0]

    assert isinstance(header, BatchHeader)
    assert header.compression == Compression.named(codec)
    assert (header.length < 5_000) == (codec != "none")
