"""Fetch: waiting, waking, sizes and isolation."""

import threading

import pytest

from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from dualwrite.wire.messages.fetch import FetchPartition, FetchTopic
from dualwrite.wire.messages.metadata import MetadataRequest
from tests.broker.raw_client import RawClient, batch, fetch_request, offsets_of, values_of

FETCH = 1


@pytest.fixture
def reader(bootstrap):
    with RawClient(bootstrap) as connected:
        yield connected


def wait_until_parked(shared_broker, count):
    """Wait until so many fetches wait in the broker."""
    done = threading.Event()
    waiting = shared_broker.node._waiting
    while len(waiting) < count:
        done.wait(0.005)


def test_a_fetch_waits_for_records_and_gets_them(shared_broker, client, reader, topic):
    reader.send(fetch_request(topic, max_wait_ms=15_000), 12)
    wait_until_parked(shared_broker, 1)

    client.produce(topic, batch(b"news"))

    _, answer = reader.receive(FETCH, 12)
    assert values_of(answer.responses[0].partitions[0]) == [b"news"]


def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for(shared_broker, client, reader, topic):
    reader.send(fetch_request(topic, max_wait_ms=15_000, min_bytes=300), 12)
    wait_until_parked(shared_broker, 1)

    client.produce(topic, batch(b"x" * 50))
    client.produce(topic, batch(b"y" * 250))

    _, answer = reader.receive(FETCH, 12)
    assert len(values_of(answer.responses[0].partitions[0])) == 2


def test_a_fetch_that_waits_in_vain_ends_at_its_deadline(reader, topic):
    answer = reader.call(fetch_request(topic, max_wait_ms=50), 12)

    part = answer.responses[0].partitions[0]
    assert (part.error_code, part.records, part.high_watermark) == (0, b"", 0)


@pytest.mark.parametrize("commit", [True, False])
def test_read_committed_wakes_when_the_transaction_ends(
    shared_broker, client, reader, topic, commit
):
    mine = client.init_producer(topic)
    pair = (mine.producer_id, mine.producer_epoch)
    data = batch(b"x", pair=pair, sequence=0, transactional=True)
    client.produce(topic, data, version=12, transactional_id=topic)
    reader.send(fetch_request(topic, max_wait_ms=15_000, isolation_level=1), 12)
    wait_until_parked(shared_broker, 1)

    client.end_txn(topic, pair, commit=commit)

    _, answer = reader.receive(FETCH, 12)
    part = answer.responses[0].partitions[0]
    assert offsets_of(part) == [(0, 0, False), (1, 1, True)]
    # KAFKA-5376: a delayed fetch must list what was aborted while it waited.
    aborted = [(a.producer_id, a.first_offset) for a in part.aborted_transactions]
    assert aborted == ([] if commit else [(pair[0], 0)])


def test_a_waiting_fetch_hears_that_its_topic_is_gone(shared_broker, client, reader, topic):
    reader.send(fetch_request(topic, max_wait_ms=15_000), 12)
    wait_until_parked(shared_broker, 1)

    client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)]), 6)

    _, answer = reader.receive(FETCH, 12)
    part = answer.responses[0].partitions[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_connection_that_goes_away_leaves_no_waiting_fetch(shared_broker, bootstrap, topic):
    with RawClient(bootstrap) as gone:
        gone.send(fetch_request(topic, max_wait_ms=600_000), 12)
        wait_until_parked(shared_broker, 1)

    done = threading.Event()
    while len(shared_broker.node._waiting):
        done.wait(0.005)


def test_requests_behind_a_waiting_fetch_are_answered_in_order(
    shared_broker, client, reader, topic
):
    first = reader.send(fetch_request(topic, max_wait_ms=15_000), 12)
    second = reader.send(MetadataRequest(topics=[]), 12)
    wait_until_parked(shared_broker, 1)

    client.produce(topic, batch(b"news"))

    assert reader.receive(FETCH, 12)[0] == first
    assert reader.receive(3, 12)[0] == second


def test_the_first_batch_comes_whatever_its_size_and_the_limits_hold_for_the_rest(client, name):
    client.create_topic(name, partitions=3)
    for partition in range(3):
        for _ in range(3):
            client.produce(name, batch(b"x" * 1000), partition=partition)
    parts = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(3)]

    def sizes(max_bytes, partition_max_bytes=1 << 20):
        for part in parts:
            part.partition_max_bytes = partition_max_bytes
        request = fetch_request(name, max_bytes=max_bytes)
        request.topics = [FetchTopic(topic=name, partitions=parts)]
        found = client.call(request, 12).responses[0].partitions
        return [len(offsets_of(part)) for part in found]

    assert sizes(1) == [1, 0, 0]
    assert sizes(2_500) == [2, 0, 0]
    assert sizes(1 << 20, partition_max_bytes=1) == [1, 0, 0]
    assert sizes(1 << 20, partition_max_bytes=2_500) == [2, 2, 2]
    assert sizes(1 << 20) == [3, 3, 3]


def test_log_append_time_is_the_brokers(client, name):
    client.create_topic(name, message_timestamp_type="LogAppendTime")

    part = client.produce(name, batch(b"x", timestamp_ms=1_000))

    assert part.log_append_time_ms > 1_600_000_000_000
    from dualwrite.wire.records import BatchHeader, check_batch

    data = bytes(client.fetch(name).records)
    header = BatchHeader.parse(data)
    assert header.is_log_append_time
    assert header.max_timestamp == part.log_append_time_ms
    with pytest.raises(ValueError, match="log append time"):
        check_batch(data)  # the checksum is right: the one complaint is about the flag


def test_a_compacted_topic_needs_keys(client, name):
    client.create_topic(name, cleanup_policy="compact")

    assert client.produce(name, batch(b"x")).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(name, batch(b"x", keys=[b"k"])).error_code == 0
