"""DescribeGroups (15), v0-6.

Shows classic groups; anything else is Dead, from v6 with GROUP_ID_NOT_FOUND (KIP-1043). Subscriptions and
assignments are shown of stable groups only. From v3 the caller's rights can be asked for.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

GROUP_OPERATIONS: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6), request=DescribeGroupsRequest)
def describe_groups(node: "Node", call: "Call[DescribeGroupsRequest]") -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_describe(node, call, id) for id in call.request.groups])


def _describe(node: "Node", call: "Call[DescribeGroupsRequest]", group_id: str) -> DescribedGroup:
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        error = node.group_error(group_id, writes=False)
    if error:
        return DescribedGroup(error_code=error, group_id=group_id)
    found = node.groups.describe_group(group_id, call.version)
    if call.request.include_authorized_operations:
        found.authorized_operations = call.operations(
            ResourceType.GROUP, group_id, GROUP_OPERATIONS
        )
    return found
