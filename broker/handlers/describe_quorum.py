"""DescribeQuorum (55), v0-2: a quorum of one, this broker. Needs DESCRIBE on the cluster.

What Kafka keeps in `__cluster_metadata` is in the journal here; its position stands for the end offset.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    PartitionResult,
    ReplicaState,
    TopicResult,
)
from dualwrite.wire.messages.describe_quorum import Node as QuorumNode

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

METADATA_TOPIC: Final = "__cluster_metadata"


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2), request=DescribeQuorumRequest)
def describe_quorum(node: "Node", call: "Call[DescribeQuorumRequest]") -> DescribeQuorumResponse:
    if not call.may(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"):
        return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = [
        TopicResult(
            topic_name=topic.topic_name,
            partitions=[
                _partition(node, call, topic.topic_name, part.partition_index)
                for part in topic.partitions
            ],
        )
        for topic in call.request.topics
    ]
    nodes = []
    if call.version >= 2:
        listeners = [
            Listener(name=name, host=host, port=port)
            for name, (host, port) in node.endpoints.items()
        ]
        nodes = [QuorumNode(node_id=node.id, listeners=listeners)]
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)


def _partition(
    node: "Node", call: "Call[DescribeQuorumRequest]", name: str, index: int
) -> PartitionResult:
    if name != METADATA_TOPIC or index != 0:
        return PartitionResult(
            partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    position = node.storage.durable
    return PartitionResult(
        partition_index=index,
        error_message=None,
        leader_id=node.id,
        leader_epoch=node.cluster.coordinator_epoch,
        high_watermark=position,
        current_voters=[
            ReplicaState(
                replica_id=node.id,
                log_end_offset=position,
                last_fetch_timestamp=call.now.wall_ms,
                last_caught_up_timestamp=call.now.wall_ms,
            )
        ],
    )
