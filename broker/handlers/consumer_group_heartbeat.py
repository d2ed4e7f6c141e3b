"""ConsumerGroupHeartbeat (68), v0-1.

The new group protocol (KIP-848) with the server-side assignors uniform and range. From v1 the member
chooses its id and may subscribe by a pattern, which finds only topics that it may describe. Topics that
are named need that right too.

Left out: classic members in such a group (online migration), racks in assignments.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.groups.decision import Client
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), request=ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    node: "Node", call: "Call[ConsumerGroupHeartbeatRequest]"
) -> ConsumerGroupHeartbeatResponse | None:
    request = call.request

    def visible(name: str) -> bool:
        return call.may(Operation.DESCRIBE, ResourceType.TOPIC, name)

    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        error = node.group_error(request.group_id)
    if not error and not all(visible(name) for name in request.subscribed_topic_names or ()):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if error:
        return ConsumerGroupHeartbeatResponse(error_code=error)
    decision = node.groups.consumer_group_heartbeat(
        request,
        call.version,
        call,
        call.now,
        client=Client(call.client_id, f"/{call.client_host}"),
        fresh_id=str(UUID(bytes=node.new_topic_id(), version=4)),
        visible=visible,
    )
    node.settle(decision, call.now)
    return None
