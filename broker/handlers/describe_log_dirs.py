"""DescribeLogDirs (35), v1-5: one directory, and the size of each log in it.

Needs DESCRIBE on the cluster; without it the list is empty, and v3 says why.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.topics import Topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5), request=DescribeLogDirsRequest)
def describe_log_dirs(
    node: "Node", call: "Call[DescribeLogDirsRequest]"
) -> DescribeLogDirsResponse:
    if not call.may(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: list[tuple[Topic, list[int]]] = []
    if call.request.topics is None:
        wanted = [(topic, list(range(topic.partitions))) for topic in node.topics]
    else:
        for asked in call.request.topics:
            topic = node.topics.get(asked.topic)
            if topic is not None:
                wanted.append((topic, asked.partitions))
    topics = [
        DescribeLogDirsTopic(name=topic.name, partitions=_partitions(node, topic, indexes))
        for topic, indexes in wanted
    ]
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=node.data_dir, topics=topics, usable_bytes=node.free_bytes()
            )
        ]
    )


def _partitions(node: "Node", topic: Topic, indexes: list[int]) -> list[DescribeLogDirsPartition]:
    logs = ((index, node.log_of(topic, index)) for index in indexes)
    return [
        DescribeLogDirsPartition(partition_index=index, partition_size=log.size)
        for index, log in logs
        if log is not None
    ]
