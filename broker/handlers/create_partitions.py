"""CreatePartitions (37), v0-3: adds partitions to a topic. Needs ALTER on the topic."""

from collections import Counter
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.configs import existing_topic
from dualwrite.broker.handlers import handles
from dualwrite.broker.topic_creation import Refused, check_partition_count
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3), request=CreatePartitionsRequest)
def create_partitions(
    node: "Node", call: "Call[CreatePartitionsRequest]"
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in call.request.topics)
    results = []
    for wanted in {topic.name: topic for topic in call.request.topics}.values():
        code, reason = ErrorCode.NONE, None
        try:
            if named[wanted.name] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "the topic is named twice")
            _grow(node, call, wanted)
        except Refused as refused:
            code, reason = refused.code, refused.reason
        results.append(
            CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=reason)
        )
    return CreatePartitionsResponse(results=results)


def _grow(
    node: "Node", call: "Call[CreatePartitionsRequest]", wanted: CreatePartitionsTopic
) -> None:
    if not call.may(Operation.ALTER, ResourceType.TOPIC, wanted.name):
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized to alter it")
    topic = existing_topic(node, wanted.name)
    if topic.is_internal:
        # Ids and groups would be looked for in other partitions than those that hold them.
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic is internal")
    check_partition_count(wanted.count)
    added = wanted.count - topic.partitions
    if added <= 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS, f"the topic has {topic.partitions} partitions already"
        )
    if wanted.assignments is not None and (
        len(wanted.assignments) != added
        or any(assignment.broker_ids != [node.id] for assignment in wanted.assignments)
    ):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {node.id}")
    node.refuse_when_full()
    if not call.request.validate_only:
        node.create_partitions(topic, wanted.count, call.now)
