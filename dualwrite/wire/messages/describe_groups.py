"""DescribeGroups (15) shows classic groups and their members."""

from dualwrite.wire.message import (
    STRING,
    array,
    binary,
    boolean,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@request(15, "0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: list[str] = array(STRING)
    include_authorized_operations: bool = boolean("3+")


@struct
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="0+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


@struct
class DescribedGroup:
    error_code: int = int16()
    error_message: str | None = string("6+", nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32("3+", default=-(1 << 31))


@response(15, "0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)
