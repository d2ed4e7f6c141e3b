"""InitProducerId (22) gives out a producer id and epoch. v3 lets a producer bump its epoch
(KIP-360), v6 brings two-phase commit (KIP-939).

Tags 10000 to 10003 are not Kafka's. The bundled broker remembers the pair that an id finished last,
how ("commit" or "abort") and why ("client", "timeout", "fenced", "forced"), so that a client can
tell an abort by force from a transaction that never was. Others skip unknown tags.
"""

from dualwrite.wire.message import boolean, int16, int32, int64, request, response, string


@request(22, "0-6", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable_2pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


@response(22, "0-6", flexible="2+")
class InitProducerIdResponse:
    """The last_* tags are dualwrite's own: the transaction that this id finished last."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
    last_producer_id: int = int64("6+", default=-1, tag=10000, ignorable=True)
    last_producer_epoch: int = int16("6+", default=-1, tag=10001, ignorable=True)
    last_outcome: str | None = string("6+", nullable="0+", default=None, tag=10002, ignorable=True)
    last_cause: str | None = string("6+", nullable="0+", default=None, tag=10003, ignorable=True)
