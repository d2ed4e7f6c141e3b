"""`TwoPhaseProducer` against the bundled broker: what a caller sees."""

import logging
import threading
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from dualwrite import (
    ConfigurationError,
    Fenced,
    GroupMetadata,
    HeuristicAbort,
    InvalidTxnState,
    KafkaError,
    PreparedTxnState,
    TransactionAdmin,
    TwoPhaseProducer,
)
from dualwrite.broker import Broker
from dualwrite.delivery import TIMESTAMP_CREATE_TIME
from dualwrite.failures import AbortableError, KafkaTimeout
from dualwrite.pytest_plugin import read_topic


def values(topic, servers):
    return [message.value() for message in read_topic(topic, servers)]


def start(config, keep=False):
    producer = TwoPhaseProducer(config)
    producer.init_transactions(keep_prepared_txn=keep, timeout=30)
    return producer


def test_a_committed_transaction_is_seen_and_an_aborted_one_is_not(config, servers, name):
    with start(config) as producer:
        for end, value in (
            (producer.commit_transaction, b"1"),
            (producer.abort_transaction, b"2"),
            (producer.commit_transaction, b"3"),
        ):
            producer.begin_transaction()
            producer.produce(name, value)
            producer.flush()
            end()

    assert values(name, servers) == [b"1", b"3"]


def test_the_answer_to_a_started_commit_can_be_taken_later(config, servers, name):
    with start(config) as producer:
        for value in (b"1", b"2"):
            producer.begin_transaction()
            producer.produce(name, value)
            producer.flush()
            producer.start_commit()
            with pytest.raises(InvalidTxnState):
                producer.begin_transaction()
            producer.commit_transaction()

    assert values(name, servers) == [b"1", b"2"]


def test_a_started_commit_arrives_although_nobody_waits_for_its_answer(config, servers, name):
    producer = start(config)
    producer.begin_transaction()
    producer.produce(name, b"1")
    producer.flush()
    producer.start_commit()
    producer.close()

    with start(config):
        assert values(name, servers) == [b"1"]


def test_a_started_commit_survives_the_loss_of_its_connection(config, servers, name):
    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        producer.flush()
        producer._driver.abandon()
        producer.start_commit()
        producer.commit_transaction()

    assert values(name, servers) == [b"1"]


def test_a_record_arrives_as_it_was_given(config, servers, name):
    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(
            name,
            value="välue",
            key="kéy",
            timestamp=1234567890123,
            headers=[("a", b"1"), ("a", "2"), ("n", None)],
        )
        producer.produce(name, value=None, key=b"tombstone", headers={"h": b"x"})
        producer.commit_transaction()

    first, second = read_topic(name, servers)
    assert (first.value(), first.key()) == ("välue".encode(), "kéy".encode())
    assert first.timestamp() == (1, 1234567890123)
    assert first.headers() == [("a", b"1"), ("a", b"2"), ("n", None)]
    assert (second.value(), second.key(), second.headers()) == (None, b"tombstone", [("h", b"x")])
    assert abs(second.timestamp()[1] - time.time() * 1000) < 60_000


def test_buffers_are_copied_when_they_are_given(config, servers, name):
    with start(config) as producer:
        producer.begin_transaction()
        buffer = bytearray(b"before")
        producer.produce(name, buffer, key=memoryview(buffer))
        buffer[:] = b"after!"
        producer.commit_transaction()

    (message,) = read_topic(name, servers)
    assert (message.key(), message.value()) == (b"before", b"before")


def test_delivery_callbacks_are_run_by_poll_and_flush(config, name):
    told = []
    with start(config) as producer:
        producer.begin_transaction()
        for number in range(3):
            producer.produce(
                name, b"%d" % number, key=b"k", on_delivery=lambda e, m: told.append((e, m))
            )
        assert told == []
        assert producer.flush() == 0
        producer.abort_transaction()

    assert [(e, m.topic(), m.offset(), m.value(), m.key()) for e, m in told] == [
        (None, name, number, b"%d" % number, b"k") for number in range(3)
    ]
    assert told[0][1].timestamp()[0] == TIMESTAMP_CREATE_TIME
    assert told[0][1].error() is None


def test_a_callback_that_raises_reaches_the_caller_of_flush_but_never_hides_an_end(
    config, servers, name, caplog
):
    def raising(error, message):
        raise RuntimeError("my own fault")

    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1", on_delivery=raising)
        with pytest.raises(RuntimeError, match="my own"):
            producer.flush()
        producer.produce(name, b"2", on_delivery=raising)
        with caplog.at_level(logging.ERROR):
            producer.commit_transaction()

    assert "delivery callback failed" in caplog.text
    assert values(name, servers) == [b"1", b"2"]


