"""ListTransactions (66), v0-2.

Filters by state and producer id, from v1 by duration (KIP-994), from v2 by a pattern that must match the
whole id (KIP-1152). Names of states that don't exist are returned, not refused. Ids that the client may
not describe are left out. The pattern has RE2's syntax, as in Kafka; `transactions/pattern.py` says what is
missing.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.LIST_TRANSACTIONS, versions=(0, 2), request=ListTransactionsRequest)
def list_transactions(
    node: "Node", call: "Call[ListTransactionsRequest]"
) -> ListTransactionsResponse:
    request = call.request
    listing = node.transactions.list_transactions(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        duration_ms=request.duration_filter,
        pattern=request.transactional_id_pattern,
        now=call.now,
    )
    return ListTransactionsResponse(
        error_code=listing.error,
        unknown_state_filters=list(listing.unknown_states),
        transaction_states=[
            TransactionState(
                transactional_id=known.transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.wire_name,
            )
            for known in listing.transactions
            if call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, known.transactional_id)
        ],
    )
