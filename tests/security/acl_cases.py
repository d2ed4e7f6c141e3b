"""One request per API and case of the rights table: who may send it, and what it touches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dualwrite.broker.acl import Operation as O
from dualwrite.broker.acl import ResourceType as R
from dualwrite.wire import messages as _messages  # noqa: F401 - registers every message
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.message import INT32, STRING  # noqa: F401
from dualwrite.wire.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from dualwrite.wire.records import build_batch

TOPIC, GROUP, ID = "topic", "group", "id"
TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32
NAMES = {R.TOPIC: TOPIC, R.GROUP: GROUP, R.TRANSACTIONAL_ID: ID, R.CLUSTER: "kafka-cluster"}

Needed = tuple[O, R]


@dataclass(frozen=True)
class Case:
    """A request and every right that it needs; `alternatives` stand in for the right of that index."""

    key: ApiKey
    build: Callable[[int, bytes], Any]
    needs: tuple[Needed, ...]
    versions: tuple[int, ...]
    name: str = ""
    alternatives: tuple[Needed, ...] = ()

    def __str__(self) -> str:
        return f"{self.key.name.lower()}{'-' + self.name if self.name else ''}"


def _produce(version: int, topic_id: bytes, *, transactional: bool = False) -> Any:
    batch = build_batch(
        [(None, b"x", (), 0)],
        producer_id=5 if transactional else -1,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        is_transactional=transactional,
    )
    topic = produce.TopicProduceData(partition_data=[produce.PartitionProduceData(records=batch)])
    if version >= 13:
        topic.topic_id = topic_id
    else:
        topic.name = TOPIC
    return produce.ProduceRequest(
        transactional_id=ID if transactional else None, acks=-1, timeout_ms=1000, topic_data=[topic]
    )


def _fetch(version: int, topic_id: bytes) -> Any:
    topic = fetch.FetchTopic(partitions=[fetch.FetchPartition(partition_max_bytes=1000)])
    if version >= 13:
        topic.topic_id = topic_id
    else:
        topic.topic = TOPIC
    return fetch.FetchRequest(max_bytes=1000, topics=[topic])


def _fetch_as_replica(version: int, topic_id: bytes) -> Any:
    request = _fetch(version, topic_id)
    request.replica_id = 7
    return request


def _list_offsets(version: int, topic_id: bytes) -> Any:
    partition = list_offsets.ListOffsetsPartition(timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[partition])
    return list_offsets.ListOffsetsRequest(topics=[topic])


def _metadata(version: int, topic_id: bytes) -> Any:
    return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])


def _offset_commit(version: int, topic_id: bytes) -> Any:
    partition = offset_commit.OffsetCommitRequestPartition(committed_offset=1)
    topic = offset_commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return offset_commit.OffsetCommitRequest(
        group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic]
    )


def _offset_fetch(version: int, topic_id: bytes) -> Any:
    if version < 8:
        topic = offset_fetch.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        return offset_fetch.OffsetFetchRequest(group_id=GROUP, topics=[topic])
    topics = [offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
    group = offset_fetch.OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    return offset_fetch.OffsetFetchRequest(groups=[group])


def _find(key: str, key_type: int) -> Callable[[int, bytes], Any]:
    def build(version: int, topic_id: bytes) -> Any:
        if version >= 4:
            return find_coordinator.FindCoordinatorRequest(
                key_type=key_type, coordinator_keys=[key]
            )
        return find_coordinator.FindCoordinatorRequest(key_type=key_type, key=key)

    return build


def _join(version: int, topic_id: bytes) -> Any:
    protocol = join_group.JoinGroupRequestProtocol(name="range")
    return join_group.JoinGroupRequest(
        group_id="group", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        member_id="nobody", protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip


def _leave(version: int, topic_id: bytes) -> Any:
    if version < 3:
        return leave_group.LeaveGroupRequest(group_id=GROUP, member_id="nobody")
    member = leave_group.MemberIdentity(member_id="nobody")
    return leave_group.LeaveGroupRequest(group_id=GROUP, members=[member])


def _create_topics(version: int, topic_id: bytes) -> Any:
    # Its name exists already: whoever may create it is told so, and nothing changes.
    topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def _delete_topics(version: int, topic_id: bytes) -> Any:
    # An unknown topic of the same prefix would need other rights; a partition count of the rest is kept.
    if version < 6:
        return delete_topics.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1000)
    return delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name=TOPIC)], timeout_ms=1000
    )


def _delete_records(version: int, topic_id: bytes) -> Any:
    partition = delete_records.DeleteRecordsPartition(offset=0)
    topic = delete_records.DeleteRecordsTopic(name=TOPIC, partitions=[partition])
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def _init(*, transactional_id: str | None, two_phase: bool = False) -> Callable[[int, bytes], Any]:
    def build(version: int, topic_id: bytes) -> Any:
        return init_producer_id.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=1000, enable_2pc=two_phase
        )

    return build


def _epoch(version: int, topic_id: bytes) -> Any:
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(
        topic=TOPIC, partitions=[offset_for_leader_epoch.OffsetForLeaderPartition()]
    )
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def _add_partitions(version: int, topic_id: bytes) -> Any:
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=5,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic],
    )


def _add_offsets(version: int, topic_id: bytes) -> Any:
    return add_offsets_to_txn.AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=5, producer_epoch=0, group_id=GROUP
    )


def _end(version: int, topic_id: bytes) -> Any:
    return end_txn.EndTxnRequest(
        transactional_id=ID, producer_id=5, producer_epoch=0, committed=True
    )


def _markers(version: int, topic_id: bytes) -> Any:
    topic = write_txn_markers.WritableTxnMarkerTopic(name="no-such", partition_indexes=[0])
    marker = write_txn_markers.WritableTxnMarker(producer_id=5, topics=[topic])
    return write_txn_markers.WriteTxnMarkersRequest(markers=[marker])


def _txn_offsets(version: int, topic_id: bytes) -> Any:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(committed_offset=1)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id=ID, group_id=GROUP, producer_id=5, producer_epoch=0, topics=[topic]
    )


def _create_acls(version: int, topic_id: bytes) -> Any:
    creation = create_acls.AclCreation(
        resource_type=R.TOPIC, resource_name="x", principal="User:x", host="*",
        operation=O.READ, permission_type=99,
    )  # fmt: skip
    return create_acls.CreateAclsRequest(creations=[creation])


def _delete_acls(version: int, topic_id: bytes) -> Any:
    which = delete_acls.DeleteAclsFilter(
        resource_type_filter=R.TOPIC, principal_filter="User:x", operation=O.ANY, permission_type=1
    )
    return delete_acls.DeleteAclsRequest(filters=[which])


def _describe_acls(version: int, topic_id: bytes) -> Any:
    return describe_acls.DescribeAclsRequest(
        resource_type_filter=R.TOPIC, operation=O.ANY, permission_type=1, pattern_type_filter=1
    )


def _describe_configs(kind: int, name: str) -> Callable[[int, bytes], Any]:
    def build(version: int, topic_id: bytes) -> Any:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        return describe_configs.DescribeConfigsRequest(resources=[resource])

    return build


def _alter_configs(kind: int, name: str) -> Callable[[int, bytes], Any]:
    def build(version: int, topic_id: bytes) -> Any:
        resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name)
        return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=True)

    return build


def _incremental(kind: int, name: str) -> Callable[[int, bytes], Any]:
    def build(version: int, topic_id: bytes) -> Any:
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name
        )
        return incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=True
        )

    return build


def _create_partitions(version: int, topic_id: bytes) -> Any:
    topic = create_partitions.CreatePartitionsTopic(name=TOPIC, count=9)
    return create_partitions.CreatePartitionsRequest(topics=[topic], validate_only=True)


def _reassign(version: int, topic_id: bytes) -> Any:
    topic = alter_partition_reassignments.ReassignableTopic(
        name=TOPIC, partitions=[alter_partition_reassignments.ReassignablePartition(replicas=[1])]
    )
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[topic])


def _offset_delete(version: int, topic_id: bytes) -> Any:
    topic = offset_delete.OffsetDeleteRequestTopic(
        name=TOPIC, partitions=[offset_delete.OffsetDeleteRequestPartition()]
    )
    return offset_delete.OffsetDeleteRequest(group_id=GROUP, topics=[topic])


def _alter_quotas(version: int, topic_id: bytes) -> Any:
    entity = alter_client_quotas.EntityData(entity_type="user", entity_name="x")
    entry = alter_client_quotas.EntryData(
        entity=[entity], ops=[alter_client_quotas.OpData(key="consumer_byte_rate", value=1.0)]
    )
    return alter_client_quotas.AlterClientQuotasRequest(entries=[entry])


def _alter_scram(version: int, topic_id: bytes) -> Any:
    deletion = alter_user_scram_credentials.ScramCredentialDeletion(name="no-such", mechanism=1)
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions=[deletion])


def _features(version: int, topic_id: bytes) -> Any:
    update = update_features.FeatureUpdateKey(feature="no-such", max_version_level=1)
    return update_features.UpdateFeaturesRequest(feature_updates=[update])


def _describe_producers(version: int, topic_id: bytes) -> Any:
    topic = describe_producers.TopicRequest(name=TOPIC, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def _heartbeat_848(version: int, topic_id: bytes) -> Any:
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id="group", member_id="nobody", member_epoch=5, subscribed_topic_names=[TOPIC]
    )


def _describe_topics(version: int, topic_id: bytes) -> Any:
    return describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=TOPIC)], response_partition_limit=10
    )


def _quorum(version: int, topic_id: bytes) -> Any:
    topic = describe_quorum.TopicData(
        topic_name="__cluster_metadata", partitions=[describe_quorum.PartitionData()]
    )
    return describe_quorum.DescribeQuorumRequest(topics=[topic])


def _plain(cls: type[Any], **fields: Any) -> Callable[[int, bytes], Any]:
    return lambda version, topic_id: cls(**fields)


CASES: list[Case] = [
    Case(ApiKey.PRODUCE, _produce, ((O.WRITE, R.TOPIC),), (3, 9, 12, 13)),
    Case(
        ApiKey.PRODUCE, lambda v, i: _produce(v, i, transactional=True),
        ((O.WRITE, R.TRANSACTIONAL_ID), (O.WRITE, R.TOPIC)), (3, 11, 12, 13), "transactional",
    ),
    Case(ApiKey.FETCH, _fetch, ((O.READ, R.TOPIC),), (4, 12, 13, 18)),
    Case(
        ApiKey.FETCH, _fetch_as_replica, ((O.CLUSTER_ACTION, R.CLUSTER), (O.READ, R.TOPIC)),
        (4, 12), "replica",
    ),
    Case(ApiKey.LIST_OFFSETS, _list_offsets, ((O.DESCRIBE, R.TOPIC),), (1, 11)),
    Case(ApiKey.METADATA, _metadata, ((O.DESCRIBE, R.TOPIC),), (1, 13)),
    Case(ApiKey.OFFSET_COMMIT, _offset_commit, ((O.READ, R.GROUP), (O.READ, R.TOPIC)), (2, 9)),
    Case(
        ApiKey.OFFSET_FETCH, _offset_fetch, ((O.DESCRIBE, R.GROUP), (O.DESCRIBE, R.TOPIC)), (2, 9)
    ),
    Case(ApiKey.FIND_COORDINATOR, _find(GROUP, 0), ((O.DESCRIBE, R.GROUP),), (0, 3, 6), "group"),
    Case(ApiKey.FIND_COORDINATOR, _find(ID, 1), ((O.DESCRIBE, R.TRANSACTIONAL_ID),), (1, 6), "id"),
    Case(ApiKey.JOIN_GROUP, _join, ((O.READ, R.GROUP),), (0, 9)),
    Case(
        ApiKey.SYNC_GROUP, _plain(sync_group.SyncGroupRequest, group_id=GROUP, member_id="x"),
        ((O.READ, R.GROUP),), (0, 5),
    ),
    Case(
        ApiKey.HEARTBEAT, _plain(heartbeat.HeartbeatRequest, group_id=GROUP, member_id="x"),
        ((O.READ, R.GROUP),), (0, 4),
    ),
    Case(ApiKey.LEAVE_GROUP, _leave, ((O.READ, R.GROUP),), (0, 5)),
    Case(
        ApiKey.DESCRIBE_GROUPS, _plain(describe_groups.DescribeGroupsRequest, groups=[GROUP]),
        ((O.DESCRIBE, R.GROUP),), (0, 6),
    ),
    Case(
        ApiKey.CREATE_TOPICS, _create_topics, ((O.CREATE, R.CLUSTER),), (2, 7),
        alternatives=((O.CREATE, R.TOPIC),),
    ),
    Case(ApiKey.DELETE_RECORDS, _delete_records, ((O.DELETE, R.TOPIC),), (0, 2)),
    Case(ApiKey.INIT_PRODUCER_ID, _init(transactional_id=ID), ((O.WRITE, R.TRANSACTIONAL_ID),), (0, 5)),
    Case(
        ApiKey.INIT_PRODUCER_ID, _init(transactional_id=ID, two_phase=True),
        ((O.WRITE, R.TRANSACTIONAL_ID), (O.TWO_PHASE_COMMIT, R.TRANSACTIONAL_ID)), (6,), "2pc",
    ),
    Case(
        ApiKey.INIT_PRODUCER_ID, _init(transactional_id=None), ((O.IDEMPOTENT_WRITE, R.CLUSTER),),
        (0, 6), "idempotent", alternatives=((O.WRITE, R.TOPIC),),
    ),
    Case(ApiKey.OFFSET_FOR_LEADER_EPOCH, _epoch, ((O.DESCRIBE, R.TOPIC),), (2, 4)),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN, _add_partitions,
        ((O.WRITE, R.TRANSACTIONAL_ID), (O.WRITE, R.TOPIC)), (0, 3),
    ),
    Case(
        ApiKey.ADD_OFFSETS_TO_TXN, _add_offsets,
        ((O.WRITE, R.TRANSACTIONAL_ID), (O.READ, R.GROUP)), (0, 4),
    ),
    Case(ApiKey.END_TXN, _end, ((O.WRITE, R.TRANSACTIONAL_ID),), (0, 5)),
    Case(
        ApiKey.WRITE_TXN_MARKERS, _markers, ((O.ALTER, R.CLUSTER),), (1, 2),
        alternatives=((O.CLUSTER_ACTION, R.CLUSTER),),
    ),
    Case(
        ApiKey.TXN_OFFSET_COMMIT, _txn_offsets,
        ((O.WRITE, R.TRANSACTIONAL_ID), (O.READ, R.GROUP), (O.READ, R.TOPIC)), (0, 5),
    ),
    Case(ApiKey.DESCRIBE_ACLS, _describe_acls, ((O.DESCRIBE, R.CLUSTER),), (1, 3)),
    Case(ApiKey.CREATE_ACLS, _create_acls, ((O.ALTER, R.CLUSTER),), (1, 3)),
    Case(ApiKey.DELETE_ACLS, _delete_acls, ((O.ALTER, R.CLUSTER),), (1, 3)),
    *(
        Case(key, build(kind, name), ((operation, resource),), versions, label)
        for key, build, operation, versions in (
            (ApiKey.DESCRIBE_CONFIGS, _describe_configs, O.DESCRIBE_CONFIGS, (1, 4)),
            (ApiKey.ALTER_CONFIGS, _alter_configs, O.ALTER_CONFIGS, (0, 2)),
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, _incremental, O.ALTER_CONFIGS, (0, 1)),
        )
        for kind, name, resource, label in (
            (TOPIC_CONFIG, TOPIC, R.TOPIC, "topic"),
            (BROKER_CONFIG, "1", R.CLUSTER, "broker"),
            (GROUP_CONFIG, GROUP, R.GROUP, "group"),
        )
    ),
    Case(
        ApiKey.DESCRIBE_LOG_DIRS, _plain(describe_log_dirs.DescribeLogDirsRequest, topics=None),
        ((O.DESCRIBE, R.CLUSTER),), (3, 4),
    ),
    Case(ApiKey.CREATE_PARTITIONS, _create_partitions, ((O.ALTER, R.TOPIC),), (0, 3)),
    Case(
        ApiKey.DELETE_GROUPS, _plain(delete_groups.DeleteGroupsRequest, groups_names=[GROUP]),
        ((O.DELETE, R.GROUP),), (0, 2),
    ),
    Case(
        ApiKey.ELECT_LEADERS, _plain(elect_leaders.ElectLeadersRequest, topic_partitions=None),
        ((O.ALTER, R.CLUSTER),), (1, 2),
    ),
    Case(ApiKey.ALTER_PARTITION_REASSIGNMENTS, _reassign, ((O.ALTER, R.CLUSTER),), (0,)),
    Case(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        _plain(list_partition_reassignments.ListPartitionReassignmentsRequest, topics=None),
        ((O.DESCRIBE, R.CLUSTER),), (0,),
    ),
    Case(ApiKey.OFFSET_DELETE, _offset_delete, ((O.DELETE, R.GROUP), (O.READ, R.TOPIC)), (0,)),
    Case(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        _plain(describe_client_quotas.DescribeClientQuotasRequest),
        ((O.DESCRIBE_CONFIGS, R.CLUSTER),), (0, 1),
    ),
    Case(ApiKey.ALTER_CLIENT_QUOTAS, _alter_quotas, ((O.ALTER_CONFIGS, R.CLUSTER),), (0, 1)),
    Case(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        _plain(describe_user_scram_credentials.DescribeUserScramCredentialsRequest, users=None),
        ((O.DESCRIBE, R.CLUSTER),), (0,),
    ),
    Case(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _alter_scram, ((O.ALTER, R.CLUSTER),), (0,)),
    Case(ApiKey.DESCRIBE_QUORUM, _quorum, ((O.DESCRIBE, R.CLUSTER),), (0, 2)),
    Case(ApiKey.UPDATE_FEATURES, _features, ((O.ALTER, R.CLUSTER),), (0, 1)),
    Case(ApiKey.DESCRIBE_PRODUCERS, _describe_producers, ((O.READ, R.TOPIC),), (0,)),
    Case(
        ApiKey.DESCRIBE_TRANSACTIONS,
        _plain(describe_transactions.DescribeTransactionsRequest, transactional_ids=[ID]),
        ((O.DESCRIBE, R.TRANSACTIONAL_ID),), (0,),
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, _heartbeat_848,
        ((O.READ, R.GROUP), (O.DESCRIBE, R.TOPIC)), (0, 1),
    ),
    Case(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        _plain(consumer_group_describe.ConsumerGroupDescribeRequest, group_ids=[GROUP]),
        ((O.DESCRIBE, R.GROUP),), (0, 1),
    ),
    Case(
        ApiKey.LIST_CONFIG_RESOURCES,
        _plain(list_config_resources.ListConfigResourcesRequest),
        ((O.DESCRIBE_CONFIGS, R.CLUSTER),), (0, 1),
    ),
    Case(ApiKey.DESCRIBE_TOPIC_PARTITIONS, _describe_topics, ((O.DESCRIBE, R.TOPIC),), (0,)),
    # Last: with all rights it really deletes.
    Case(ApiKey.DELETE_TOPICS, _delete_topics, ((O.DELETE, R.TOPIC),), (1, 6)),
]  # fmt: skip
