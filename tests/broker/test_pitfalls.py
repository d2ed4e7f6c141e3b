"""Mistakes that other brokers made and real clients stumbled over, one test for each."""

import struct

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from dualwrite.broker import Broker
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from dualwrite.wire.messages.api_versions import ApiVersionsRequest
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from dualwrite.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from dualwrite.wire.messages.fetch import FetchPartition, FetchTopic
from dualwrite.wire.messages.find_coordinator import FindCoordinatorRequest
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from dualwrite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.records import EndMarker, batches, records_of
from tests.broker.raw_client import (
    RawClient,
    batch,
    fetch_request,
    offsets_of,
    produce_request,
    values_of,
)


def metadata(client, *names, version=12, **fields):
    topics = [MetadataRequestTopic(name=name) for name in names]
    return client.call(MetadataRequest(topics=topics, **fields), version)


def test_p1_an_unknown_version_of_api_versions_is_answered_in_v0(client):
    header = struct.pack(">hhih", 18, 99, 7, -1) + b"\0"
    body = header + b"whatever a later version may hold"
    client.socket.sendall(struct.pack(">i", len(body)) + body)

    correlation_id, answer = client.receive(18, 0)

    assert correlation_id == 7
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    ((own),) = answer.api_keys
    assert (own.api_key, own.min_version, own.max_version) == (18, 0, 5)
    assert client.call(ApiVersionsRequest("raw", "1"), 5).error_code == 0  # the connection goes on


@pytest.mark.parametrize(
    "legal", [("librdkafka", "2.6.0"), ("apache-kafka-java", "4.1.0-SNAPSHOT"), ("x", "1")]
)
def test_p1_software_may_name_itself(client, legal):
    for version in (3, 5):
        assert client.call(ApiVersionsRequest(*legal), version).error_code == 0


@pytest.mark.parametrize(
    "illegal",
    [("", ""), ("raw", ""), ("", "1"), ("a b", "1"), ("raw", "-1"), ("raw.", "1"), ("é", "1"),
     ("raw", "1\n"), ("raw", "a" * 5_000 + "-")],
    ids=lambda pair: repr(pair)[:20],
)  # fmt: skip
def test_p1_software_without_a_legal_name_is_refused(client, illegal):
    """KIP-511; it may ask again on the same connection, by an older version if it likes."""
    for version in (3, 4, 5):
        answer = client.call(ApiVersionsRequest(*illegal), version)
        assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert client.call(ApiVersionsRequest(), 2).error_code == 0


def test_p1_a_client_that_means_another_broker_is_sent_away(client):
    wrong_cluster = client.call(ApiVersionsRequest("raw", "1", "another", 1), 5)
    wrong_node = client.call(ApiVersionsRequest("raw", "1", node_id=2), 5)

    assert wrong_cluster.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
    assert wrong_node.error_code == ErrorCode.REBOOTSTRAP_REQUIRED


def test_p2_the_header_of_an_api_versions_answer_has_no_tags(client):
    client.socket.sendall(encode_request(ApiVersionsRequest("raw", "1"), 3, 1, "raw"))

    frame = client.receive_frame()

    assert frame[:6] == struct.pack(">ih", 1, 0)  # correlation id, then the error code at once


def test_p3_api_versions_may_be_asked_again_and_again(client):
    assert client.call(ApiVersionsRequest(), 0).error_code == 0
    assert client.call(ApiVersionsRequest("raw", "1"), 4).error_code == 0


def test_p5_created_topics_come_with_a_list_of_settings(client, name):
    result = client.create_topic(name)

    assert result.configs
    assert (result.num_partitions, result.replication_factor) == (1, 1)
    again = client.create_topic(name)
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert again.configs == []


def test_p6_lists_of_eligible_leaders_are_empty_not_null(client, topic):
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)])

    (shown,) = client.call(request, 0).topics

    assert shown.partitions[0].eligible_leader_replicas == []
    assert shown.partitions[0].last_known_elr == []


def transaction(client, topic, *, commit):
    """One record in a transaction of version 2; gives the pair it ran under."""
    mine = client.init_producer(topic)
    pair = (mine.producer_id, mine.producer_epoch)
    data = batch(b"x", pair=pair, sequence=0, transactional=True)
    assert client.produce(topic, data, version=12, transactional_id=topic).error_code == 0
    assert client.end_txn(topic, pair, commit=commit).error_code == 0
    return pair


@pytest.mark.parametrize("commit", [True, False])
def test_p7_markers_have_a_full_key_and_value(client, topic, commit):
    pair = transaction(client, topic, commit=commit)

    data = bytes(client.fetch(topic).records)

    position, header = list(batches(data))[-1]
    marker = data[position : position + header.length]
    (record,) = records_of(marker)
    assert len(marker) == 78
    assert record.key == struct.pack(">hh", 0, 1 if commit else 0)
    assert len(record.value) == 6
    parsed = EndMarker.parse(marker)
    assert (parsed.commit, parsed.producer_id) == (commit, pair[0])
    assert parsed.producer_epoch == pair[1] + 1


