"""ListConfigResources (74) lists resources that have configurations (KIP-1142)."""

from dualwrite.wire.message import (
    INT8,
    array,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@request(74, "0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: list[int] = array(INT8, "1+")


@struct
class ConfigResource:
    resource_name: str = string()
    resource_type: int = int8("1+", default=16, ignorable=True)


@response(74, "0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
