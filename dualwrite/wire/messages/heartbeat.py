"""Heartbeat (12) keeps a classic group membership alive."""

from dualwrite.wire.message import int16, int32, request, response, string


@request(12, "0-4", flexible="4+")
class HeartbeatRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)


@response(12, "0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
