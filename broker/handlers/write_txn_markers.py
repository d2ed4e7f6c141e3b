"""WriteTxnMarkers (27), v1-2.

For operators who end a transaction that hangs in a partition: CLUSTER_ACTION or ALTER on the cluster. A
producer id that the coordinator shows as ongoing is refused with 48: a marker behind the coordinator's
back would tear the transaction apart. As long as it can't know, because a partition of
__transaction_state is damaged, the answer is 16. v2 says which epoch rule applies (KIP-1228). What is
accepted of one marker is one journal entry.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.producers.verdicts import Refuse
from dualwrite.broker.topics import TRANSACTION_STATE
from dualwrite.broker.transactions.decision import Decision, Marker
from dualwrite.broker.transactions.state import PartitionRef
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from dualwrite.wire.records import EndMarker

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.WRITE_TXN_MARKERS, versions=(1, 2), request=WriteTxnMarkersRequest)
def write_txn_markers(
    node: "Node", call: "Call[WriteTxnMarkersRequest]"
) -> WriteTxnMarkersResponse:
    is_allowed = call.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster") or call.may(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster"
    )
    results: dict[int, WritableTxnMarkerResult] = {}
    for marker in call.request.markers:
        # As Kafka answers: grouped by producer id.
        result = results.setdefault(
            marker.producer_id, WritableTxnMarkerResult(producer_id=marker.producer_id)
        )
        result.topics += _write(node, call, marker, is_allowed)
    return WriteTxnMarkersResponse(markers=list(results.values()))


def _write(
    node: "Node",
    call: "Call[WriteTxnMarkersRequest]",
    wanted: WritableTxnMarker,
    is_allowed: bool,
) -> list[WritableTxnMarkerTopicResult]:
    accepted: set[PartitionRef] = set()
    topics = []
    for topic in wanted.topics:
        shown = WritableTxnMarkerTopicResult(name=topic.name)
        for partition in topic.partition_indexes:
            ref = PartitionRef(topic.name, partition)
            error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if is_allowed:
                error = _check(node, wanted, ref)
            if not error:
                accepted.add(ref)
            shown.partitions.append(
                WritableTxnMarkerPartitionResult(partition_index=partition, error_code=error)
            )
        topics.append(shown)
    if accepted:
        marker = Marker(
            producer_id=wanted.producer_id,
            producer_epoch=wanted.producer_epoch,
            commit=wanted.transaction_result,
            partitions=frozenset(accepted),
            transaction_version=wanted.transaction_version,
            coordinator_epoch=wanted.coordinator_epoch,
        )
        node.execute(Decision(markers=(marker,)), call.now)
    return topics


def _check(node: "Node", wanted: WritableTxnMarker, ref: PartitionRef) -> ErrorCode:
    log = node.find_log(*ref)
    if log is None or ref.topic == TRANSACTION_STATE:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if log.offline is not None or node.storage.is_full:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if node.transactions.is_open(wanted.producer_id):
        return ErrorCode.INVALID_TXN_STATE
    if not node.knows_all_transactions():
        return ErrorCode.NOT_COORDINATOR
    if min(wanted.producer_id, wanted.producer_epoch) < 0:
        return ErrorCode.INVALID_REQUEST
    verdict = log.producers.check_marker(
        EndMarker(
            wanted.transaction_result,
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.coordinator_epoch,
        ),
        tv2=wanted.transaction_version >= 2,
    )
    return verdict.code if isinstance(verdict, Refuse) else ErrorCode.NONE
