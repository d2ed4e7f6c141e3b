"""Small rules in which the broker once differed from Apache Kafka 4.3, found by asking both.

Each is what a client may rely on when it tells its own mistake from a state of the cluster.
"""

import pytest

from dualwrite.broker import Broker
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_configs import AlterableConfig as LegacyConfig
from dualwrite.wire.messages.alter_configs import AlterConfigsRequest
from dualwrite.wire.messages.alter_configs import AlterConfigsResource as LegacyResource
from dualwrite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from dualwrite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from dualwrite.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from dualwrite.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from dualwrite.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from dualwrite.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from dualwrite.wire.messages.find_coordinator import FindCoordinatorRequest
from dualwrite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from dualwrite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from dualwrite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from dualwrite.wire.messages.list_transactions import ListTransactionsRequest
from dualwrite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from dualwrite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.messages.sync_group import SyncGroupRequest
from tests.broker.raw_client import RawClient, batch, fetch_request

ILLEGAL = ["a b", "", "..", "a/b", "x" * 250]


# Produce


def test_a_transactional_batch_without_the_right_refuses_the_whole_request(client, topic, name):
    other = f"{name}-other"
    client.create_topic(other)
    theirs = batch(b"x", pair=(1, 0), sequence=0, transactional=True)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(name=other, partition_data=[PartitionProduceData(0, batch(b"y"))]),
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, theirs)]),
            TopicProduceData(name="nope", partition_data=[PartitionProduceData(0, theirs)]),
        ],
    )

    answer = client.call(request, 11)

    codes = {p.error_code for t in answer.responses for p in t.partition_responses}
    assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert client.fetch(other).high_watermark == 0


# ListOffsets


def list_offsets(client, topic, *parts, version=7):
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=list(parts))])
    return client.call(request, version).topics[0].partitions


@pytest.mark.parametrize("version", [1, 7, 11])
@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63)])
def test_a_timestamp_that_stands_for_nothing_is_refused(client, topic, version, timestamp):
    client.produce(topic, batch(b"x"))

    (found,) = list_offsets(
        client, topic, ListOffsetsPartition(timestamp=timestamp), version=version
    )

    assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


def test_a_partition_that_is_asked_for_twice_is_refused(client, topic):
    parts = ListOffsetsPartition(timestamp=-1), ListOffsetsPartition(timestamp=-2)

    assert {p.error_code for p in list_offsets(client, topic, *parts)} == {
        ErrorCode.INVALID_REQUEST
    }


# Fetch


@pytest.mark.parametrize(
    ("session", "epoch", "code"),
    [
        (0, 0, 0),
        (0, -1, 0),
        (7, 0, 0),  # close this session and open another
        (7, -1, 0),  # close it
        (7, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_only_a_fetch_that_goes_on_in_a_session_is_refused(client, topic, session, epoch, code):
    answer = client.call(fetch_request(topic, session_id=session, session_epoch=epoch), 12)

    assert (answer.error_code, answer.session_id) == (code, 0)
    assert len(answer.responses) == (0 if code else 1)


def test_a_fetch_that_wants_more_than_it_may_get_does_not_wait_for_it(client, topic):
    client.produce(topic, batch(b"x" * 500))
    request = fetch_request(topic, min_bytes=1 << 20, max_bytes=400, max_wait_ms=60_000)

    answer = client.call(request, 12)  # the socket's own timeout is shorter

    assert answer.responses[0].partitions[0].records


def test_old_readers_of_a_damaged_partition_look_for_another_leader(topic, client, shared_broker):
    log = shared_broker.node.find_log(topic, 0)
    log.take_offline("for this test")

    codes = {v: client.fetch(topic, version=v).error_code for v in (4, 5, 6, 12)}

    moved, damaged = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR
    assert codes == {4: moved, 5: moved, 6: damaged, 12: damaged}


# Names of topics


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_name_that_no_topic_can_have_is_told_from_one_that_none_has(client, name):
    asked = [MetadataRequestTopic(name=name)]
    metadata = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    producers = DescribeProducersRequest(topics=[TopicRequest(name, [0])])
    configs = DescribeConfigsRequest(resources=[DescribeConfigsResource(2, name)])
    partitions = DescribeTopicPartitionsRequest(
        topics=[DescribedTopic(name)], response_partition_limit=10
    )

    illegal = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert client.call(metadata, 12).topics[0].error_code == illegal
    assert client.call(producers, 0).topics[0].partitions[0].error_code == illegal
    assert client.call(configs, 4).results[0].error_code == illegal
    assert client.call(partitions, 0).topics[0].error_code == illegal


@pytest.mark.parametrize("version", [10, 11])
def test_topics_have_no_ids_in_metadata_before_version_12(client, topic, version):
    by_id = [MetadataRequestTopic(name=None, topic_id=client.topic_id(topic))]
    unnamed = [MetadataRequestTopic(name=None)]

    for asked in (by_id, unnamed):
        (shown,) = client.call(MetadataRequest(topics=asked), version).topics
        assert shown.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_named_twice_is_shown_once(client, topic):
    asked = [MetadataRequestTopic(name=topic)] * 2

    assert len(client.call(MetadataRequest(topics=asked), 12).topics) == 1


# Creating and deleting


def create(client, name, partitions=1, factor=1, **configs):
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    wanted.configs = [CreatableTopicConfig(key, value) for key, value in configs.items()]
    return client.call(CreateTopicsRequest(topics=[wanted]), 7).topics[0].error_code


def test_of_several_mistakes_the_first_of_kafkas_is_named(client, name):
    bad_config, bad_factor = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REPLICATION_FACTOR

    assert create(client, name, 0, 0, nonsense="1") == bad_config
    assert create(client, name, 0, 0) == bad_factor
    assert create(client, name, 0) == ErrorCode.INVALID_PARTITIONS


def test_the_name_of_kafkas_metadata_log_is_taken(client):
    assert create(client, "__cluster_metadata") == ErrorCode.INVALID_REQUEST


def delete(client, version, *names):
    if version >= 6:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    else:
        request = DeleteTopicsRequest(topic_names=list(names))
    return [result.error_code for result in client.call(request, version).responses]


@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_topic_named_twice_is_not_deleted(client, topic, version):
    assert delete(client, version, topic, topic) == [ErrorCode.INVALID_REQUEST]
    assert client.fetch(topic).error_code == 0


def test_a_topic_named_by_its_name_and_its_id_is_not_deleted(client, topic):
    states = [DeleteTopicState(topic_id=client.topic_id(topic)), DeleteTopicState(name=topic)]

    results = client.call(DeleteTopicsRequest(topics=states), 6).responses

    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
    assert client.fetch(topic).error_code == 0


def test_that_topics_are_not_deleted_is_said_in_the_words_of_the_version():
    with (
        Broker(delete_topic_enable=False) as running,
        RawClient(running.bootstrap_servers) as client,
    ):
        client.create_topic("t")
        codes = {version: delete(client, version, "t")[0] for version in (1, 2, 3, 6)}

    off = ErrorCode.TOPIC_DELETION_DISABLED
    assert codes == {1: ErrorCode.INVALID_REQUEST, 2: ErrorCode.INVALID_REQUEST, 3: off, 6: off}


def test_a_topic_that_is_to_grow_twice_is_named_once(client, topic):
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=topic, count=3)] * 2)

    (result,) = client.call(request, 3).results

    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_a_resource_named_twice_is_not_changed(client, topic):
    change = AlterConfigsResource(2, topic, [AlterableConfig("retention.ms", 0, "7")])
    request = IncrementalAlterConfigsRequest(resources=[change, change])

    results = client.call(request, 1).responses

    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
    asked = DescribeConfigsResource(2, topic, ["retention.ms"])
    (shown,) = client.call(DescribeConfigsRequest(resources=[asked]), 4).results
    assert shown.configs[0].value != "7"


