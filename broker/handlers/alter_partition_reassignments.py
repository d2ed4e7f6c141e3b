"""AlterPartitionReassignments (45), v0-1: there is nowhere to move a replica to.

Needs ALTER on the cluster. An assignment to this broker alone is what is there already; cancelling finds
nothing to cancel.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    request=AlterPartitionReassignmentsRequest,
)
def alter_partition_reassignments(
    node: "Node", call: "Call[AlterPartitionReassignmentsRequest]"
) -> AlterPartitionReassignmentsResponse:
    if not call.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"):
        return AlterPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="not authorized"
        )
    topics = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[_answer(node, topic.name, wanted) for wanted in topic.partitions],
        )
        for topic in call.request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_message=None, responses=topics)


def _answer(
    node: "Node", name: str, wanted: ReassignablePartition
) -> ReassignablePartitionResponse:
    error = ErrorCode.NONE
    if node.find_log(name, wanted.partition_index) is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif wanted.replicas is None:
        error = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    elif wanted.replicas != [node.id]:
        error = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index,
        error_code=error,
        error_message=error.name if error else None,
    )
