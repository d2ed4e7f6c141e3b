"""ListTransactions (66) lists transactional ids (KIP-664); v1 by duration (KIP-994), v2 by pattern
(KIP-1152).
"""

from dualwrite.wire.message import (
    INT64,
    STRING,
    array,
    int16,
    int32,
    int64,
    request,
    response,
    string,
    struct,
)


@request(66, "0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="0+", default=None)


@struct
class TransactionState:
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@response(66, "0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[TransactionState] = array(TransactionState)
