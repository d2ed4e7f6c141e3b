"""SyncGroup (14) hands out the assignment of a classic group's leader."""

from dualwrite.wire.message import array, binary, int16, int32, request, response, string, struct


@struct
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = binary()


@request(14, "0-5", flexible="4+")
class SyncGroupRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="0+", default=None)
    protocol_type: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@response(14, "0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="0+", default=None, ignorable=True)
    assignment: bytes = binary()
