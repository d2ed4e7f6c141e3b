"""SyncGroup (14), v0-5.

Answered when the leader's assignment is there. v3 adds static members (KIP-345); from v5 the protocol
must be the one that the group has chosen.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_NAMES_PROTOCOL: Final = 5


@handles(ApiKey.SYNC_GROUP, versions=(0, 5), request=SyncGroupRequest)
def sync_group(node: "Node", call: "Call[SyncGroupRequest]") -> SyncGroupResponse | None:
    request = call.request
    if not call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if call.version >= _NAMES_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    error = node.group_error(request.group_id)
    if error:
        return SyncGroupResponse(error_code=error)
    node.settle(node.groups.sync_group(request, call, call.now), call.now)
    return None
