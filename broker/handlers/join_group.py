"""JoinGroup (11), v0-9.

Answered when the generation begins. From v4 a dynamic member is given its id first and comes back with
it (KIP-394); v5 adds static members (KIP-345); from v9 a returning static leader is told to keep the
assignment (KIP-814). v0 has no rebalance timeout of its own: the session timeout counts.

Left out: classic members of a group that uses the new protocol (online migration of KIP-848); such
a join is INCONSISTENT_GROUP_PROTOCOL.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.groups.classic_requests import join_refusal
from dualwrite.broker.groups.decision import Client
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.JOIN_GROUP, versions=(0, 9), request=JoinGroupRequest)
def join_group(node: "Node", call: "Call[JoinGroupRequest]") -> JoinGroupResponse | None:
    request = call.request
    if not call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return join_refusal(call.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = node.group_error(request.group_id)
    if error:
        return join_refusal(call.version, error)
    decision = node.groups.join_group(
        request,
        call.version,
        call,
        call.now,
        client=Client(call.client_id, f"/{call.client_host}"),
        fresh_id=str(UUID(bytes=node.new_topic_id(), version=4)),
    )
    node.settle(decision, call.now)
    return None