def test_aborted_records_are_reported_as_such(config, name):
    told = []
    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1", on_delivery=lambda e, m: told.append((e, m)))
        producer.abort_transaction()

    ((error, message),) = told
    assert isinstance(error, KafkaError)
    assert message.error() is error
    assert message.offset() < 0


def test_rows_arrive_in_order_and_are_counted(config, servers, name):
    rows = [(b"k", b"%d" % n, [("h", b"1")] if n % 2 else None, n % 3) for n in range(5_000)]
    with start({**config, "queue.buffering.max.messages": 1_000}) as producer:
        producer.begin_transaction()
        assert producer.produce_batch(name, rows, partition=0) == 5_000
        producer.commit_transaction()

    found = read_topic(name, servers)
    assert [m.value() for m in found] == [row[1] for row in rows]
    assert found[1].headers() == [("h", b"1")]
    assert found[1].timestamp()[1] == 1


def test_a_full_queue_is_a_buffer_error_until_poll(config, servers, name):
    with start({**config, "queue.buffering.max.messages": 10, "linger.ms": 0}) as producer:
        producer.begin_transaction()
        refused = 0
        for number in range(100):
            while True:
                try:
                    producer.produce(name, b"%d" % number, partition=0)
                    break
                except BufferError:
                    refused += 1
                    producer.poll(1)
        producer.commit_transaction()

    assert values(name, servers) == [b"%d" % number for number in range(100)]


def test_a_full_queue_without_polling(config, name):
    with start({**config, "queue.buffering.max.messages": 3, "linger.ms": 10_000}) as producer:
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(name, b"x")
        with pytest.raises(BufferError, match="poll"):
            producer.produce(name, b"x")
        assert len(producer) == 3
        producer.abort_transaction()
        assert len(producer) == 0


# Prepared transactions


def test_prepare_and_complete(two_phase, servers, name):
    with start(two_phase) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        state = producer.prepare_transaction()
        assert str(state) == f"{state.producer_id}:{state.epoch}"
        assert producer.prepared_txn_state == state
        assert values(name, servers) == []

        assert producer.complete_transaction(str(state)) == "committed"

        assert values(name, servers) == [b"1"]
        assert producer.prepared_txn_state == PreparedTxnState.NONE
        producer.begin_transaction()
        producer.produce(name, b"2")
        producer.prepare_transaction()
        assert producer.complete_transaction(state) == "aborted"
        assert producer.complete_transaction(state) == "none"

    assert values(name, servers) == [b"1"]


def test_every_other_call_is_refused_while_prepared(two_phase, name):
    with start(two_phase) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        producer.prepare_transaction()
        for call in (
            lambda: producer.init_transactions(),
            lambda: producer.begin_transaction(),
            lambda: producer.produce(name, b"2"),
            lambda: producer.produce_batch(name, []),
            lambda: producer.send_offsets_to_transaction({("t", 0): 1}, "group"),
            lambda: producer.prepare_transaction(),
            lambda: producer.flush_transaction(),
            lambda: producer.flush(),
            lambda: producer.poll(),
            lambda: producer.bump_epoch(),
        ):
            with pytest.raises(InvalidTxnState):
                call()
        producer.commit_transaction()


def test_close_leaves_a_prepared_transaction_alone(two_phase, servers, name):
    """T-15: neither close nor a failing block may abort what the database may have decided."""
    prepared = []

    def failing_block():
        with start(two_phase) as producer:
            producer.begin_transaction()
            producer.produce(name, b"1")
            prepared.append(producer.prepare_transaction())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_block()
    (state,) = prepared

    with start(two_phase, keep=True) as second:
        assert second.prepared_txn_state == state
        assert second.complete_transaction(state) == "committed"
    assert values(name, servers) == [b"1"]


def test_close_aborts_an_open_transaction(config, servers, name):
    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        producer.flush()

    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        assert admin.describe_transactions([name])[name].state == "CompleteAbort"
    producer.close()
    with pytest.raises(InvalidTxnState, match="closed"):
        producer.begin_transaction()


def test_init_without_keep_aborts_what_was_prepared(two_phase, servers, name):
    with start(two_phase) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        state = producer.prepare_transaction()

    with start(two_phase) as second:
        assert second.prepared_txn_state == PreparedTxnState.NONE
        # The application's database may say otherwise; that must not pass in silence.
        with pytest.raises(HeuristicAbort):
            second.complete_transaction(state)
    assert values(name, servers) == []


