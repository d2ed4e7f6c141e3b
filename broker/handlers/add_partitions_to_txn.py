"""AddPartitionsToTxn (24), v0-3.

All or nothing: if one partition is unknown or may not be written, the others are 55 and none is added.
Up to v1 a fenced producer is told INVALID_PRODUCER_EPOCH.

Left out: v4 and v5, which brokers use among themselves.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.topics import INTERNAL_TOPICS
from dualwrite.broker.transactions.dialect import dialect
from dualwrite.broker.transactions.state import Pair, PartitionRef
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 3), request=AddPartitionsToTxnRequest)
def add_partitions_to_txn(
    node: "Node", call: "Call[AddPartitionsToTxnRequest]"
) -> AddPartitionsToTxnResponse:
    request = call.request
    name = request.v3_and_below_transactional_id
    refs = [
        PartitionRef(topic.name, partition)
        for topic in request.v3_and_below_topics
        for partition in topic.partitions
    ]
    if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _response(call, dict.fromkeys(refs, error))
    errors = {ref: error for ref in refs if (error := _check(node, call, ref))}
    if errors:
        return _response(
            call, {ref: errors.get(ref, ErrorCode.OPERATION_NOT_ATTEMPTED) for ref in refs}
        )
    error = node.transaction_error(name, begins=True)
    if not error:
        pair = Pair(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        decision = node.transactions.add_partitions(name, pair, refs, tv2=False, now=call.now)
        node.execute(decision, call.now)
        error = decision.error
    code = dialect(error, ApiKey.ADD_PARTITIONS_TO_TXN, call.version)
    return _response(call, dict.fromkeys(refs, code))


def _check(node: "Node", call: "Call[AddPartitionsToTxnRequest]", ref: PartitionRef) -> ErrorCode:
    if ref.topic in INTERNAL_TOPICS or not call.may(Operation.WRITE, ResourceType.TOPIC, ref.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if node.find_log(ref.topic, ref.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _response(
    call: "Call[AddPartitionsToTxnRequest]", errors: dict[PartitionRef, ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=partition,
                        partition_error_code=errors[PartitionRef(topic.name, partition)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in call.request.v3_and_below_topics
        ]
    )
