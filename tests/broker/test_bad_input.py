"""Requests that must not do anything, and the code that Kafka answers them with."""

import struct

import pytest

from dualwrite.wire.batch_header import HEADER_SIZE, BatchHeader, seal
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frame import encode_request
from dualwrite.wire.message import NO_UUID
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from dualwrite.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from dualwrite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from dualwrite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from dualwrite.wire.records import control_batch
from tests.broker.raw_client import RawClient, batch, fetch_request, produce_request


def changed(data, **fields):
    """The batch with some header fields changed and a right checksum."""
    header = BatchHeader.parse(data)
    for key, value in fields.items():
        setattr(header, key, value)
    return seal(header, data[HEADER_SIZE:])


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def with_magic(data, magic):
    return data[:16] + bytes([magic]) + data[17:]


GOOD = batch(b"x", b"y")
MARKER = control_batch(
    commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
)

BAD_BATCHES = {
    "no records": (b"", ErrorCode.INVALID_RECORD),
    "cut": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "bad checksum": (damaged(GOOD), ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (with_magic(GOOD, 1), ErrorCode.INVALID_RECORD),
    "magic 3": (with_magic(GOOD, 3), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "control batch": (MARKER, ErrorCode.INVALID_RECORD),
    "wrong count": (changed(GOOD, record_count=3), ErrorCode.INVALID_RECORD),
    "unknown codec": (changed(GOOD, attributes=7), ErrorCode.INVALID_RECORD),
    "log append time": (changed(GOOD, attributes=8), ErrorCode.INVALID_TIMESTAMP),
    "far future": (batch(b"x", timestamp_ms=1 << 50), ErrorCode.INVALID_TIMESTAMP),
    "no sequence": (batch(b"x", pair=(1, 0)), ErrorCode.INVALID_RECORD),
    "too large": (batch(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    "transactional without an id": (
        batch(b"x", pair=(1, 0), sequence=0, transactional=True),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_nothing_is_written(client, topic, case):
    data, code = BAD_BATCHES[case]

    part = client.produce(topic, data)

    assert (part.error_code, part.base_offset) == (code, -1)
    assert part.error_message
    assert client.fetch(topic).high_watermark == 0


def test_zstd_needs_a_client_that_knows_it(client, topic):
    assert client.produce(topic, changed(GOOD, attributes=4), version=6).error_code == 76


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_do_not_write_to_internal_topics(client, name):
    assert client.produce(name, GOOD).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_unknown_topics_partitions_and_acks_have_their_codes(client, topic):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("nobody-made-this", GOOD).error_code == unknown
    assert client.produce(topic, GOOD, partition=7).error_code == unknown
    assert client.produce(topic, GOOD, partition=-1).error_code == unknown
    assert client.produce(topic, GOOD, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.produce(topic, GOOD, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_partition_named_twice_gets_one_batch(client, topic):
    part = PartitionProduceData(index=0, records=GOOD)
    request = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=[part, part])]
    )

    parts = client.call(request, 11).responses[0].partition_responses

    assert [p.error_code for p in parts] == [0, ErrorCode.INVALID_REQUEST]
    assert client.fetch(topic).high_watermark == 2


def test_several_producers_in_one_request_are_refused(client, name):
    client.create_topic(name, partitions=2)
    parts = [
        PartitionProduceData(
            index=index, records=batch(b"x", pair=(index, 0), sequence=0, transactional=True)
        )
        for index in range(2)
    ]
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        topic_data=[TopicProduceData(name=name, partition_data=parts)],
    )

    answers = client.call(request, 12).responses[0].partition_responses

    assert {p.error_code for p in answers} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("version", [11, 12])
def test_a_transactional_batch_of_an_unknown_id_is_refused(client, topic, version):
    data = batch(b"x", pair=(1, 0), sequence=0, transactional=True)

    part = client.produce(topic, data, version=version, transactional_id="nobody")

    assert part.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


BAD_NAMES = ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "../../etc/passwd", "a\x00b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_topic_name_is_refused(client, name):
    assert client.create_topic(name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_that_cannot_be_created_have_their_codes(client, topic):
    def code(**fields):
        fields = {"num_partitions": 1, "replication_factor": 1, "name": "refused"} | fields
        request = CreateTopicsRequest(topics=[CreatableTopic(**fields)])
        return client.call(request, 7).topics[0].error_code

    elsewhere = [CreatableReplicaAssignment(partition_index=0, broker_ids=[9])]
    unknown = [CreatableTopicConfig(name="no.such.config", value="1")]
    wrong = [CreatableTopicConfig(name="retention.ms", value="soon")]
    missing = [CreatableTopicConfig(name="retention.ms", value=None)]
    assert code(name=topic) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code(name=topic.replace("-", ".")) == 0
    assert code(name=topic.replace("-", "_")) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code(num_partitions=0) == ErrorCode.INVALID_PARTITIONS
    assert code(num_partitions=-2) == ErrorCode.INVALID_PARTITIONS
    assert code(num_partitions=2**31 - 1) == ErrorCode.INVALID_PARTITIONS
    assert code(replication_factor=3) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert code(replication_factor=0) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert code(configs=unknown) == code(configs=wrong) == ErrorCode.INVALID_CONFIG
    assert code(configs=missing) == ErrorCode.INVALID_CONFIG
    assert code(assignments=elsewhere) == ErrorCode.INVALID_REQUEST
    fields = {"num_partitions": -1, "replication_factor": -1}
    assert code(assignments=elsewhere, **fields) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_named_twice_in_one_request_is_refused(client, name):
    twice = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)] * 2

    results = client.call(CreateTopicsRequest(topics=twice), 7).topics

    assert [r.error_code for r in results] == [ErrorCode.INVALID_REQUEST]
    assert client.topic_id(name) != NO_UUID  # only now, by asking for its metadata


def test_topics_that_cannot_be_deleted_have_their_codes(client):
    def code(version=6, **fields):
        request = DeleteTopicsRequest(topics=[DeleteTopicState(**fields)])
        return client.call(request, version).responses[0].error_code

    assert code(name="nobody-made-this-either") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(topic_id=b"x" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    assert code(name="__consumer_offsets") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code() == ErrorCode.INVALID_REQUEST
    assert code(name="a", topic_id=b"x" * 16) == ErrorCode.INVALID_REQUEST


def test_fetches_that_find_nothing_say_why(client, topic):
    client.produce(topic, GOOD)

    def code(request, version=12):
        return client.call(request, version).responses[0].partitions[0].error_code

    unknown = FetchTopic(topic_id=b"x" * 16, partitions=[FetchPartition()])
    newer = fetch_request(topic)
    newer.topics[0].partitions[0].current_leader_epoch = 1
    assert code(fetch_request("nobody-made-that")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(fetch_request(topic, partition=3)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(fetch_request(topic, 3)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code(fetch_request(topic, -1)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code(fetch_request(topic, 2)) == 0
    assert code(FetchRequest(topics=[unknown]), 13) == ErrorCode.UNKNOWN_TOPIC_ID
    assert code(newer) == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_list_offsets_timestamp_that_a_version_does_not_know_is_refused(client, topic):
    part = ListOffsetsPartition(timestamp=-3)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[part])])

    (found,) = client.call(request, 6).topics[0].partitions

    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_adding_partitions_to_a_transaction_is_all_or_nothing(client, topic):
    mine = client.init_producer(topic)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=topic,
        v3_and_below_producer_id=mine.producer_id,
        v3_and_below_producer_epoch=mine.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=[0, 1]),
            AddPartitionsToTxnTopic(name="__consumer_offsets", partitions=[0]),
        ],
    )

    results = client.call(request, 3).results_by_topic_v3_and_below

    codes = [p.partition_error_code for t in results for p in t.results_by_partition]
    assert codes == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    ended = client.end_txn(topic, (mine.producer_id, mine.producer_epoch), version=3)
    assert ended.error_code == ErrorCode.INVALID_TXN_STATE  # nothing was begun


def frame(*parts):
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "negative size": struct.pack(">i", -1),
    "no header": frame(b"\0\0"),
    "unknown api": frame(struct.pack(">hhih", 999, 0, 1, -1)),
    "version too high": frame(struct.pack(">hhih", 3, 99, 1, -1)),
    "version too low": frame(struct.pack(">hhih", 0, 2, 1, -1)),
    "negative version": frame(struct.pack(">hhih", 3, -1, 1, -1)),
    "client id not text": frame(struct.pack(">hhih", 3, 1, 1, 2), b"\xff\xff"),
    "client id longer than the frame": frame(struct.pack(">hhih", 3, 1, 1, 100)),
    "a huge count": frame(struct.pack(">hhih", 3, 1, 1, -1), struct.pack(">i", 2**31 - 1)),
    "cut body": frame(struct.pack(">hhih", 26, 1, 1, -1), b"\0\5ab"),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_closes_its_own_connection_only(bootstrap, client, topic, case):
    with RawClient(bootstrap) as bad:
        bad.socket.sendall(GARBAGE[case])

        assert bad.is_closed()

    assert client.produce(topic, GOOD).error_code == 0


@pytest.mark.parametrize("field", ["transactional_id", "group_id"])
def test_a_name_longer_than_any_version_can_carry_closes_its_own_connection_only(
    bootstrap, client, topic, field
):
    mine = client.init_producer(topic)
    place = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    names = {"transactional_id": topic, "group_id": "readers", field: "x" * 32_767}
    request = TxnOffsetCommitRequest(
        producer_id=mine.producer_id,
        producer_epoch=mine.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
        **names,
    )
    longest = encode_request(request, 5, 1, "raw")
    # One byte more than our own encoder takes: its length is one varint higher, so is the frame's.
    body = longest[4:].replace(b"\x80\x80\x02" + b"x" * 32_767, b"\x81\x80\x02" + b"x" * 32_768)
    assert len(body) == len(longest) - 4 + 1
    with RawClient(bootstrap) as bad:
        bad.socket.sendall(len(body).to_bytes(4, "big") + body)

        assert bad.is_closed()

    assert client.produce(topic, GOOD).error_code == 0


def test_acks_0_has_no_answer_and_an_error_closes_the_connection(bootstrap, client, topic):
    with RawClient(bootstrap) as quiet:
        quiet.send(produce_request(topic, GOOD, acks=0), 11)
        # The next answer is the fetch's.
        assert quiet.fetch(topic, max_wait_ms=15_000).high_watermark == 2
        quiet.send(produce_request(topic, damaged(GOOD), acks=0), 11)

        assert quiet.is_closed()
