"""OffsetForLeaderEpoch (23), v2-4: there is one leader epoch, 0, and it ends at the high watermark.

Needs DESCRIBE on the topic.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.leadership import LEADER_EPOCH, epoch_error
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4), request=OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    node: "Node", call: "Call[OffsetForLeaderEpochRequest]"
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_partition(node, call, topic.topic, p) for p in topic.partitions],
            )
            for topic in call.request.topics
        ]
    )


def _partition(
    node: "Node",
    call: "Call[OffsetForLeaderEpochRequest]",
    name: str,
    wanted: OffsetForLeaderPartition,
) -> EpochEndOffset:
    log = node.find_log(name, wanted.partition)
    error = ErrorCode.NONE
    if not call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif log is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        error = epoch_error(wanted.current_leader_epoch)
    if error or log is None:
        return EpochEndOffset(error_code=error, partition=wanted.partition)
    if wanted.leader_epoch != LEADER_EPOCH:
        return EpochEndOffset(partition=wanted.partition)
    return EpochEndOffset(
        partition=wanted.partition, leader_epoch=LEADER_EPOCH, end_offset=log.high_watermark
    )
