"""DescribeAcls: v1-3.

Lists the access rules that a filter selects, grouped by resource pattern. Needs Describe on the
cluster. Where no authorizer is on, the answer is SECURITY_DISABLED instead of an empty list that would
look like "nobody may do anything".

Left out: v0, which knows no patterns.
"""

from itertools import groupby
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.handlers import handles
from dualwrite.broker.security.bindings import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    PatternType,
)
from dualwrite.broker.security.errors import InvalidBinding
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_ACLS, (1, 3), DescribeAclsRequest)
def describe_acls(node: "Node", call: Call[DescribeAclsRequest]) -> DescribeAclsResponse:
    request = call.request
    if not call.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeAclsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not node.authorizer.enabled:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="no authorizer is configured"
        )
    try:
        which = AclFilter.of(
            resource_type=request.resource_type_filter,
            pattern_type=request.pattern_type_filter,
            name=request.resource_name_filter,
            principal=request.principal_filter,
            host=request.host_filter,
            operation=request.operation,
            permission=request.permission_type,
        )
    except InvalidBinding as error:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
    return DescribeAclsResponse(resources=_grouped(node.authorizer.select(which)))


def _pattern(binding: AclBinding) -> tuple[ResourceType, PatternType, str]:
    return binding.resource_type, binding.pattern_type, binding.name


def _grouped(bindings: list[AclBinding]) -> list[DescribeAclsResource]:
    return [
        DescribeAclsResource(
            resource_type=resource_type,
            resource_name=name,
            pattern_type=pattern_type,
            acls=[
                AclDescription(
                    principal=b.principal,
                    host=b.host,
                    operation=b.operation,
                    permission_type=b.permission,
                )
                for b in group
            ],
        )
        for (resource_type, pattern_type, name), group in groupby(
            sorted(bindings, key=_pattern), key=_pattern
        )
    ]
