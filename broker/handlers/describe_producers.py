"""DescribeProducers (61), v0: the producers of a partition and where their open transactions begin.

Needs READ on the topic (KIP-664).
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.topic_creation import absence
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), request=DescribeProducersRequest)
def describe_producers(
    node: "Node", call: "Call[DescribeProducersRequest]"
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _partition(node, call, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in call.request.topics
        ]
    )


def _partition(
    node: "Node", call: "Call[DescribeProducersRequest]", name: str, index: int
) -> PartitionResponse:
    error = ErrorCode.NONE
    log = node.find_log(name, index)
    if not call.may(Operation.READ, ResourceType.TOPIC, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif log is None:
        error = absence(name)
    elif log.offline is not None:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    if error or log is None:
        return PartitionResponse(partition_index=index, error_code=error, error_message=error.name)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=view.producer_id,
                producer_epoch=view.producer_epoch,
                last_sequence=view.last_sequence,
                last_timestamp=view.last_timestamp,
                coordinator_epoch=view.coordinator_epoch,
                current_txn_start_offset=view.txn_first_offset,
            )
            for view in log.producers.active(call.now)
        ],
    )
