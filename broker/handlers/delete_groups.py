"""DeleteGroups (42), v0-2.

Deletes groups without members, with their offsets (KIP-229). A group is not empty as long as an open
transaction holds one of its offsets: deleting it would take back a part of what was prepared.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2), request=DeleteGroupsRequest)
def delete_groups(node: "Node", call: "Call[DeleteGroupsRequest]") -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(name, _delete(node, call, name))
            for name in dict.fromkeys(call.request.groups_names)
        ]
    )


def _delete(node: "Node", call: "Call[DeleteGroupsRequest]", group_id: str) -> ErrorCode:
    if not call.may(Operation.DELETE, ResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    error = node.group_error(group_id)
    if error:
        return error
    error, decision = node.groups.delete_group(group_id, call.now)
    node.settle(decision, call.now)
    return error
