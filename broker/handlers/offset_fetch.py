"""OffsetFetch (9), v1-10.

Needs the right to describe the group and each topic; when all topics are asked for (v2), those without
the right are left out. A group that doesn't exist has no offsets, which is no error. From v7 a client
may insist on stable offsets: a place that an open transaction holds is UNSTABLE_OFFSET_COMMIT (KIP-447).
v8 asks for many groups, v9 checks members of the new protocol (KIP-848), v10 names topics by id.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import NO_UUID
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_GROUP_ERRORS: Final = 2  # from this version on there is an error for the group as a whole
_BATCHED: Final = 8


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10), request=OffsetFetchRequest)
def offset_fetch(node: "Node", call: "Call[OffsetFetchRequest]") -> OffsetFetchResponse:
    request = call.request
    if call.version >= _BATCHED:
        return OffsetFetchResponse(groups=[_group(node, call, group) for group in request.groups])
    topics = request.topics
    asked = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(t.name, NO_UUID, t.partition_indexes) for t in topics],
    )
    return _single(call, asked, _group(node, call, asked))


def _group(
    node: "Node", call: "Call[OffsetFetchRequest]", asked: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.DESCRIBE, ResourceType.GROUP, asked.group_id):
        error = node.group_error(asked.group_id, writes=False)
    if error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    found = node.groups.offset_fetch(asked, call.request.require_stable)
    if asked.topics is None:
        found.topics = [topic for topic in found.topics if _may_describe(node, call, topic)]
    else:
        for topic in found.topics:
            if not _may_describe(node, call, topic):
                for partition in topic.partitions:
                    _hide(partition)
    return found


def _may_describe(
    node: "Node", call: "Call[OffsetFetchRequest]", topic: OffsetFetchResponseTopics
) -> bool:
    name = node.topics.name_of(topic.name, topic.topic_id)
    # Without a name there is nothing to ask about; the answer is UNKNOWN_TOPIC_ID.
    return name is None or call.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _hide(partition: OffsetFetchResponsePartitions) -> None:
    partition.committed_offset = -1
    partition.committed_leader_epoch = -1
    partition.metadata = ""
    partition.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _single(
    call: "Call[OffsetFetchRequest]",
    asked: OffsetFetchRequestGroup,
    found: OffsetFetchResponseGroup,
) -> OffsetFetchResponse:
    """The answer of the versions that know one group."""
    if found.error_code and call.version < _GROUP_ERRORS:
        topics = [
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(index, -1, -1, "", found.error_code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ]
        return OffsetFetchResponse(topics=topics)
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.metadata,
                    p.error_code,
                )
                for p in topic.partitions
            ],
        )
        for topic in found.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=found.error_code)