def test_a_setting_named_twice_is_not_changed(client, topic):
    changes = [LegacyConfig("retention.ms", "7"), LegacyConfig("retention.ms", "8")]
    request = AlterConfigsRequest(resources=[LegacyResource(2, topic, changes)])

    assert client.call(request, 2).responses[0].error_code == ErrorCode.INVALID_REQUEST


# Groups and coordinators


@pytest.mark.parametrize("version", [3, 5])
def test_members_of_an_unknown_group_are_told_one_by_one(client, name, version):
    members = [MemberIdentity("m", None), MemberIdentity("", "i")]

    answer = client.call(LeaveGroupRequest(group_id=name, members=members), version)

    assert answer.error_code == 0
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("m", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


def test_a_sync_without_its_protocol_is_refused_from_version_5(client, name):
    request = SyncGroupRequest(group_id=name, generation_id=1, member_id="m")

    assert client.call(request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.call(request, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_are_deleted_of_groups_and_partitions_that_exist(client, topic, name):
    def delete(group, *indexes):
        parts = [OffsetDeleteRequestPartition(index) for index in indexes]
        topics = [OffsetDeleteRequestTopic(topic, parts)]
        return client.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)

    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    committed = OffsetCommitRequest(
        group_id=name, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )
    assert delete("", 0).error_code == ErrorCode.INVALID_GROUP_ID
    assert delete(name, 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.call(committed, 8).topics[0].partitions[0].error_code == 0
    deleted = delete(name, 0, 9).topics[0].partitions
    assert [p.error_code for p in deleted] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_coordinator_is_found_for_an_empty_transactional_id(client):
    one = FindCoordinatorRequest(key="", key_type=1)
    many = FindCoordinatorRequest(key_type=1, coordinator_keys=[""])

    assert client.call(one, 3).error_code == 0
    assert client.call(many, 4).coordinators[0].error_code == 0


# Listing transactions


def test_an_id_without_a_transaction_passes_every_duration(client, name):
    """Its start is -1, which Kafka takes for very long ago; so it is on a young broker too."""
    client.init_producer(name)
    request = ListTransactionsRequest(duration_filter=10**9, transactional_id_pattern=name)

    (listed,) = client.call(request, 2).transaction_states

    assert (listed.transactional_id, listed.transaction_state) == (name, "Empty")


def test_an_unknown_state_is_named_once(client):
    request = ListTransactionsRequest(state_filters=["Sleeping", "Sleeping"])

    assert client.call(request, 2).unknown_state_filters == ["Sleeping"]
