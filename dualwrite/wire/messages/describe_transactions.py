"""DescribeTransactions (65) shows the state of transactional ids (KIP-664).
Tags 10000 to 10003 are not Kafka's. The bundled broker remembers the pair that an id finished last,
how ("commit" or "abort") and why ("client", "timeout", "fenced", "forced"), so that a client can
tell an abort by force from a transaction that never was. Others skip unknown tags.
"""

from dualwrite.wire.message import (
    INT32,
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


@request(65, "0", flexible="0+")
class DescribeTransactionsRequest:
    transactional_ids: list[str] = array(STRING)


@struct
class TopicData:
    topic: str = string()
    partitions: list[int] = array(INT32)


@struct
class TransactionState:
    """The last_* tags are dualwrite's own: the transaction that this id finished last."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)
    last_producer_id: int = int64(default=-1, tag=10000, ignorable=True)
    last_producer_epoch: int = int16(default=-1, tag=10001, ignorable=True)
    last_outcome: str | None = string(nullable="0+", default=None, tag=10002, ignorable=True)
    last_cause: str | None = string(nullable="0+", default=None, tag=10003, ignorable=True)


@response(65, "0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
