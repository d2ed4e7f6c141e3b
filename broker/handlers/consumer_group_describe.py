"""ConsumerGroupDescribe (69), v0-1.

Shows groups of the new protocol (KIP-848) with current and target assignments; v1 adds the kind of each
member. Needs the right to describe the group (CVE-2026-41115); a group that reads a topic which the
caller may not describe is shown without members.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.handlers.describe_groups import GROUP_OPERATIONS
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), request=ConsumerGroupDescribeRequest)
def consumer_group_describe(
    node: "Node", call: "Call[ConsumerGroupDescribeRequest]"
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[_describe(node, call, group_id) for group_id in call.request.group_ids]
    )


def _describe(
    node: "Node", call: "Call[ConsumerGroupDescribeRequest]", group_id: str
) -> DescribedGroup:
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        error = node.group_error(group_id, writes=False)
    if error:
        return DescribedGroup(error_code=error, group_id=group_id)
    found = node.groups.describe_consumer_group(group_id)
    if not all(call.may(Operation.DESCRIBE, ResourceType.TOPIC, t) for t in _topics(found)):
        return DescribedGroup(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="The group reads topics that you may not describe.",
            group_id=group_id,
        )
    if call.request.include_authorized_operations:
        found.authorized_operations = call.operations(
            ResourceType.GROUP, group_id, GROUP_OPERATIONS
        )
    return found


def _topics(group: DescribedGroup) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            names.update(topic.topic_name for topic in assignment.topic_partitions)
    return names
