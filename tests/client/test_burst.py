"""Records that `produce` takes without its lock: none is lost, doubled or put in the wrong place."""

import random
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import InvalidTxnState, TwoPhaseProducer
from dualwrite.flows.burst import Burst
from dualwrite.partitioner import murmur2
from dualwrite.pytest_plugin import read_topic

LINGER_MS = 10_000


@pytest.fixture
def producer(config):
    with TwoPhaseProducer({**config, "linger.ms": LINGER_MS}) as producer:
        producer.init_transactions()
        yield producer


class Pairs(list):
    """Lets another thread do something while a pair is being put into the list."""

    def __init__(self, before=None, after=None):
        super().__init__()
        self._before = before
        self._after = after

    def append(self, pair):
        for happen, is_now in ((self._before, True), (self._after, False)):
            if happen is not None:
                thread = threading.Thread(target=happen)
                thread.start()
                thread.join()
            if is_now:
                super().append(pair)


def in_a_burst(producer, name, pairs):
    """Begin a transaction with one record, and a burst that takes the next."""
    producer.begin_transaction()
    producer.produce(name, b"first", partition=0)
    forever = time.monotonic() + 3_600
    producer._burst = Burst(name, 0, type(None), 100, 100, 1, 0.0, forever, pairs)


def values(topic, servers):
    return [message.value() for message in read_topic(topic, servers)]


def test_a_record_that_is_in_time_is_in_the_transaction(producer, servers, name):
    in_a_burst(producer, name, Pairs(after=producer.commit_transaction))
    producer.produce(name, b"second", partition=0)

    assert values(name, servers) == [b"first", b"second"]
    with pytest.raises(InvalidTxnState):
        producer.produce(name, b"third", partition=0)


def test_a_record_that_comes_after_the_end_is_refused(producer, servers, name):
    in_a_burst(producer, name, Pairs(before=producer.commit_transaction))
    with pytest.raises(InvalidTxnState):
        producer.produce(name, b"second", partition=0)

    assert values(name, servers) == [b"first"]
    producer.begin_transaction()
    producer.produce(name, b"third", partition=0)
    producer.commit_transaction()
    assert values(name, servers) == [b"first", b"third"]


def test_a_record_that_comes_after_the_end_goes_into_the_next_transaction(producer, servers, name):
    def next_transaction():
        producer.abort_transaction()
        producer.begin_transaction()

    in_a_burst(producer, name, Pairs(before=next_transaction))
    producer.produce(name, b"second", partition=0)
    producer.commit_transaction()

    assert values(name, servers) == [b"second"]


def test_late_records_of_several_threads_are_told_apart():
    burst = Burst(pairs=[in_time := (None, b"same")])
    assert burst.close() == [(None, b"same")]
    late = [(None, value) for value in (b"same", b"other")]
    late[0] = (None, bytes(bytearray(b"same")))
    burst.pairs += late

    assert not burst.has_missed(in_time)
    assert burst.has_missed(late[1])
    assert burst.has_missed(late[0])
    assert burst.pairs == [in_time]


def test_what_waits_is_counted(producer, name):
    in_a_burst(producer, name, [])
    producer.produce(name, b"second", partition=0)

    assert len(producer) == 2
    producer.abort_transaction()
    assert len(producer) == 0


def test_threads_produce_while_another_flushes(config, servers, name):
    each = 3_000
    with TwoPhaseProducer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()

        def write(thread):
            for number in range(each):
                producer.produce(name, b"%d-%d" % (thread, number), partition=0)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            producer.flush()
        producer.commit_transaction()

    found = values(name, servers)
    for thread in range(4):
        own = [value for value in found if value.startswith(b"%d-" % thread)]
        assert own == [b"%d-%d" % (thread, number) for number in range(each)]


def mixed(chance, count):
    """Records in runs of one kind, as callers produce them; the value ends with the number."""
    kinds = ("plain", "keyed", "empty key", "headers", "stamped", "long", "told")
    number = 0
    while number < count:
        kind = chance.choice(kinds)
        for _ in range(chance.choice((1, 3, 50))):
            key = {"keyed": b"%d" % chance.randrange(50), "empty key": b""}.get(kind)
            size = chance.randrange(7_000, 9_000) if kind == "long" else chance.randrange(90)
            value = bytes(size) + b"%06d" % number
            headers = [("h", b"1")] if kind == "headers" else None
            yield kind, key, value, headers, number if kind == "stamped" else 0
            number += 1


@pytest.mark.parametrize("way", ["one by one", "as rows"])
@pytest.mark.parametrize("seed", range(3))
def test_records_of_all_kinds_stay_in_order(config, servers, name, seed, way):
    print(f"seed {seed}")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 3)])[name].result(30)
    records = list(mixed(random.Random(seed), 5_000))
    with TwoPhaseProducer({**config, "batch.size": 50_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        if way == "as rows":
            producer.produce_batch(name, (record[1:] for record in records))
        else:
            for kind, key, value, headers, stamp in records:
                told = (lambda *_: None) if kind == "told" else None
                producer.produce(name, value, key, -1, told, stamp, headers)
        producer.commit_transaction()

    found = read_topic(name, servers)
    given = {record[2]: record for record in records}
    assert sorted(m.value() for m in found) == sorted(given)
    last = [-1, -1, -1]
    for message in sorted(found, key=lambda m: (m.partition(), m.offset())):
        _, key, value, headers, stamp = given[message.value()]
        assert (message.key(), message.headers()) == (key, headers)
        assert not stamp or message.timestamp()[1] == stamp
        if key is not None:
            assert message.partition() == murmur2(key) % 3
        number = int(value[-6:])
        assert number > last[message.partition()]
        last[message.partition()] = number
