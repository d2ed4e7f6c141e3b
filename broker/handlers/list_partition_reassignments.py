"""ListPartitionReassignments (46), v0: none is ever under way. Needs DESCRIBE on the cluster."""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    request=ListPartitionReassignmentsRequest,
)
def list_partition_reassignments(
    node: "Node", call: "Call[ListPartitionReassignmentsRequest]"
) -> ListPartitionReassignmentsResponse:
    if not call.may(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="not authorized"
        )
    return ListPartitionReassignmentsResponse(error_message=None)
