"""Metadata (3), v0-13.

One broker that leads everything at leader epoch 0. An empty list means all topics in v0 and none from v1
on, where null means all. A topic that doesn't exist is created if the client (v4) and the broker allow
it, and shown at once. From v12 topics may be asked for by id (the field is there from v10). Without the
right to describe it, a topic asked for by name is 29, and one found by listing is left out.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.leadership import LEADER_EPOCH
from dualwrite.broker.topic_creation import Refused, absence, checked_topic
from dualwrite.broker.topics import Topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import NO_UUID
from dualwrite.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

TOPIC_OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_NAMES_BY_ID: Final = 12
NOT_ASKED: Final = -(1 << 31)


@handles(ApiKey.METADATA, versions=(0, 13), request=MetadataRequest)
def metadata(node: "Node", call: "Call[MetadataRequest]") -> MetadataResponse:
    request = call.request
    wants_all = request.topics is None or (call.version == 0 and not request.topics)
    if wants_all:
        topics = [
            _describe(node, call, topic)
            for topic in node.topics
            if call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
    else:
        named = {(wanted.topic_id, wanted.name): wanted for wanted in request.topics or ()}
        topics = [_find(node, call, wanted) for wanted in named.values()]
    host, port = node.endpoint(call)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.id, host=host, port=port)],
        cluster_id=node.cluster.id,
        controller_id=node.id,
        topics=topics,
        cluster_authorized_operations=(
            call.operations(ResourceType.CLUSTER, "kafka-cluster", CLUSTER_OPERATIONS)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _find(
    node: "Node", call: "Call[MetadataRequest]", wanted: MetadataRequestTopic
) -> MetadataResponseTopic:
    if call.version < _NAMES_BY_ID and (wanted.topic_id != NO_UUID or wanted.name is None):
        return _failed(wanted.name or "", ErrorCode.INVALID_REQUEST, wanted.topic_id)
    if wanted.topic_id != NO_UUID:
        return _find_by_id(node, call, wanted.topic_id)
    name = wanted.name or ""
    if not call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = node.topics.get(name)
    if topic is not None:
        return _describe(node, call, topic)
    if not (call.request.allow_auto_topic_creation and node.settings["auto.create.topics.enable"]):
        return _failed(name, absence(name))
    return _create(node, call, name)


def _find_by_id(
    node: "Node", call: "Call[MetadataRequest]", topic_id: bytes
) -> MetadataResponseTopic:
    topic = node.topics.by_id(topic_id)
    if topic is None or not call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            name=None,
            topic_id=topic_id,
        )
    return _describe(node, call, topic)


def _create(node: "Node", call: "Call[MetadataRequest]", name: str) -> MetadataResponseTopic:
    if not (
        call.may(Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster")
        or call.may(Operation.CREATE, ResourceType.TOPIC, name)
    ):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        topic = checked_topic(name, node.new_topic_id(), -1, -1, {}, node.topics, node.settings)
        node.refuse_when_full()
    except Refused as refused:
        return _failed(name, refused.code)
    node.create_topic(topic, call.now)
    return _describe(node, call, topic)


def _describe(node: "Node", call: "Call[MetadataRequest]", topic: Topic) -> MetadataResponseTopic:
    operations = NOT_ASKED
    if call.request.include_topic_authorized_operations:
        operations = call.operations(ResourceType.TOPIC, topic.name, TOPIC_OPERATIONS)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(node, topic, index) for index in range(topic.partitions)],
        topic_authorized_operations=operations,
    )


def _partition(node: "Node", topic: Topic, index: int) -> MetadataResponsePartition:
    log = node.log_of(topic, index)
    here = [node.id]
    if log is None or log.offline is not None:
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=-1,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=here,
            isr_nodes=[],
            offline_replicas=here,
        )
    return MetadataResponsePartition(
        partition_index=index,
        leader_id=node.id,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=here,
        isr_nodes=here,
    )


def _failed(name: str, code: ErrorCode, topic_id: bytes = NO_UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)
