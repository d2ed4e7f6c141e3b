"""ListGroups (16), v0-5.

Who may describe the cluster sees all groups, others those that they may describe. v4 filters by state
(KIP-518), v5 by type (KIP-848); letter case doesn't matter, an unknown name matches nothing.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.LIST_GROUPS, versions=(0, 5), request=ListGroupsRequest)
def list_groups(node: "Node", call: "Call[ListGroupsRequest]") -> ListGroupsResponse:
    sees_all = call.may(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    return ListGroupsResponse(
        groups=[
            group
            for group in node.groups.list_groups(call.request)
            if sees_all or call.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        ]
    )
