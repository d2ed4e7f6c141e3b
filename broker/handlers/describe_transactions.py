"""DescribeTransactions (65), v0.

The pair shown is the ongoing transaction's, also while it is kept for recovery; a timeout of 2147483647
reveals two-phase commit. Tags of our own tell how the id's last transaction ended. Topics that the
client may not describe are left out.
"""

from itertools import groupby
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.transactions.state import PartitionRef
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), request=DescribeTransactionsRequest)
def describe_transactions(
    node: "Node", call: "Call[DescribeTransactionsRequest]"
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(node, call, n) for n in call.request.transactional_ids]
    )


def _describe(
    node: "Node", call: "Call[DescribeTransactionsRequest]", name: str
) -> TransactionState:
    if not call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
        return _failed(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not name:
        return _failed(name, ErrorCode.INVALID_REQUEST)
    error = node.transaction_error(name)
    if error:
        return _failed(name, error)
    known = node.transactions.get(name)
    if known is None:
        return _failed(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    visible = sorted(
        ref
        for ref in known.partitions
        if call.may(Operation.DESCRIBE, ResourceType.TOPIC, ref.topic)
    )
    return TransactionState(
        transactional_id=name,
        transaction_state=known.state.wire_name,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_ms,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=_by_topic(visible),
        last_producer_id=known.last_finished.producer_id,
        last_producer_epoch=known.last_finished.producer_epoch,
        last_outcome=known.last_outcome or None,
        last_cause=known.last_cause or None,
    )


def _by_topic(refs: list[PartitionRef]) -> list[TopicData]:
    return [
        TopicData(topic=topic, partitions=[ref.partition for ref in group])
        for topic, group in groupby(refs, key=lambda ref: ref.topic)
    ]


def _failed(name: str, error: ErrorCode) -> TransactionState:
    return TransactionState(transactional_id=name, error_code=error)
