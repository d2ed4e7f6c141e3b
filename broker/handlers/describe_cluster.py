"""DescribeCluster (60), v0-2: this broker, which is also the controller.

Endpoints of controllers (type 2) are refused: there are none of their own.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_BROKERS: Final = 1


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), request=DescribeClusterRequest)
def describe_cluster(node: "Node", call: "Call[DescribeClusterRequest]") -> DescribeClusterResponse:
    request = call.request
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is an endpoint of a broker",
        )
    host, port = node.endpoint(call)
    return DescribeClusterResponse(
        cluster_id=node.cluster.id,
        controller_id=node.id,
        brokers=[DescribeClusterBroker(broker_id=node.id, host=host, port=port)],
        cluster_authorized_operations=(
            call.operations(ResourceType.CLUSTER, "kafka-cluster", CLUSTER_OPERATIONS)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
