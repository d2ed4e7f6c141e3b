"""Heartbeat (12), v0-4.

Keeps a classic membership alive and tells of a rebalance by REBALANCE_IN_PROGRESS. v3 adds static
members (KIP-345).
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.HEARTBEAT, versions=(0, 4), request=HeartbeatRequest)
def heartbeat(node: "Node", call: "Call[HeartbeatRequest]") -> HeartbeatResponse | None:
    request = call.request
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        error = node.group_error(request.group_id, writes=False)
    if error:
        return HeartbeatResponse(error_code=error)
    node.settle(node.groups.heartbeat(request, call, call.now), call.now)
    return None
