"""DeleteGroups (42) deletes empty groups (KIP-229)."""

from dualwrite.wire.message import STRING, array, int16, int32, request, response, string, struct


@request(42, "0-2", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[str] = array(STRING)


@struct
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = int16()


@response(42, "0-2", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
