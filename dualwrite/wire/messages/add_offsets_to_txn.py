"""AddOffsetsToTxn (25) adds a group's offsets to a transaction (KIP-98)."""

from dualwrite.wire.message import int16, int32, int64, request, response, string


@request(25, "0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@response(25, "0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
