"""ListConfigResources (74), v0-1: which topics and brokers have settings (KIP-1142).

v0 asks for client metrics only, of which there are none. Needs DESCRIBE_CONFIGS on the cluster.
"""

from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.configs import Resource
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_ALL: Final = frozenset(Resource)


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), request=ListConfigResourcesRequest)
def list_config_resources(
    node: "Node", call: "Call[ListConfigResourcesRequest]"
) -> ListConfigResourcesResponse:
    if not call.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "kafka-cluster"):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if call.version == 0:
        return ListConfigResourcesResponse()
    wanted = set(call.request.resource_types) or _ALL
    if not wanted <= _ALL:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[ConfigResource] = []
    if Resource.TOPIC in wanted:
        found += [
            ConfigResource(resource_name=topic.name, resource_type=Resource.TOPIC)
            for topic in node.topics
        ]
    if Resource.BROKER in wanted:
        found.append(ConfigResource(resource_name=str(node.id), resource_type=Resource.BROKER))
    return ListConfigResourcesResponse(config_resources=found)
