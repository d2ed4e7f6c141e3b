"""AlterClientQuotas (49) sets quotas (KIP-546)."""

from dualwrite.wire.message import (
    array,
    boolean,
    float64,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@struct
class EntityData:
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@struct
class OpData:
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class EntryData:
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@request(49, "0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


@struct
class EntityResult:
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@struct
class EntryResult:
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[EntityResult] = array(EntityResult)


@response(49, "0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: int = int32()
    entries: list[EntryResult] = array(EntryResult)