def test_a_forced_end_is_reported_to_whoever_recovers(two_phase, servers, name):
    with start(two_phase) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1")
        state = producer.prepare_transaction()
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        admin.force_terminate_transaction(name)
        last = admin.describe_transactions([name])[name].last_finished
        assert (last.pair, last.outcome, last.cause) == (state, "abort", "forced")

    with start(two_phase, keep=True) as second:
        with pytest.raises(HeuristicAbort, match="forced"):
            second.complete_transaction(state)
        assert second.complete_transaction(PreparedTxnState(1, 1)) == "none"


def test_recovery_fences_the_first_producer_everywhere(two_phase, servers, name):
    first = start(two_phase)
    first.begin_transaction()
    first.produce(name, b"1")
    state = first.prepare_transaction()
    second = start(two_phase, keep=True)
    third = start(two_phase, keep=True)

    for older in (first, second):
        with pytest.raises(Fenced):
            older.complete_transaction(state)
        with pytest.raises(Fenced):
            older.commit_transaction()
    assert third.complete_transaction(state) == "committed"
    for producer in (first, second, third):
        producer.close()
    assert values(name, servers) == [b"1"]


def test_a_zombie_cannot_write_into_a_kept_transaction(two_phase, servers, name):
    zombie = start(two_phase)
    zombie.begin_transaction()
    zombie.produce(name, b"1")
    zombie.flush()
    with start(two_phase, keep=True) as second:
        zombie.produce(name, b"late")
        with pytest.raises((AbortableError, Fenced)):
            zombie.commit_transaction()
        state = second.prepared_txn_state
        assert second.complete_transaction(state) == "committed"
    zombie.close()

    assert values(name, servers) == [b"1"]


def test_crash_loops_bump_the_epoch_and_end_well(two_phase, servers, name):
    producer = start(two_phase)
    producer.begin_transaction()
    producer.produce(name, b"1")
    state = producer.prepare_transaction()
    producer.close()
    pairs = set()
    for _ in range(5):
        with start(two_phase, keep=True) as again:
            pairs.add(again.producer_pair)
            assert again.prepared_txn_state == state
    with start(two_phase, keep=True) as last:
        assert last.complete_transaction(state) == "committed"
        last.begin_transaction()
        last.produce(name, b"2")
        last.commit_transaction()

    assert len(pairs) == 5
    assert values(name, servers) == [b"1", b"2"]


def test_preparing_nothing_gives_the_empty_state(two_phase, name):
    with start(two_phase) as producer:
        producer.begin_transaction()
        state = producer.prepare_transaction()
        assert str(state) == ""
        assert producer.complete_transaction(state) == "none"
        producer.begin_transaction()
        producer.produce(name, b"1")
        assert producer.prepare_transaction() == producer.producer_pair
        producer.abort_transaction()


def test_keep_prepared_works_without_two_phase_commit(config, servers, name):
    """KIP-939 allows it: a transaction with a timeout can be kept over a restart too."""
    first = start(config)
    first.begin_transaction()
    first.produce(name, b"1")
    pair = first.flush_transaction()
    with start(config, keep=True) as second:
        assert second.prepared_txn_state == pair
        assert second.complete_transaction(pair) == "committed"
    first.close()

    assert values(name, servers) == [b"1"]


def test_threads_that_produce_while_another_prepares(two_phase, servers, name):
    """T-16: a record is either in the prepared transaction or refused, never in between."""
    with start(two_phase) as producer:
        producer.begin_transaction()
        accepted, refused = [], []
        go = threading.Barrier(5)

        def write(thread):
            go.wait()
            for number in range(2_000):
                value = b"%d-%d" % (thread, number)
                try:
                    producer.produce(name, value, partition=0)
                except InvalidTxnState:
                    refused.append(value)
                    return
                accepted.append(value)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        go.wait()
        state = producer.prepare_transaction()
        for thread in threads:
            thread.join()
        assert producer.complete_transaction(state) == (
            "committed" if state.has_transaction else "none"
        )

    assert sorted(values(name, servers) if accepted else []) == sorted(accepted)


# Offsets


def test_offsets_are_committed_with_the_transaction(config, servers, name):
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name})
    try:
        with start(config) as producer:
            producer.begin_transaction()
            producer.produce(name, b"1", partition=0)
            producer.send_offsets_to_transaction([TopicPartition(name, 0, 41)], name)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({(name, 0): 99}, GroupMetadata(name))
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                {(name, 0): 42, (name, 1): -1001}, GroupMetadata(name)
            )
            producer.commit_transaction()
        (committed,) = consumer.committed([TopicPartition(name, 0)], timeout=30)
    finally:
        consumer.close()

    assert committed.offset == 42


