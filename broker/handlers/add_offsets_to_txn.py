"""AddOffsetsToTxn (25), v0-4.

The group's partition of __consumer_offsets joins the transaction, which begins if none is ongoing. Up to
v1 a fenced producer is told INVALID_PRODUCER_EPOCH. Clients of transaction version 2 don't send it.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.transactions.dialect import dialect
from dualwrite.broker.transactions.state import Pair
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), request=AddOffsetsToTxnRequest)
def add_offsets_to_txn(
    node: "Node", call: "Call[AddOffsetsToTxnRequest]"
) -> AddOffsetsToTxnResponse:
    request = call.request
    name = request.transactional_id
    if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = node.transaction_error(name, begins=True)
    if not error:
        decision = node.transactions.add_offsets(
            name,
            Pair(request.producer_id, request.producer_epoch),
            node.offsets_partition(request.group_id),
            now=call.now,
        )
        node.execute(decision, call.now)
        error = decision.error
    code = dialect(error, ApiKey.ADD_OFFSETS_TO_TXN, call.version)
    return AddOffsetsToTxnResponse(error_code=code)