def offset_fetch(client, group, topic, version=9):
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
    )
    return client.call(request, version).groups[0]


def test_p8_offsets_of_an_unknown_group_are_minus_one_and_no_error(client, topic):
    group = offset_fetch(client, "nobody", topic)

    assert group.error_code == 0
    (partition,) = group.topics[0].partitions
    assert (partition.error_code, partition.committed_offset) == (0, -1)


def test_p9_an_expected_pair_for_an_unknown_id_is_accepted(client, name):
    answer = client.init_producer(name, producer_id=0, producer_epoch=0)

    assert answer.error_code == 0
    assert answer.producer_epoch == 0


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_p10_a_fenced_producer_is_told_so_in_the_words_of_its_version(client, topic, version, code):
    old = client.init_producer(topic)
    client.init_producer(topic)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=topic,
        v3_and_below_producer_id=old.producer_id,
        v3_and_below_producer_epoch=old.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )

    (result,) = client.call(request, version).results_by_topic_v3_and_below
    ended = client.end_txn(topic, (old.producer_id, old.producer_epoch), version=version)

    assert result.results_by_partition[0].partition_error_code == code
    assert ended.error_code == code


def test_p11_metadata_creates_topics_only_where_it_may(client, name):
    unknown = metadata(client, name, allow_auto_topic_creation=False).topics[0]
    created = metadata(client, name).topics[0]
    illegal = metadata(client, "no spaces please").topics[0]

    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert created.error_code == 0
    assert len(created.partitions) == 1
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    with (
        Broker(auto_create_topics_enable=False) as strict,
        RawClient(strict.bootstrap_servers) as other,
    ):
        refused = metadata(other, name).topics[0]
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_p12_a_switch_accepts_more_replicas_than_there_are(name):
    wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=3)
    with (
        Broker(accept_any_replication_factor=True, num_partitions=4) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        (result,) = client.call(CreateTopicsRequest(topics=[wanted]), 7).topics

    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 1)


def test_p13_the_broker_is_number_1(client):
    answer = metadata(client)

    assert [b.node_id for b in answer.brokers] == [1]
    assert answer.controller_id == 1


def test_p14_an_offset_inside_a_batch_gets_the_whole_batch(client, topic):
    client.produce(topic, batch(b"a", b"b", b"c"))
    client.produce(topic, batch(b"d"))

    part = client.fetch(topic, 1)

    assert offsets_of(part) == [(0, 2, False), (3, 3, False)]
    assert values_of(part) == [b"a", b"b", b"c", b"d"]


def test_p14_read_committed_stops_at_open_transactions_and_lists_aborted_ones(client, topic):
    aborted = transaction(client, topic, commit=False)
    mine = client.init_producer(f"{topic}-open")
    pair = (mine.producer_id, mine.producer_epoch)
    data = batch(b"open", pair=pair, sequence=0, transactional=True)
    client.produce(topic, data, version=12, transactional_id=f"{topic}-open")
    client.produce(topic, batch(b"plain"))

    committed = client.fetch(topic, isolation_level=1)
    everything = client.fetch(topic)

    assert offsets_of(committed) == [(0, 0, False), (1, 1, True)]
    assert committed.last_stable_offset == 2
    assert [(a.producer_id, a.first_offset) for a in committed.aborted_transactions] == [
        (aborted[0], 0)
    ]
    assert values_of(everything) == [b"x", b"open", b"plain"]
    assert everything.aborted_transactions is None
    assert client.end_txn(f"{topic}-open", pair).error_code == 0
    assert client.fetch(topic, isolation_level=1).last_stable_offset == 5


