"""ListOffsets (2), v1-11.

Timestamps: -1 the end (v2: the last stable offset for read_committed, else the high watermark), -2 and -4
the beginning, -3 the record with the largest timestamp (KIP-734), -5 and -6 what is in remote storage, of
which there is none (offset -1). One that is below 0 and stands for nothing, or not in this version, is
UNSUPPORTED_VERSION; any other is looked up. A partition that is named twice is an INVALID_REQUEST.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.leadership import LEADER_EPOCH, epoch_error
from dualwrite.broker.storage.errors import LogOffline
from dualwrite.broker.storage.log import Log
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE_VERSION: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NEVER: Final = 1 << 15
_HAS_LEADER_EPOCH: Final = 4
_READ_COMMITTED: Final = 1


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11), request=ListOffsetsRequest)
def list_offsets(node: "Node", call: "Call[ListOffsetsRequest]") -> ListOffsetsResponse:
    topics = call.request.topics
    named = Counter((t.name, part.partition_index) for t in topics for part in t.partitions)
    return ListOffsetsResponse(topics=[_topic(node, call, topic, named) for topic in topics])


def _topic(
    node: "Node",
    call: "Call[ListOffsetsRequest]",
    wanted: ListOffsetsTopic,
    named: Counter[tuple[str, int]],
) -> ListOffsetsTopicResponse:
    is_allowed = call.may(Operation.DESCRIBE, ResourceType.TOPIC, wanted.name)
    partitions = []
    for part in wanted.partitions:
        if not is_allowed:
            found = _failed(part, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif named[wanted.name, part.partition_index] > 1:
            found = _failed(part, ErrorCode.INVALID_REQUEST)
        else:
            log = node.find_log(wanted.name, part.partition_index)
            found = _partition(log, call, part)
        partitions.append(found)
    return ListOffsetsTopicResponse(name=wanted.name, partitions=partitions)


def _partition(
    log: Log | None, call: "Call[ListOffsetsRequest]", wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    if wanted.timestamp < 0 and call.version < _SINCE_VERSION.get(wanted.timestamp, _NEVER):
        return _failed(wanted, ErrorCode.UNSUPPORTED_VERSION)
    if log is None:
        return _failed(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = epoch_error(wanted.current_leader_epoch)
    if error:
        return _failed(wanted, error)
    reads_committed = call.request.isolation_level == _READ_COMMITTED
    upper = log.last_stable if reads_committed else log.high_watermark
    try:
        found = _look_up(log, wanted.timestamp, upper)
    except LogOffline:
        return _failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    offset, timestamp = found
    leader_epoch = LEADER_EPOCH if call.version >= _HAS_LEADER_EPOCH else -1
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _look_up(log: Log, timestamp: int, upper: int) -> tuple[int, int] | None:
    match timestamp:
        case -1:
            return upper, -1
        case -2 | -4:
            return log.log_start, -1
        case -3:
            return log.max_timestamp(upper)
        case -5 | -6:
            return None
    return log.offset_for_time(timestamp, upper)


def _failed(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)
