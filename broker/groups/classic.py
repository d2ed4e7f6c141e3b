"""A classic consumer group: its members, their votes, and the generation they agree on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.decision import Client, GroupRecord, Token
from dualwrite.broker.groups.records import (
    UNKNOWN_MS,
    ClassicGroupValue,
    GroupKey,
    Kind,
    StoredMember,
    make,
)
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponseMember

NO_GENERATION = -1
Protocols = tuple[tuple[str, bytes], ...]


class ClassicState(Enum):
    """The states by the names that operators see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member, with the requests of it that are parked."""

    id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token | None = None
    join_version: int = 0
    sync_token: Token | None = None
    is_new: bool = False  # its first join isn't answered yet

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription in the group's protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def supports(self, name: str) -> bool:
        return any(own == name for own, _ in self.protocols)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """One group. Generation, leader, protocol and assignments come from `install` alone."""

    id: str
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = UNKNOWN_MS
    members: dict[str, ClassicMember] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)  # ids given out, not joined yet (KIP-394)
    unsynced: set[str] = field(default_factory=set)
    is_starting: bool = False  # the first rebalance waits for more members to come
    has_newcomer: bool = False
    delay_left_ms: int = 0

    def in_state(self, *states: ClassicState) -> bool:
        return self.state in states

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        joined = all(member.join_token is not None for member in self.members.values())
        return joined and not self.expected

    def static_member(self, instance_id: str | None) -> ClassicMember | None:
        """The member that holds an instance id (KIP-345)."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether somebody is who they say they are."""
        if instance_id is not None:
            holder = self.static_member(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder.id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def accepts(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols fits in."""
        if not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(name in common for name, _ in protocols)

    def _common_protocols(self) -> set[str]:
        sets = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*sets) if sets else set()

    def choose_protocol(self) -> str | None:
        """The protocol that all members speak and most prefer."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
            if common
        )
        return votes.most_common(1)[0][0] if votes else None

    def choose_leader(self) -> str | None:
        """The leader if it has joined, else the first member that has; None if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_token is not None:
            return leader.id
        return next((m.id for m in self.members.values() if m.join_token is not None), None)

    def subscriptions(self, protocol: str | None) -> list[JoinGroupResponseMember]:
        """What the leader needs to compute an assignment."""
        return [
            JoinGroupResponseMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(protocol),
            )
            for member in self.members.values()
        ]

    def value(self, now: Now, *, assignments: dict[str, bytes] | None = None) -> ClassicGroupValue:
        """The group as it is stored, with other assignments if they are given."""
        members = [_stored(member, self.protocol, assignments) for member in self.members.values()]
        return ClassicGroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=now.wall_ms,
            members=members,
            steady_ms=now.steady_ms,
        )

    def next_generation(self, leader: str | None, now: Now) -> ClassicGroupValue:
        """The group as it is stored when a generation begins, its assignment yet to come."""
        protocol = self.choose_protocol()
        return ClassicGroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation + 1,
            protocol=protocol,
            leader=leader,
            current_state_timestamp=now.wall_ms,
            members=[_stored(member, protocol, {}) for member in self.members.values()],
            steady_ms=now.steady_ms,
            awaits_assignment=bool(self.members),
        )

    def install(self, value: ClassicGroupValue, now: Now) -> None:
        """Become what was stored; members that are known keep their parked requests."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.protocol = value.protocol
        self.leader = value.leader
        self.state_since_ms = now.steady_ms if value.steady_ms == UNKNOWN_MS else value.steady_ms
        members = {}
        for stored in value.members:
            member = self.members.get(stored.member_id) or _member(stored, value.protocol)
            member.assignment = stored.assignment
            members[member.id] = member
        self.members = members
        if not members:
            self.state = ClassicState.EMPTY
        elif value.awaits_assignment:
            self.state = ClassicState.COMPLETING_REBALANCE
        else:
            self.state = ClassicState.STABLE


def _stored(
    member: ClassicMember, protocol: str | None, assignments: dict[str, bytes] | None
) -> StoredMember:
    assignment = member.assignment if assignments is None else assignments.get(member.id, b"")
    return StoredMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client.id,
        client_host=member.client.host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def _member(stored: StoredMember, protocol: str | None) -> ClassicMember:
    rebalance = stored.rebalance_timeout
    return ClassicMember(
        stored.member_id,
        stored.group_instance_id,
        Client(stored.client_id, stored.client_host),
        stored.session_timeout if rebalance < 0 else rebalance,
        stored.session_timeout,
        ((protocol or "", stored.subscription),),
    )


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """What a join offers, in order of preference."""
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def record_of(group: str, value: ClassicGroupValue | None) -> GroupRecord:
    """The record that stores a classic group, or deletes it."""
    return make(Kind.CLASSIC_GROUP, GroupKey(group), value)


def topics_of(subscriptions: Sequence[bytes]) -> set[str] | None:
    """The topics that consumers subscribe to; None if a subscription can't be read."""
    topics: set[str] = set()
    for data in subscriptions:
        found = _subscribed(data)
        if found is None:
            return None
        topics.update(found)
    return topics


def _subscribed(data: bytes) -> list[str] | None:
    # ConsumerProtocolSubscription: int16 version, then an array of strings; later fields don't matter.
    try:
        count = int.from_bytes(data[2:6], "big", signed=True)
        position = 6
        names = []
        for _ in range(count):
            length = int.from_bytes(data[position : position + 2], "big", signed=True)
            position += 2
            if position > len(data) or length < 0 or position + length > len(data):
                return None
            names.append(data[position : position + length].decode())
            position += length
    except UnicodeDecodeError:
        return None
    return names if position <= len(data) and count >= 0 else None
