"""DeleteRecords (21), v0-2: moves the log start forward; -1 means as far as possible.

Needs DELETE on the topic. Refused for topics that are only compacted (44). Unlike in Kafka, records of a
transaction whose outcome is open stay: an offset behind the last stable one is out of range, and -1 goes
no further than it.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.storage.entry import LogStart
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_ALL: Final = -1


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2), request=DeleteRecordsRequest)
def delete_records(node: "Node", call: "Call[DeleteRecordsRequest]") -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete(node, call, topic.name, part.partition_index, part.offset)
                    for part in topic.partitions
                ],
            )
            for topic in call.request.topics
        ]
    )


def _delete(
    node: "Node", call: "Call[DeleteRecordsRequest]", name: str, index: int, offset: int
) -> DeleteRecordsPartitionResult:
    log = node.find_log(name, index)
    topic = node.topics.get(name)
    error = ErrorCode.NONE
    if not call.may(Operation.DELETE, ResourceType.TOPIC, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif log is None or topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif topic.is_internal:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif log.offline is not None:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    elif not log.settings.delete:
        error = ErrorCode.POLICY_VIOLATION
    elif offset != _ALL and not 0 <= offset <= log.last_stable:
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    if error or log is None:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error
        )
    start = log.last_stable if offset == _ALL else offset
    if start > log.log_start:
        node.commit([LogStart(log.key, start)], call.now)
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=log.log_start)
