"""OffsetDelete (47), v0.

Deletes a group's offsets of topics that it doesn't read (KIP-496). Needs the right to delete the group
and to read each topic. An offset that an open transaction holds stays: UNSTABLE_OFFSET_COMMIT.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0), request=OffsetDeleteRequest)
def offset_delete(node: "Node", call: "Call[OffsetDeleteRequest]") -> OffsetDeleteResponse | None:
    request = call.request
    if not call.may(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = ErrorCode.INVALID_GROUP_ID
    if request.group_id:
        error = node.group_error(request.group_id)
    if error:
        return OffsetDeleteResponse(error_code=error)
    refused = {
        topic.name: error for topic in request.topics if (error := _check(node, call, topic))
    }
    allowed = [topic for topic in request.topics if topic.name not in refused]
    decision = node.groups.offset_delete(replace(request, topics=allowed), call, call.now)
    response: OffsetDeleteResponse = decision.replies[0][1]
    if not response.error_code:
        results = iter(response.topics)
        response.topics = [
            _failed(topic, refused[topic.name]) if topic.name in refused else next(results)
            for topic in request.topics
        ]
    node.settle(decision, call.now)
    return None


def _check(
    node: "Node", call: "Call[OffsetDeleteRequest]", topic: OffsetDeleteRequestTopic
) -> ErrorCode:
    if not call.may(Operation.READ, ResourceType.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if node.topics.get(topic.name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _failed(topic: OffsetDeleteRequestTopic, error: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        topic.name,
        [OffsetDeleteResponsePartition(p.partition_index, error) for p in topic.partitions],
    )
