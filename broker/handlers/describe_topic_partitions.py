"""DescribeTopicPartitions (75), v0: topics in the order of their names, page by page (KIP-966).

No topics named means all that the client may describe. Lists of eligible leaders are empty, never null:
Java's admin client, and with it Spark, fails on null.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.handlers.metadata import TOPIC_OPERATIONS
from dualwrite.broker.leadership import LEADER_EPOCH
from dualwrite.broker.topic_creation import absence
from dualwrite.broker.topics import Topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_PARTITIONS_MAX: Final = 2_000


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), request=DescribeTopicPartitionsRequest)
def describe_topic_partitions(
    node: "Node", call: "Call[DescribeTopicPartitionsRequest]"
) -> DescribeTopicPartitionsResponse:
    request = call.request
    names = {topic.name for topic in request.topics}
    wants_all = not names
    if wants_all:
        names = {topic.name for topic in node.topics}
    cursor = request.cursor
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    shown: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        topic = node.topics.get(name)
        if not call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if not wants_all:
                shown.append(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if topic is None:
            shown.append(_failed(name, absence(name)))
            continue
        first = 0
        if cursor is not None and name == cursor.topic_name:
            first = max(0, cursor.partition_index)
        if left == 0:
            return _page(shown, name, first)
        last = min(topic.partitions, first + left)
        shown.append(_describe(node, call, topic, range(first, last)))
        left -= last - first
        if last < topic.partitions:
            return _page(shown, name, last)
    return DescribeTopicPartitionsResponse(topics=shown)


def _page(
    shown: list[DescribeTopicPartitionsResponseTopic], name: str, partition: int
) -> DescribeTopicPartitionsResponse:
    cursor = Cursor(topic_name=name, partition_index=partition)
    return DescribeTopicPartitionsResponse(topics=shown, next_cursor=cursor)


def _describe(
    node: "Node", call: "Call[DescribeTopicPartitionsRequest]", topic: Topic, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(node, topic, index) for index in indexes],
        topic_authorized_operations=call.operations(
            ResourceType.TOPIC, topic.name, TOPIC_OPERATIONS
        ),
    )


def _partition(node: "Node", topic: Topic, index: int) -> DescribeTopicPartitionsResponsePartition:
    log = node.log_of(topic, index)
    is_online = log is not None and log.offline is None
    here = [node.id]
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if is_online else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=node.id if is_online else -1,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=here,
        isr_nodes=here if is_online else [],
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[] if is_online else here,
    )


def _failed(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)
