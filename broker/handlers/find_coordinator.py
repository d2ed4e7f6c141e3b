"""FindCoordinator (10), v0-6.

This broker coordinates every group and every transactional id. The right to describe the key is asked
before anything else. v4 asks for many keys, each with its own error.

Left out: share groups (key type 2).
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_BATCHED: Final = 4
_RESOURCES: Final = {
    0: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    1: (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6), request=FindCoordinatorRequest)
def find_coordinator(node: "Node", call: "Call[FindCoordinatorRequest]") -> FindCoordinatorResponse:
    request = call.request
    if call.version >= _BATCHED:
        return FindCoordinatorResponse(
            coordinators=[_find(node, call, key) for key in request.coordinator_keys]
        )
    found = _find(node, call, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(node: "Node", call: "Call[FindCoordinatorRequest]", key: str) -> Coordinator:
    known = _RESOURCES.get(call.request.key_type)
    error = ErrorCode.NONE
    if known is None:
        error = ErrorCode.INVALID_REQUEST
    elif not call.may(Operation.DESCRIBE, known[0], key):
        error = known[1]
    if error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error, error_message=error.name
        )
    host, port = node.endpoint(call)
    return Coordinator(key=key, node_id=node.id, host=host, port=port, error_message=None)
