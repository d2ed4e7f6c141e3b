"""EndTxn (26) commits or aborts a transaction. v5 returns the bumped producer epoch (KIP-890)."""

from dualwrite.wire.message import boolean, int16, int32, int64, request, response, string


@request(26, "0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@response(26, "0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
