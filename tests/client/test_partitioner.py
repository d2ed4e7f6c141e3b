"""Records with a key go where every other client would put them."""

import random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from dualwrite.partitioner import Partitioner, crc32, murmur2

# Java's own vectors (org.apache.kafka.common.utils.UtilsTest), which are signed.
JAVA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]
KEYS = [b"", b"0", b"k", b"ke", b"key", b"key1", b"\xff\x80\x7f\x00", b"longer key " * 5]


@pytest.mark.parametrize(("key", "hashed"), JAVA)
def test_murmur2_agrees_with_java(key, hashed):
    assert murmur2(key) == hashed & 0x7FFFFFFF


def test_null_and_empty_keys_by_partitioner():
    decides = {
        name: (Partitioner(name).hashes(None), Partitioner(name).hashes(b""))
        for name in ("consistent", "consistent_random", "murmur2", "murmur2_random", "random")
    }

    assert decides == {
        "consistent": (True, True),
        "consistent_random": (False, False),
        "murmur2": (True, True),
        "murmur2_random": (False, True),
        "random": (False, False),
    }
    assert crc32(b"") == 0


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent", "fnv1a", "murmur2"])
def test_confluent_kafka_puts_the_same_keys_into_the_same_partitions(
    config, servers, name, partitioner
):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 7, 1)])[name].result(30)
    chance = random.Random(1)
    keys = [key for key in KEYS if key] + [
        chance.randbytes(chance.randrange(1, 40)) for _ in range(40)
    ]
    theirs, ours = {}, {}
    confluent = Producer({"bootstrap.servers": servers, "partitioner": partitioner})
    for key in keys:
        confluent.produce(
            name, b"", key, on_delivery=lambda e, m: theirs.update({m.key(): m.partition()})
        )
    assert confluent.flush(30) == 0
    with TwoPhaseProducer({**config, "partitioner": partitioner}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for key in keys:
            producer.produce(
                name, b"", key, on_delivery=lambda e, m: ours.update({m.key(): m.partition()})
            )
        producer.commit_transaction()

    assert ours == theirs
    assert len(set(ours.values())) > 1


def test_random_spreads_and_keyless_records_stick(config, servers, name):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 5, 1)])[name].result(30)
    used = {}
    for partitioner in ("random", "murmur2_random"):
        seen = used[partitioner] = set()
        given = {**config, "transactional.id": name + partitioner, "partitioner": partitioner}
        with TwoPhaseProducer({**given, "linger.ms": 10_000}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for _ in range(100):
                producer.produce(
                    name, b"", on_delivery=lambda e, m, seen=seen: seen.add(m.partition())
                )
            producer.commit_transaction()

    assert len(used["random"]) == 5
    assert len(used["murmur2_random"]) == 1
