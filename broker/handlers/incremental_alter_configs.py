"""IncrementalAlterConfigs (44), v0-1: sets, resets or, for lists, extends single entries.

Needs ALTER_CONFIGS on the topic or the cluster.
"""

from collections import Counter
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation
from dualwrite.broker.configs import changed, check_access, explicit_of, store
from dualwrite.broker.handlers import handles
from dualwrite.broker.topic_creation import Refused
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), request=IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    node: "Node", call: "Call[IncrementalAlterConfigsRequest]"
) -> IncrementalAlterConfigsResponse:
    resources = call.request.resources
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            _alter(node, call, resource, named[resource.resource_type, resource.resource_name])
            for resource in resources
        ]
    )


def _alter(
    node: "Node",
    call: "Call[IncrementalAlterConfigsRequest]",
    wanted: AlterConfigsResource,
    times: int,
) -> AlterConfigsResourceResponse:
    kind, name = wanted.resource_type, wanted.resource_name
    code, reason = ErrorCode.NONE, None
    try:
        check_access(call, Operation.ALTER_CONFIGS, kind, name)
        if times > 1:
            raise Refused(ErrorCode.INVALID_REQUEST, "the resource is named twice")
        changes = [(c.name, c.config_operation, c.value) for c in wanted.configs]
        configs = changed(explicit_of(node, kind, name), kind, changes)
        store(node, kind, name, configs, call.now, call.request.validate_only)
    except Refused as refused:
        code, reason = refused.code, refused.reason
    return AlterConfigsResourceResponse(
        error_code=code, error_message=reason, resource_type=kind, resource_name=name
    )
