"""FindCoordinator (10) finds the coordinator of a group or a transactional id. v4 asks for many
keys (KIP-699).
"""

from dualwrite.wire.message import (
    STRING,
    array,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@request(10, "0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(STRING, "4+")


@struct
class Coordinator:
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


@response(10, "0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="0+", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
