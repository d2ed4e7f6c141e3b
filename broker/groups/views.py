"""What is shown of groups: lists, descriptions, offsets. Nothing is changed here."""

from collections.abc import Iterable

from dualwrite.broker.groups.assignors import DEFAULT_ASSIGNOR
from dualwrite.broker.groups.classic import ClassicGroup, ClassicMember, ClassicState, topics_of
from dualwrite.broker.groups.consumer import ConsumerGroup, ConsumerMember
from dualwrite.broker.groups.offsets import CommittedOffset, Offsets, Place
from dualwrite.broker.topics import Topics
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import NO_UUID
from dualwrite.wire.messages import consumer_group_describe as consumer_messages
from dualwrite.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from dualwrite.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

Group = ClassicGroup | ConsumerGroup

_CONSUMER_PROTOCOL = "consumer"
_DESCRIBE_WITH_ERRORS = 6  # DescribeGroups from this version says that a group doesn't exist
_MEMBER_TYPE_CONSUMER = 1


def state_of(group: Group) -> str:
    """The state's name."""
    return group.state.value if isinstance(group, ClassicGroup) else group.state_name


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics that members read; None if that can't be known, so it may be any."""
    if isinstance(group, ConsumerGroup):
        members = group.members.values()
        return {name for m in members for name in group.topics_of(m, group.regexes)}
    if not group.members:
        return set()
    if group.protocol_type != _CONSUMER_PROTOCOL:
        return None
    return topics_of([member.metadata(group.protocol) for member in group.members.values()])


def is_opaque(group: Group) -> bool:
    """Whether the group is in use in a way that the broker can't look into."""
    return (
        isinstance(group, ClassicGroup)
        and not group.in_state(ClassicState.EMPTY)
        and group.protocol_type != _CONSUMER_PROTOCOL
    )


def is_removable(group: Group) -> bool:
    """Whether nobody is, or is about to be, a member."""
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.in_state(ClassicState.EMPTY) and not group.expected


def listed(groups: Iterable[Group], request: ListGroupsRequest) -> list[ListedGroup]:
    """Groups in the states and of the types that were asked for; no filter lets everything pass."""
    states = {state.lower() for state in request.states_filter}
    types = {type.lower() for type in request.types_filter}
    found = []
    for group in sorted(groups, key=lambda group: group.id):
        is_classic = isinstance(group, ClassicGroup)
        entry = ListedGroup(
            group_id=group.id,
            protocol_type=group.protocol_type
            if isinstance(group, ClassicGroup)
            else _CONSUMER_PROTOCOL,
            group_state=state_of(group),
            group_type="Classic" if is_classic else "Consumer",
        )
        if states and entry.group_state.lower() not in states:
            continue
        if types and entry.group_type.lower() not in types:
            continue
        found.append(entry)
    return found


def described(group_id: str, group: Group | None, version: int) -> DescribedGroup:
    """A classic group; others are reported dead, as clients expect."""
    if not isinstance(group, ClassicGroup):
        answer = DescribedGroup(group_id=group_id, group_state="Dead")
        if version >= _DESCRIBE_WITH_ERRORS:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            kind = "not found" if group is None else "not a classic group"
            answer.error_message = f"Group {group_id} {kind}."
        return answer
    is_stable = group.in_state(ClassicState.STABLE)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[_described_member(group, m, is_stable) for m in group.members.values()],
    )


def _described_member(
    group: ClassicGroup, member: ClassicMember, is_stable: bool
) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client.id,
        client_host=member.client.host,
        member_metadata=member.metadata(group.protocol) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )


def described_consumer(
    group_id: str, group: Group | None, topics: Topics
) -> consumer_messages.DescribedGroup:
    """A group of the new protocol, with its members' current and target assignments."""
    if not isinstance(group, ConsumerGroup):
        kind = "not found" if group is None else "not a consumer group"
        return consumer_messages.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {kind}.",
        )
    return consumer_messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(group.members.values(), DEFAULT_ASSIGNOR),
        members=[_described_consumer(group, m, topics) for m in group.members.values()],
    )


def _described_consumer(
    group: ConsumerGroup, member: ConsumerMember, topics: Topics
) -> consumer_messages.Member:
    def assignment(held: Iterable[tuple[bytes, Iterable[int]]]) -> consumer_messages.Assignment:
        return consumer_messages.Assignment(
            [
                consumer_messages.TopicPartitions(topic.id, topic.name, sorted(partitions))
                for topic_id, partitions in sorted(held, key=lambda item: item[0])
                if (topic := topics.by_id(topic_id)) is not None
            ]
        )

    return consumer_messages.Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client.id,
        client_host=member.client.host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex or None,
        assignment=assignment(member.held.items()),
        target_assignment=assignment(group.targets.get(member.id, {}).items()),
        member_type=_MEMBER_TYPE_CONSUMER,
    )


def fetch_error(group: Group | None, member_id: str | None, epoch: int) -> ErrorCode:
    """Members of the new protocol say who they are when they fetch offsets, so zombies get none."""
    if not isinstance(group, ConsumerGroup) or (member_id is None and epoch < 0):
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member.epoch == epoch else ErrorCode.STALE_MEMBER_EPOCH


def fetched(
    offsets: Offsets, topics: Topics, request: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    """The offsets asked for, or all that are committed if no topics are named."""
    group = request.group_id
    committed = offsets.committed(group)

    def partition(place: Place) -> OffsetFetchResponsePartitions:
        if require_stable and offsets.is_pending(group, place):
            return _no_offset(place[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _partition(place[1], committed.get(place))

    answer = OffsetFetchResponseGroup(group_id=group)
    if request.topics is None:
        for name in sorted({name for name, _ in committed}):
            places = sorted(place for place in committed if place[0] == name)
            topic = topics.get(name)
            topic_id = NO_UUID if topic is None else topic.id
            answer.topics.append(
                OffsetFetchResponseTopics(name, topic_id, [partition(p) for p in places])
            )
        return answer
    for asked in request.topics:
        topic = topics.get(asked.name) if asked.name else topics.by_id(asked.topic_id)
        name = asked.name or (topic.name if topic else "")
        if not name:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            results = [_no_offset(index, unknown) for index in asked.partition_indexes]
        else:
            results = [partition((name, index)) for index in asked.partition_indexes]
        answer.topics.append(OffsetFetchResponseTopics(asked.name, asked.topic_id, results))
    return answer


def _partition(index: int, committed: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return _no_offset(index, ErrorCode.NONE)
    return OffsetFetchResponsePartitions(
        index, committed.offset, committed.leader_epoch, committed.metadata
    )


def _no_offset(index: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(index, -1, -1, "", error)
