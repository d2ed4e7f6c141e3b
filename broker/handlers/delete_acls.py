"""DeleteAcls: v1-3.

Takes every access rule out of force that one of the filters selects, all in one journal entry. Needs
Alter on the cluster.

Left out: v0, which knows no patterns.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.handlers import handles
from dualwrite.broker.security.authorizer import removed
from dualwrite.broker.security.bindings import CLUSTER_NAME, AclBinding, AclFilter
from dualwrite.broker.security.errors import InvalidBinding
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.node import Node


@handles(ApiKey.DELETE_ACLS, (1, 3), DeleteAclsRequest)
def delete_acls(node: "Node", call: Call[DeleteAclsRequest]) -> DeleteAclsResponse:
    filters = call.request.filters
    refusal = ErrorCode.NONE
    if not call.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif not node.authorizer.enabled:
        refusal = ErrorCode.SECURITY_DISABLED
    if refusal:
        return DeleteAclsResponse(
            filter_results=[DeleteAclsFilterResult(error_code=refusal) for _ in filters]
        )

    gone: set[AclBinding] = set()
    results: list[DeleteAclsFilterResult] = []
    for asked in filters:
        try:
            selected = node.authorizer.select(_filter(asked))
        except InvalidBinding as error:
            results.append(
                DeleteAclsFilterResult(
                    error_code=ErrorCode.INVALID_REQUEST, error_message=str(error)
                )
            )
            continue
        gone.update(selected)
        results.append(DeleteAclsFilterResult(matching_acls=[_match(b) for b in selected]))
    if gone:
        node.commit([], call.now, [removed(sorted(gone))])
    return DeleteAclsResponse(filter_results=results)


def _filter(asked: DeleteAclsFilter) -> AclFilter:
    return AclFilter.of(
        resource_type=asked.resource_type_filter,
        pattern_type=asked.pattern_type_filter,
        name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def _match(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
