"""Every version of the group and offset requests on the wire, and offsets of open transactions."""

import pytest
from confluent_kafka import TopicPartition

from dualwrite import GroupMetadata, TwoPhaseProducer
from dualwrite.broker import Broker, BrokerProcess
from dualwrite.wire.error_codes import ErrorCode as E
from dualwrite.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from dualwrite.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from dualwrite.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from dualwrite.wire.messages.delete_groups import DeleteGroupsRequest
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest
from dualwrite.wire.messages.describe_groups import DescribeGroupsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.heartbeat import HeartbeatRequest
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from dualwrite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from dualwrite.wire.messages.list_groups import ListGroupsRequest
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
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from dualwrite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.raw_client import RawClient

TOPIC = "t"
UNSTABLE = (E.UNSTABLE_OFFSET_COMMIT, -1)


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC, partitions=2)
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def topic_id(client):
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    return client.call(asked, 12).topics[0].topic_id


def fetch(client, group, version=9, stable=True, partition=0):
    """The error and the offset of one place, in any version."""
    if version < 8:
        request = OffsetFetchRequest(group, [OffsetFetchRequestTopic(TOPIC, [partition])])
    else:
        id = topic_id(client)
        asked = OffsetFetchRequestTopics("" if version >= 10 else TOPIC, id, [partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[asked])])
    request.require_stable = stable and version >= 7
    response = client.call(request, version)
    topics = response.topics if version < 8 else response.groups[0].topics
    found = topics[0].partitions[0]
    return found.error_code, found.committed_offset


def commit(client, group, offset, version=9, member="", generation=-1):
    id = topic_id(client) if version >= 10 else bytes(16)
    partition = OffsetCommitRequestPartition(0, offset, -1, "meta")
    topic = OffsetCommitRequestTopic("" if version >= 10 else TOPIC, id, [partition])
    request = OffsetCommitRequest(group, generation, member, topics=[topic])
    return client.call(request, version).topics[0].partitions[0].error_code


@pytest.mark.parametrize("version", range(10))
def test_a_member_comes_and_goes(client, version):
    """JoinGroup by its version; the others go along with theirs."""
    group = f"join-{version}"
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000 if version >= 1 else -1,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"subscription")],
    )
    joined = client.call(request, version)
    if version >= 4:
        assert joined.error_code == E.MEMBER_ID_REQUIRED
        request.member_id = joined.member_id
        joined = client.call(request, version)
    member = joined.member_id
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, member)
    assert [m.metadata for m in joined.members] == [b"subscription"]
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=1,
        member_id=member,
        assignments=[SyncGroupRequestAssignment(member, b"mine")],
    )
    if version >= 5:
        sync.protocol_type, sync.protocol_name = "consumer", "range"
    assert client.call(sync, min(version, 5)).assignment == b"mine"
    assert client.call(HeartbeatRequest(group, 1, member), min(version, 4)).error_code == 0
    described = client.call(DescribeGroupsRequest([group]), min(version, 6)).groups[0]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert [m.member_assignment for m in described.members] == [b"mine"]
    leave = LeaveGroupRequest(group_id=group)
    if version < 3:
        leave.member_id = member
    else:
        leave.members = [MemberIdentity(member)]
    assert client.call(leave, min(version, 5)).error_code == 0
    listed = client.call(ListGroupsRequest(), min(version, 5)).groups
    assert group in {g.group_id for g in listed}
    deleted = client.call(DeleteGroupsRequest([group]), min(version, 2))
    assert [(r.group_id, r.error_code) for r in deleted.results] == [(group, 0)]


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit(client, version):
    group = f"commit-{version}"

    assert commit(client, group, version, version) == 0
    assert fetch(client, group) == (0, version)


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch(client, version):
    commit(client, "fetch", 77)

    assert fetch(client, "fetch", version) == (0, 77)
    assert fetch(client, "fetch", version, partition=1) == (0, -1)
    assert fetch(client, "no such group", version) == (0, -1)


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_of_all_topics(client, version):
    commit(client, "all", 78)
    request = OffsetFetchRequest("all", None)
    if version >= 8:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("all", topics=None)])
    response = client.call(request, version)
    topics = response.topics if version < 8 else response.groups[0].topics

    assert [p.committed_offset for topic in topics for p in topic.partitions] == [78]


def test_offset_delete(client):
    commit(client, "delete", 5)
    asked = [OffsetDeleteRequestTopic(TOPIC, [OffsetDeleteRequestPartition(0)])]
    response = client.call(OffsetDeleteRequest("delete", asked), 0)

    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)
    assert fetch(client, "delete") == (0, -1)


def test_offsets_go_with_their_topic_and_do_not_meet_the_next_of_its_name():
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic(TOPIC, partitions=2)
        commit(client, "reader", 5)
        deleted = client.call(DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000), 5)
        client.create_topic(TOPIC, partitions=2)

        assert [answer.error_code for answer in deleted.responses] == [0]
        assert fetch(client, "reader") == (0, -1)


