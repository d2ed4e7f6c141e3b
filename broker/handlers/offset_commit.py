"""OffsetCommit (8), v2-10.

Needs the right to read the group and each topic. Up to v4 a commit may carry its own retention. v7 adds
static members (KIP-345), v9 serves members of the new protocol (KIP-848), v10 names topics by id.
Metadata is kept as it came, up to offset.metadata.max.bytes.
"""

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10), request=OffsetCommitRequest)
def offset_commit(node: "Node", call: "Call[OffsetCommitRequest]") -> OffsetCommitResponse | None:
    request = call.request
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        error = node.group_error(request.group_id)
    if error:
        return OffsetCommitResponse(topics=[_refused(topic, error) for topic in request.topics])
    readable = [_may_read(node, call, topic) for topic in request.topics]
    allowed = list(compress(request.topics, readable))
    decision = node.groups.offset_commit(
        replace(request, topics=allowed), call.version, call, call.now
    )
    response: OffsetCommitResponse = decision.replies[0][1]
    results = iter(response.topics)
    response.topics = [
        next(results) if may_read else _refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for topic, may_read in zip(request.topics, readable, strict=True)
    ]
    node.settle(decision, call.now)
    return None


def _may_read(
    node: "Node", call: "Call[OffsetCommitRequest]", topic: OffsetCommitRequestTopic
) -> bool:
    name = node.topics.name_of(topic.name, topic.topic_id)
    # Without a name there is nothing to ask about; the answer is UNKNOWN_TOPIC_ID.
    return name is None or call.may(Operation.READ, ResourceType.TOPIC, name)


def _refused(topic: OffsetCommitRequestTopic, error: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        topic.name,
        topic.topic_id,
        [OffsetCommitResponsePartition(p.partition_index, error) for p in topic.partitions],
    )
