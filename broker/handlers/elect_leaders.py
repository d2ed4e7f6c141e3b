"""ElectLeaders (43), v0-2: the one broker leads everything already, so no election is needed.

Needs ALTER on the cluster.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), request=ElectLeadersRequest)
def elect_leaders(node: "Node", call: "Call[ElectLeadersRequest]") -> ElectLeadersResponse:
    is_allowed = call.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    results = []
    for wanted in call.request.topic_partitions or ():
        result = ReplicaElectionResult(topic=wanted.topic)
        for index in wanted.partitions:
            error = ErrorCode.ELECTION_NOT_NEEDED
            if not is_allowed:
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            elif node.find_log(wanted.topic, index) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.partition_result.append(
                PartitionResult(partition_id=index, error_code=error, error_message=error.name)
            )
        results.append(result)
    # Version 0 has no error of the whole request.
    refused = not is_allowed and call.version > 0
    return ElectLeadersResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED if refused else ErrorCode.NONE,
        replica_election_results=results,
    )
