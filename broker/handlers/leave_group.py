"""LeaveGroup (13), v0-5.

One member up to v2; from v3 many at once, each with its own error, static ones also by their instance
id alone (KIP-345).
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5), request=LeaveGroupRequest)
def leave_group(node: "Node", call: "Call[LeaveGroupRequest]") -> LeaveGroupResponse | None:
    request = call.request
    if not call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = node.group_error(request.group_id)
    if error:
        return LeaveGroupResponse(error_code=error)
    node.settle(node.groups.leave_group(request, call.version, call, call.now), call.now)
    return None
