"""ElectLeaders (43) asks for an election of leaders (KIP-460)."""

from dualwrite.wire.message import (
    INT32,
    array,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@struct
class TopicPartitions:
    topic: str = string()
    partitions: list[int] = array(INT32)


@request(43, "0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


@struct
class PartitionResult:
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@response(43, "0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
