"""CreateAcls: v1-3.

Puts access rules in force, each checked by itself; those that are right are journalled in one entry.
Needs Alter on the cluster. A rule that exists already is no error.

Left out: v0, which knows no patterns.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.handlers import handles
from dualwrite.broker.security.authorizer import added
from dualwrite.broker.security.bindings import CLUSTER_NAME, AclBinding
from dualwrite.broker.security.errors import InvalidBinding
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.node import Node


@handles(ApiKey.CREATE_ACLS, (1, 3), CreateAclsRequest)
def create_acls(node: "Node", call: Call[CreateAclsRequest]) -> CreateAclsResponse:
    creations = call.request.creations
    refusal = ErrorCode.NONE
    if not call.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif not node.authorizer.enabled:
        refusal = ErrorCode.SECURITY_DISABLED
    if refusal:
        return CreateAclsResponse(
            results=[AclCreationResult(error_code=refusal) for _ in creations]
        )

    bindings: list[AclBinding] = []
    results: list[AclCreationResult] = []
    for creation in creations:
        try:
            binding = AclBinding.of(
                resource_type=creation.resource_type,
                pattern_type=creation.resource_pattern_type,
                name=creation.resource_name,
                principal=creation.principal,
                host=creation.host,
                operation=creation.operation,
                permission=creation.permission_type,
            )
        except InvalidBinding as error:
            results.append(
                AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
            )
            continue
        results.append(AclCreationResult())
        if binding not in node.authorizer:
            bindings.append(binding)
    if bindings:
        node.commit([], call.now, [added(bindings)])
    return CreateAclsResponse(results=results)
