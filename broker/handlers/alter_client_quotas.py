"""AlterClientQuotas (49), v0-1: refused; there are no quotas, and none is pretended to be in force.

Needs ALTER_CONFIGS on the cluster.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityResult,
    EntryResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), request=AlterClientQuotasRequest)
def alter_client_quotas(
    node: "Node", call: "Call[AlterClientQuotasRequest]"
) -> AlterClientQuotasResponse:
    error, reason = ErrorCode.INVALID_REQUEST, "this broker has no quotas"
    if not call.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "kafka-cluster"):
        error, reason = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not authorized"
    return AlterClientQuotasResponse(
        entries=[
            EntryResult(
                error_code=error,
                error_message=reason,
                entity=[
                    EntityResult(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in call.request.entries
        ]
    )
