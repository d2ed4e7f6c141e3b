"""AlterConfigs (33), v0-2: replaces all that is set on a topic or on the broker.

Needs ALTER_CONFIGS. What is not named goes back to its default; IncrementalAlterConfigs changes single
entries instead.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation
from dualwrite.broker.configs import check_access, explicit_of, store
from dualwrite.broker.handlers import handles
from dualwrite.broker.topic_creation import Refused
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), request=AlterConfigsRequest)
def alter_configs(node: "Node", call: "Call[AlterConfigsRequest]") -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[_alter(node, call, resource) for resource in call.request.resources]
    )


def _alter(
    node: "Node", call: "Call[AlterConfigsRequest]", wanted: AlterConfigsResource
) -> AlterConfigsResourceResponse:
    kind, name = wanted.resource_type, wanted.resource_name
    code, reason = ErrorCode.NONE, None
    try:
        check_access(call, Operation.ALTER_CONFIGS, kind, name)
        explicit_of(node, kind, name)
        configs = {config.name: config.value for config in wanted.configs}
        if len(configs) < len(wanted.configs):
            raise Refused(ErrorCode.INVALID_REQUEST, "a key is named twice")
        store(node, kind, name, configs, call.now, call.request.validate_only)
    except Refused as refused:
        code, reason = refused.code, refused.reason
    return AlterConfigsResourceResponse(
        error_code=code, error_message=reason, resource_type=kind, resource_name=name
    )
