"""ListGroups (16) lists groups. v4 filters by state (KIP-518), v5 by type (KIP-848)."""

from dualwrite.wire.message import STRING, array, int16, int32, request, response, string, struct


@request(16, "0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[str] = array(STRING, "4+")
    types_filter: list[str] = array(STRING, "5+")


@struct
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


@response(16, "0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