def test_offsets_of_a_real_consumer_group(config, servers, name):
    with start(config) as producer:
        producer.begin_transaction()
        producer.produce(name, b"1", partition=0)
        producer.commit_transaction()
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.subscribe([name])
            message = consumer.poll(30)
            assert message.error() is None
            group = consumer.consumer_group_metadata()
            producer.begin_transaction()
            producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), group)
            producer.commit_transaction()
            (committed,) = consumer.committed([TopicPartition(name, 0)], timeout=30)
            assert committed.offset == 1

            stale = GroupMetadata(name, 77, GroupMetadata.parse(group).member_id)
            producer.begin_transaction()
            with pytest.raises(AbortableError, match="ILLEGAL_GENERATION"):
                producer.send_offsets_to_transaction({(name, 0): 7}, stale)
            producer.abort_transaction()
        finally:
            consumer.close()


# Misuse


@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction", "abort_transaction"])
def test_nothing_works_before_init(config, call):
    with TwoPhaseProducer(config) as producer, pytest.raises(InvalidTxnState):
        getattr(producer, call)()


def test_calls_in_a_wrong_order(config, name):
    with start(config) as producer:
        with pytest.raises(InvalidTxnState):
            producer.init_transactions()
        with pytest.raises(InvalidTxnState):
            producer.produce(name, b"1")
        with pytest.raises(InvalidTxnState):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(InvalidTxnState):
            producer.begin_transaction()
        with pytest.raises(InvalidTxnState):
            producer.prepare_transaction()
        with pytest.raises(InvalidTxnState):
            producer.complete_transaction("1:2")
        producer.commit_transaction()


@pytest.mark.parametrize("bad", [7, 1.5, ["x"], object()])
def test_content_of_a_wrong_type_is_refused_before_it_is_buffered(config, name, bad):
    with start(config) as producer:
        producer.begin_transaction()
        with pytest.raises(TypeError):
            producer.produce(name, bad)
        with pytest.raises(TypeError):
            producer.produce(name, b"x", headers=[("a", bad)])
        with pytest.raises(TypeError):
            producer.send_offsets_to_transaction([bad], "g")
        assert len(producer) == 0


@pytest.mark.parametrize("state", ["1", "1:2:3", "-1:0", "x:y"])
def test_a_state_that_cannot_be_is_refused(config, state):
    with start(config) as producer, pytest.raises(ValueError):
        producer.complete_transaction(state)


def test_two_phase_commit_and_a_timeout_exclude_each_other(two_phase):
    with pytest.raises(ConfigurationError, match=r"transaction\.timeout\.ms"):
        TwoPhaseProducer({**two_phase, "transaction.timeout.ms": 1000})


def test_an_unknown_key_is_refused_with_a_suggestion(config):
    with pytest.raises(ConfigurationError, match=r"transaction\.two\.phase\.commit\.enable"):
        TwoPhaseProducer({**config, "transaction.two.phase.comit.enable": True})


def test_a_partition_that_does_not_exist(config, name):
    with start(config) as producer:
        producer.begin_transaction()
        with pytest.raises(KafkaError) as caught:
            producer.produce(name, b"1", partition=77)
        assert caught.value.code == 3
        producer.produce(name, b"1", partition=0)
        producer.commit_transaction()


def test_a_topic_name_that_cannot_be(config):
    with start(config) as producer:
        producer.begin_transaction()
        with pytest.raises(KafkaError) as caught:
            producer.produce("no/such name", b"1")
        assert caught.value.code == 17


def test_no_broker_is_a_timeout_that_says_why(unused_port):
    producer = TwoPhaseProducer(
        {"bootstrap.servers": f"127.0.0.1:{unused_port}", "transactional.id": "t"}
    )
    with producer, pytest.raises(KafkaTimeout, match=r"no answer in time.*refused") as caught:
        producer.init_transactions(timeout=0.3)
    assert caught.value.retriable()


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def test_a_transaction_that_the_broker_aborted_by_timeout(name):
    """The producer lives on: its own abort is answered, and the next transaction works."""
    with Broker(transaction_abort_timed_out_transaction_cleanup_interval_ms=50) as broker:
        servers = broker.bootstrap_servers
        given = {"bootstrap.servers": servers, "transactional.id": name}
        with (
            start({**given, "transaction.timeout.ms": 100}) as producer,
            TransactionAdmin({"bootstrap.servers": servers}) as admin,
        ):
            producer.begin_transaction()
            producer.produce(name, b"1")
            producer.flush()
            deadline = time.monotonic() + 30
            while admin.describe_transactions([name])[name].state != "CompleteAbort":
                assert time.monotonic() < deadline
            producer.produce(name, b"2")
            with pytest.raises(AbortableError):
                producer.commit_transaction()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.produce(name, b"3")
            producer.commit_transaction()
        assert values(name, servers) == [b"3"]
