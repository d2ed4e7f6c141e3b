"""Transactions before KIP-890: librdkafka's own mock cluster of three brokers, and ours at level 0."""

import asyncio
import time

import pytest
from confluent_kafka import Producer

from dualwrite import AsyncTwoPhaseProducer, InvalidTxnState, TransactionAdmin, TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.failures import UnsupportedByBroker
from dualwrite.pytest_plugin import read_topic


@pytest.fixture(scope="module")
def mock_servers():
    """A cluster that is not ours: topics with four partitions, led by three brokers."""
    mock = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 3, "log_level": 0})
    brokers = mock.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    mock.flush(0)


@pytest.fixture(scope="module")
def old_broker():
    with Broker(settings={"transaction.version": 0}) as broker:
        yield broker.bootstrap_servers


def start(servers, name, **more):
    given = {"bootstrap.servers": servers, "transactional.id": name}
    producer = TwoPhaseProducer({**given, **more})
    producer.init_transactions(timeout=30)
    return producer


def test_records_reach_all_leaders_of_a_cluster(mock_servers, name):
    told = []
    with start(mock_servers, name) as producer:
        assert producer.transaction_version == 1
        for number in range(5):
            producer.begin_transaction()
            for partition in range(4):
                producer.produce(
                    name,
                    b"%d" % number,
                    partition=partition,
                    on_delivery=lambda e, m: told.append((e, m.partition(), m.offset())),
                )
            producer.commit_transaction()

    assert all(error is None for error, _, _ in told)
    for partition in range(4):
        offsets = [offset for _, where, offset in told if where == partition]
        assert len(offsets) == 5
        assert offsets == sorted(set(offsets))


def test_aborts_and_offsets_at_a_foreign_cluster(mock_servers, name):
    with start(mock_servers, name) as producer:
        pair = producer.producer_pair
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce(name, b"1")
            producer.send_offsets_to_transaction({(name, 0): 1}, "group-" + name)
            producer.flush()
            end()
        assert producer.producer_pair == pair
        producer.bump_epoch()
        assert producer.producer_pair != pair


def test_the_asyncio_driver_at_a_foreign_cluster(mock_servers, name):
    async def main():
        given = {"bootstrap.servers": mock_servers, "transactional.id": name}
        async with AsyncTwoPhaseProducer(given) as producer:
            await producer.init_transactions(timeout=30)
            for _ in range(3):
                await producer.begin_transaction()
                for partition in range(4):
                    await producer.produce(name, b"1", partition=partition)
                await producer.commit_transaction()

    asyncio.run(main())


@pytest.mark.parametrize("which", ["mock_servers", "old_broker"])
def test_two_phase_commit_is_refused(request, which, name):
    servers = request.getfixturevalue(which)
    two_phase = {"transaction.two.phase.commit.enable": True}
    producer = TwoPhaseProducer(
        {"bootstrap.servers": servers, "transactional.id": name, **two_phase}
    )
    with producer, pytest.raises(UnsupportedByBroker, match=r"transaction\.version"):
        producer.init_transactions(timeout=30)
    producer = TwoPhaseProducer({"bootstrap.servers": servers, "transactional.id": name})
    with producer, pytest.raises(UnsupportedByBroker):
        producer.init_transactions(keep_prepared_txn=True, timeout=30)


def test_our_broker_at_level_0(old_broker, name):
    with start(old_broker, name) as producer:
        assert producer.transaction_version == 1
        pair = producer.producer_pair
        for value, end in (
            (b"1", producer.commit_transaction),
            (b"2", producer.abort_transaction),
            (b"3", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce(name, value, partition=0)
            producer.send_offsets_to_transaction({(name, 0): 1}, "group-" + name)
            producer.flush()
            end()
        assert producer.producer_pair == pair
        producer.begin_transaction()
        producer.produce(name, b"4", partition=0)
        with pytest.raises(InvalidTxnState):
            producer.prepare_transaction()
        assert producer.flush_transaction() == pair
        with TransactionAdmin({"bootstrap.servers": old_broker}) as admin:
            assert admin.features().transaction_version < 2
            admin.end_txn(name, pair.producer_id, pair.epoch, commit=True)
        producer.commit_transaction()  # a repetition of the same end

    found = [message.value() for message in read_topic(name, old_broker)]
    assert found == [b"1", b"3", b"4"]


def test_an_empty_and_a_failed_transaction_at_level_0(old_broker, name):
    with start(old_broker, name, **{"delivery.timeout.ms": 5_000}) as producer:
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce(name, b"1", partition=0)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce(name, b"2", partition=0)
        producer.commit_transaction()

    assert [message.value() for message in read_topic(name, old_broker)] == [b"2"]


def test_a_transaction_that_timed_out_at_level_0(name):
    """The abort takes a new epoch (KIP-360), because the sequences of the old one are lost."""
    settings = {
        "transaction.version": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    }
    with Broker(settings=settings) as broker:
        servers = broker.bootstrap_servers
        with (
            start(servers, name, **{"transaction.timeout.ms": 100}) as producer,
            TransactionAdmin({"bootstrap.servers": servers}) as admin,
        ):
            producer.begin_transaction()
            producer.produce(name, b"1", partition=0)
            producer.flush()
            deadline = time.monotonic() + 30
            while admin.describe_transactions([name])[name].state != "CompleteAbort":
                assert time.monotonic() < deadline
        with start(servers, name) as producer:
            producer.begin_transaction()
            producer.produce(name, b"2", partition=0)
            producer.commit_transaction()
        assert [message.value() for message in read_topic(name, servers)] == [b"2"]
