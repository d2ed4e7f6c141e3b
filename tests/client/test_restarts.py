"""Brokers and clients that die: nothing is lost, nothing is doubled, what is prepared stays."""

import multiprocessing
import os
import random
import signal
import threading

import pytest

from dualwrite import PreparedTxnState, TwoPhaseProducer
from dualwrite.broker import BrokerProcess
from dualwrite.pytest_plugin import read_topic


def values(topic, servers):
    return [message.value() for message in read_topic(topic, servers)]


@pytest.fixture(scope="module")
def broker():
    with BrokerProcess() as broker:
        yield broker


def settings(broker, name, two_phase=True):
    given = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
    return {**given, "transaction.two.phase.commit.enable": two_phase, "retry.backoff.ms": 20}


def start(broker, name, keep=False):
    producer = TwoPhaseProducer(settings(broker, name))
    producer.init_transactions(keep_prepared_txn=keep, timeout=30)
    return producer


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_is_killed_while_records_are_under_way(broker, name, seed):
    chance = random.Random(seed)
    delay_seconds = chance.uniform(0, 0.3)

    def kill_and_restart():
        broker.kill()
        broker.restart()

    with start(broker, name) as producer:
        expected = []
        killer = threading.Timer(delay_seconds, kill_and_restart)
        killer.start()
        for number in range(40):
            producer.begin_transaction()
            for part in range(chance.randrange(1, 50)):
                value = b"%d-%d" % (number, part)
                producer.produce(name, value, partition=0)
                expected.append(value)
            state = producer.prepare_transaction(timeout=60)
            assert producer.complete_transaction(state, timeout=60) == "committed"
        killer.join()

    assert values(name, broker.bootstrap_servers) == expected


def test_a_prepared_transaction_survives_the_broker(broker, name):
    producer = start(broker, name)
    producer.begin_transaction()
    producer.produce(name, b"1")
    state = producer.prepare_transaction()
    broker.kill()
    broker.restart()

    assert values(name, broker.bootstrap_servers) == []
    assert producer.complete_transaction(state) == "committed"
    producer.close()
    assert values(name, broker.bootstrap_servers) == [b"1"]


def prepare_and_wait(config, topic, pipe):
    producer = TwoPhaseProducer(config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"1")
    pipe.send(str(producer.prepare_transaction()))
    signal.pause()


@pytest.mark.parametrize("verdict", ["committed", "aborted"])
def test_a_prepared_transaction_survives_the_client_and_the_broker(broker, name, verdict):
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=prepare_and_wait, args=(settings(broker, name), name, theirs)
    )
    process.start()
    state = PreparedTxnState.parse(ours.recv())
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    broker.kill()
    broker.restart()

    with start(broker, name, keep=True) as second:
        assert second.prepared_txn_state == state
        said = state if verdict == "committed" else PreparedTxnState(state.producer_id, 30_000)
        assert second.complete_transaction(said) == verdict
    expected = [b"1"] if verdict == "committed" else []
    assert values(name, broker.bootstrap_servers) == expected


def test_a_commit_that_found_no_broker_is_repeated_after_its_return(broker, name):
    """T-18: the outcome is decided, only the answer is missing; the same call asks again."""
    from dualwrite import InvalidTxnState
    from dualwrite.failures import KafkaTimeout

    with start(broker, name) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        state = producer.prepare_transaction()
        broker.kill()
        for _ in range(2):
            with pytest.raises(KafkaTimeout):
                producer.complete_transaction(state, timeout=0.3)
            with pytest.raises(InvalidTxnState):
                producer.abort_transaction(timeout=0.3)
        broker.restart()
        assert producer.complete_transaction(state, timeout=30) == "committed"

    assert values(name, broker.bootstrap_servers) == [b"1"]
