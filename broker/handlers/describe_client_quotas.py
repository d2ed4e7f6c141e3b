"""DescribeClientQuotas (48), v0-1: there are no quotas. Needs DESCRIBE_CONFIGS on the cluster."""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), request=DescribeClientQuotasRequest)
def describe_client_quotas(
    node: "Node", call: "Call[DescribeClientQuotasRequest]"
) -> DescribeClientQuotasResponse:
    if not call.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "kafka-cluster"):
        return DescribeClientQuotasResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="not authorized",
            entries=None,
        )
    return DescribeClientQuotasResponse(error_message=None)
