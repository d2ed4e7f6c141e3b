"""DescribeConfigs (32), v1-4: settings of topics and of the broker, where they come from, what they mean.

Needs DESCRIBE_CONFIGS on the topic or the cluster. Values of sensitive settings are null (CVE-2019-12399).
Groups, loggers and client metrics have no settings here: their lists are empty.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation
from dualwrite.broker.configs import TYPES, Entry, check_access, describe
from dualwrite.broker.handlers import handles
from dualwrite.broker.topic_creation import Refused
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), request=DescribeConfigsRequest)
def describe_configs(node: "Node", call: "Call[DescribeConfigsRequest]") -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_resource(node, call, resource) for resource in call.request.resources]
    )


def _resource(
    node: "Node", call: "Call[DescribeConfigsRequest]", wanted: DescribeConfigsResource
) -> DescribeConfigsResult:
    kind, name = wanted.resource_type, wanted.resource_name
    try:
        check_access(call, Operation.DESCRIBE_CONFIGS, kind, name)
        keys = wanted.configuration_keys
        entries = [
            entry
            for entry in describe(node, kind, name)
            # An empty list means all keys too: that is how librdkafka writes it.
            if not keys or entry.key in keys
        ]
    except Refused as refused:
        return DescribeConfigsResult(
            error_code=refused.code,
            error_message=refused.reason,
            resource_type=kind,
            resource_name=name,
        )
    return DescribeConfigsResult(
        error_message=None,
        resource_type=kind,
        resource_name=name,
        configs=[_shown(entry, call.request) for entry in entries],
    )


def _shown(entry: Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    is_sensitive = entry.setting.sensitive
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.key,
        value=None if is_sensitive else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=None if is_sensitive else value, source=source)
            for name, value, source in synonyms
        ],
        config_type=TYPES[entry.setting.kind],
        documentation=entry.setting.doc if request.include_documentation else None,
    )
