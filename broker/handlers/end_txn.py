"""EndTxn (26), v0-5.

The decision, every marker, the offsets and the completion are one journal entry. v5 is transaction
version 2: the reply carries the pair of the next transaction (KIP-890). Up to v1 a fenced producer is
told INVALID_PRODUCER_EPOCH.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.transactions.dialect import dialect, is_transaction_v2
from dualwrite.broker.transactions.state import Pair
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.END_TXN, versions=(0, 5), request=EndTxnRequest)
def end_txn(node: "Node", call: "Call[EndTxnRequest]") -> EndTxnResponse:
    request = call.request
    name = request.transactional_id
    if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = node.transaction_error(name)
    if error:
        return EndTxnResponse(error_code=error)
    decision = node.transactions.end_txn(
        name,
        Pair(request.producer_id, request.producer_epoch),
        commit=request.committed,
        tv2=is_transaction_v2(ApiKey.END_TXN, call.version),
        now=call.now,
    )
    node.execute(decision, call.now)
    return EndTxnResponse(
        error_code=dialect(decision.error, ApiKey.END_TXN, call.version),
        producer_id=decision.producer.producer_id,
        producer_epoch=decision.producer.producer_epoch,
    )