def test_p15_a_topic_made_again_has_another_id(client, topic):
    first = client.topic_id(topic)
    client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)]), 6)
    client.create_topic(topic)
    second = client.topic_id(topic)

    by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=first, name=None)])
    assert first != second
    assert client.call(by_id, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    part = PartitionProduceData(index=0, records=batch(b"x"))
    for topic_id, code in ((first, ErrorCode.UNKNOWN_TOPIC_ID), (second, 0)):
        data = TopicProduceData(topic_id=topic_id, partition_data=[part])
        answer = client.call(ProduceRequest(acks=-1, topic_data=[data]), 13)
        assert answer.responses[0].partition_responses[0].error_code == code
        wanted = FetchTopic(
            topic_id=topic_id, partitions=[FetchPartition(partition_max_bytes=1 << 20)]
        )
        request = fetch_request(topic)
        request.topics = [wanted]
        assert client.call(request, 13).responses[0].partitions[0].error_code == code


def test_p15_metadata_shows_cluster_leaders_and_replicas(client, topic):
    answer = metadata(client, topic)

    assert answer.cluster_id
    (partition,) = answer.topics[0].partitions
    assert partition.leader_epoch == 0
    assert partition.replica_nodes == partition.isr_nodes == [partition.leader_id] == [1]


def test_p16_fetch_sessions_are_declined(client, topic):
    opening = client.call(fetch_request(topic, session_id=0, session_epoch=0), 12)
    unknown = client.call(fetch_request(topic, session_id=5, session_epoch=1), 12)

    assert (opening.error_code, opening.session_id) == (0, 0)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_p17_telemetry_is_not_offered(client):
    offered = {api.api_key for api in client.call(ApiVersionsRequest("raw", "1"), 4).api_keys}

    assert not offered & {71, 72}


def test_p18_nobody_is_throttled(client, topic):
    assert client.call(produce_request(topic, batch(b"x")), 11).throttle_time_ms == 0
    assert client.call(fetch_request(topic), 12).throttle_time_ms == 0


def test_p19_limits_of_timeouts_and_sizes_are_enforced(client, name):
    client.create_topic(name, max_message_bytes=500)

    longest = client.init_producer(name, transaction_timeout_ms=900_000)
    too_long = client.init_producer(name, transaction_timeout_ms=900_001)
    never = client.init_producer(name, transaction_timeout_ms=2**31 - 1)
    zero = client.init_producer(name, transaction_timeout_ms=0)

    assert longest.error_code == 0
    refused = {too_long.error_code, never.error_code, zero.error_code}
    assert refused == {ErrorCode.INVALID_TRANSACTION_TIMEOUT}
    assert client.produce(name, batch(b"x" * 600)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(name, batch(b"x" * 300)).error_code == 0


def test_p20_the_metadata_of_a_commit_comes_back(client, topic):
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata="where I was ☃"
    )
    request = OffsetCommitRequest(
        group_id=topic,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    assert client.call(request, 8).topics[0].partitions[0].error_code == 0

    (found,) = offset_fetch(client, topic, topic).topics[0].partitions

    assert (found.committed_offset, found.metadata) == (3, "where I was ☃")


def test_p21_settings_of_topics_and_of_the_broker_are_complete(bootstrap, topic):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    of_topic = ConfigResource(ResourceType.TOPIC, topic)
    of_broker = ConfigResource(ResourceType.BROKER, "1")

    found = admin.describe_configs([of_topic, of_broker])

    configs = found[of_topic].result(20)
    assert {"cleanup.policy", "retention.ms", "max.message.bytes", "segment.bytes"} <= set(configs)
    assert bootstrap in found[of_broker].result(20)["advertised.listeners"].value


def test_p22_a_coordinator_is_found_for_one_key_or_for_many(client):
    single = client.call(FindCoordinatorRequest(key="group", key_type=0), 3)
    many = client.call(FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=1), 4)
    strange = client.call(FindCoordinatorRequest(coordinator_keys=["a"], key_type=9), 4)

    assert (single.error_code, single.node_id) == (0, 1)
    assert [(c.key, c.error_code, c.node_id) for c in many.coordinators] == [
        ("a", 0, 1),
        ("b", 0, 1),
    ]
    assert strange.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


def test_p23_the_last_five_batches_are_known_again(client, topic):
    mine = client.init_producer()
    pair = (mine.producer_id, mine.producer_epoch)
    sent = [batch(b"%d" % n, pair=pair, sequence=n) for n in range(6)]
    first = [client.produce(topic, data).base_offset for data in sent]

    again = [client.produce(topic, data) for data in sent]

    assert first == [0, 1, 2, 3, 4, 5]
    assert [part.base_offset for part in again[1:]] == [1, 2, 3, 4, 5]
    assert again[0].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.fetch(topic).high_watermark == 6


def test_p24_a_new_member_is_told_its_id_first(client, name):
    request = JoinGroupRequest(
        group_id=name,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )

    first = client.call(request, 5)
    request.member_id = first.member_id
    second = client.call(request, 5)

    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert second.error_code == 0
    assert second.leader == first.member_id


def test_p25_clients_are_told_an_ipv4_address(client, bootstrap):
    (broker,) = metadata(client).brokers

    assert f"{broker.host}:{broker.port}" == bootstrap
    assert broker.host == "127.0.0.1"


def test_p26_the_client_id_is_never_compact(client):
    # A flexible request with a client id of two bytes of length, as every client writes it.
    client.socket.sendall(encode_request(MetadataRequest(topics=[]), 12, 3, "me"))

    assert client.receive(3, 12)[0] == 3


def test_librdkafka_asks_for_all_topics_with_bytes_to_spare(client, topic):
    header = struct.pack(">hhih", 3, 13, 1, 2) + b"me\0"
    body = header + bytes([0, 0, 0, 0]) + b"\1\0\0"
    client.socket.sendall(struct.pack(">i", len(body)) + body)

    _, answer = client.receive(3, 13)

    assert topic in {shown.name for shown in answer.topics}