@pytest.mark.parametrize("version", [0, 1])
def test_new_protocol(client, version):
    group = f"new-{version}"
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m" if version else "",
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    joined = client.call(request, version)
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    assert joined.assignment.topic_partitions[0].partitions == [0, 1]
    described = client.call(ConsumerGroupDescribeRequest([group]), version).groups[0]
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")
    assert described.members[0].assignment.topic_partitions[0].topic_name == TOPIC
    assert described.members[0].member_type == (1 if version else -1)
    gone = ConsumerGroupHeartbeatRequest(group, joined.member_id, -1)
    assert client.call(gone, version).member_epoch == -1


class Transaction:
    """One transactional id that speaks a chosen version of TxnOffsetCommit."""

    def __init__(self, client, name, version):
        self.client, self.name, self.version = client, name, version
        found = client.call(InitProducerIdRequest(name, 60_000), 4)
        self.pair = found.producer_id, found.producer_epoch

    def add(self, group, version):
        request = AddOffsetsToTxnRequest(self.name, *self.pair, group)
        return self.client.call(request, version).error_code

    def commit_offset(self, group, offset):
        id = topic_id(self.client) if self.version >= 6 else bytes(16)
        partition = TxnOffsetCommitRequestPartition(0, offset, -1, "")
        topic = TxnOffsetCommitRequestTopic("" if self.version >= 6 else TOPIC, id, [partition])
        request = TxnOffsetCommitRequest(self.name, group, *self.pair, topics=[topic])
        response = self.client.call(request, self.version)
        return response.topics[0].partitions[0].error_code

    def end(self, commit):
        version = 5 if self.version >= 5 else min(self.version, 4)
        response = self.client.call(EndTxnRequest(self.name, *self.pair, commit), version)
        assert response.error_code == 0
        if version >= 5:
            self.pair = response.producer_id, response.producer_epoch


@pytest.mark.parametrize("version", range(7))
def test_offsets_in_a_transaction(client, version):
    group = f"txn-{version}"
    commit(client, group, 1)
    transaction = Transaction(client, group, version)
    for offset, commits, seen in ((2, False, 1), (3, True, 3)):
        if version < 5:
            assert transaction.add(group, min(version, 4)) == 0
        assert transaction.commit_offset(group, offset) == 0
        assert fetch(client, group) == UNSTABLE
        assert fetch(client, group, version=6) == (0, 1), "an old consumer sees the last committed"
        transaction.end(commits)
        # R5: right after the answer, not some time after it.
        assert fetch(client, group) == (0, seen)


@pytest.mark.parametrize(
    ("version", "code"), [(3, E.INVALID_TXN_STATE), (4, E.TRANSACTION_ABORTABLE), (5, E.NONE)]
)
def test_group_that_was_not_added(client, version, code):
    transaction = Transaction(client, f"not-added-{version}", version)

    assert transaction.commit_offset("not-added", 1) == code
    if not code:
        transaction.end(False)
    assert fetch(client, "not-added") == (0, -1)


@pytest.mark.parametrize(
    ("version", "code"), [(0, E.INVALID_PRODUCER_EPOCH), (5, E.INVALID_PRODUCER_EPOCH)]
)
def test_fenced_producer(client, version, code):
    zombie = Transaction(client, f"fenced-{version}", version)
    Transaction(client, f"fenced-{version}", version)

    assert zombie.commit_offset("fenced", 1) == code
    assert zombie.add("fenced", 1) == E.INVALID_PRODUCER_EPOCH
    assert zombie.add("fenced", 2) == E.PRODUCER_FENCED
    assert fetch(client, "fenced") == (0, -1)


@pytest.mark.parametrize("commits", [True, False])
def test_prepared_offsets_outlive_the_broker_and_wait_for_the_outcome(commits):
    """R10 and T-8: no reader gets the old offset while the outcome is open, not even after kill -9."""
    config = {
        "transactional.id": "prepared",
        "transaction.two.phase.commit.enable": True,
    }
    with BrokerProcess() as broker:
        config["bootstrap.servers"] = broker.bootstrap_servers
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(TOPIC)
            commit(client, "g", 1)
        producer = TwoPhaseProducer(config)
        producer.init_transactions()
        producer.begin_transaction()
        place = TopicPartition(TOPIC, 0, 2)
        producer.send_offsets_to_transaction([place], GroupMetadata("g"))
        state = producer.prepare_transaction()
        producer.close()
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            assert fetch(client, "g") == UNSTABLE
            deleted = client.call(DeleteGroupsRequest(["g"]), 2)
            assert deleted.results[0].error_code == E.NON_EMPTY_GROUP
        recovered = TwoPhaseProducer(config)
        recovered.init_transactions(keep_prepared_txn=True)
        recovered.complete_transaction(state if commits else "")
        recovered.close()
        for _ in range(2):
            with RawClient(broker.bootstrap_servers) as client:
                assert fetch(client, "g") == (0, 2 if commits else 1)
            broker.kill()
            broker.restart()
