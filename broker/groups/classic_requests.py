"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: how classic groups rebalance.

Who has joined and which requests are parked is kept in memory. A generation is stored when it begins
and again with its assignment; it takes effect when these records are replayed.
"""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.classic import (
    ClassicGroup,
    ClassicMember,
    ClassicState,
    protocols_of,
    record_of,
)
from dualwrite.broker.groups.consumer import ConsumerGroup
from dualwrite.broker.groups.decision import Client, Draft, Token
from dualwrite.broker.groups.timers import Timers
from dualwrite.broker.settings import Settings
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from dualwrite.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from dualwrite.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

Groups = MutableMapping[str, ClassicGroup | ConsumerGroup]

_EMPTY = ClassicState.EMPTY
_PREPARING = ClassicState.PREPARING_REBALANCE
_COMPLETING = ClassicState.COMPLETING_REBALANCE
_STABLE = ClassicState.STABLE

_NAMES_MEMBER_IDS = (
    4  # JoinGroup from this version asks newcomers to come back with their id (KIP-394)
)
_NULLS_PROTOCOL = 7  # JoinGroup from this version has null for "no protocol"
_SKIPS_ASSIGNMENT = (
    9  # JoinGroup from this version can tell a leader to keep the assignment (KIP-814)
)
_BATCHED_LEAVE = 3
_NEWCOMER_WAIT_MS = 300_000


@dataclass(frozen=True, slots=True)
class SessionDeadline:
    """A classic member must be heard of."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class JoinDeadline:
    """Everybody must have joined."""

    group: str


@dataclass(frozen=True, slots=True)
class SyncDeadline:
    """Everybody who joined must have fetched its assignment."""

    group: str


class ClassicRequests:
    """The conversation with members of classic groups."""

    def __init__(self, settings: Settings, groups: Groups, timers: Timers) -> None:
        self._settings = settings
        self._groups = groups
        self._timers = timers

    # Joining

    def join(
        self,
        draft: Draft,
        request: JoinGroupRequest,
        version: int,
        token: Token,
        now: Now,
        client: Client,
        fresh_id: str,
    ) -> None:
        """Add a member, or let it take part in the next generation."""
        error = self._request_error(request)
        group = None if error else self._group_to_join(draft, request)
        error = error or self._join_error(group, request)
        if group is None or error:
            draft.reply(token, join_refusal(version, error, request.member_id))
            return
        prefix = request.group_instance_id or client.id
        newcomer = _newcomer(request, version, token, client, f"{prefix}-{fresh_id}")
        holder = group.static_member(request.group_instance_id)
        if request.member_id:
            self._rejoin(group, draft, request, newcomer, now)
        elif holder is not None:
            self._take_over(group, draft, holder, newcomer, now)
        elif request.group_instance_id is None and version >= _NAMES_MEMBER_IDS:
            group.expected.add(newcomer.id)
            self._timers.set(
                SessionDeadline(group.id, newcomer.id), now.steady_ms + request.session_timeout_ms
            )
            draft.reply(token, join_refusal(version, ErrorCode.MEMBER_ID_REQUIRED, newcomer.id))
        else:
            self._add(group, draft, request, newcomer, now)

    def _group_to_join(self, draft: Draft, request: JoinGroupRequest) -> ClassicGroup | None:
        """The classic group, made or converted from an empty one of the new protocol if need be."""
        group = self._groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return group
        if group is not None and group.members:
            return None
        if group is None and request.member_id:
            return None
        if group is not None:
            draft.records.extend(group.tombstones())
        created = self._groups[request.group_id] = ClassicGroup(request.group_id)
        return created

    def _request_error(self, request: JoinGroupRequest) -> ErrorCode:
        shortest = self._settings["group.min.session.timeout.ms"]
        longest = self._settings["group.max.session.timeout.ms"]
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_error(self, group: ClassicGroup | None, request: JoinGroupRequest) -> ErrorCode:
        if group is None:
            if request.group_id in self._groups:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self._is_full(group, request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.accepts(request.protocol_type, protocols_of(request)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _is_full(self, group: ClassicGroup, request: JoinGroupRequest) -> bool:
        known = request.member_id in group.members or request.member_id in group.expected
        if known or group.static_member(request.group_instance_id):
            return False
        limit: int = self._settings["group.max.size"]
        return len(group.members) + len(group.expected) >= limit

    def _add(
        self,
        group: ClassicGroup,
        draft: Draft,
        request: JoinGroupRequest,
        member: ClassicMember,
        now: Now,
    ) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        group.expected.discard(member.id)
        group.members[member.id] = member
        group.has_newcomer = True
        member.is_new = True
        self._timers.set(SessionDeadline(group.id, member.id), now.steady_ms + _NEWCOMER_WAIT_MS)
        self._rebalance_or_complete(group, draft, now)

    def _rejoin(
        self,
        group: ClassicGroup,
        draft: Draft,
        request: JoinGroupRequest,
        newcomer: ClassicMember,
        now: Now,
    ) -> None:
        """A join with a member id: one that was just given out, or a known member's."""
        newcomer.id = request.member_id
        if newcomer.id in group.expected and request.group_instance_id is None:
            self._add(group, draft, request, newcomer, now)
            return
        error = group.identity_error(newcomer.id, request.group_instance_id)
        if error:
            draft.reply(
                newcomer.join_token, join_refusal(newcomer.join_version, error, newcomer.id)
            )
            return
        member = group.members[newcomer.id]
        is_same = member.protocols == newcomer.protocols
        is_leader = member.id == group.leader
        if group.in_state(_COMPLETING) and is_same:
            members = group.subscriptions(group.protocol) if is_leader else []
            reply = self._generation_reply(group, member.id)
            reply.members = members
            draft.reply(newcomer.join_token, reply)
        elif group.in_state(_STABLE) and is_same and not is_leader:
            draft.reply(newcomer.join_token, self._generation_reply(group, member.id))
        else:
            self._update(group, draft, member, newcomer, now)
            self._rebalance_or_complete(group, draft, now)

    def _update(
        self,
        group: ClassicGroup,
        draft: Draft,
        member: ClassicMember,
        newcomer: ClassicMember,
        now: Now,
    ) -> None:
        """Let a member go on with what its new join says."""
        if member.join_token is not None:
            # The older of two parked joins is answered, or its connection would wait for it for ever.
            error = ErrorCode.REBALANCE_IN_PROGRESS
            draft.reply(member.join_token, join_refusal(member.join_version, error, member.id))
        member.protocols = newcomer.protocols
        member.rebalance_timeout_ms = newcomer.rebalance_timeout_ms
        member.session_timeout_ms = newcomer.session_timeout_ms
        member.join_token = newcomer.join_token
        member.join_version = newcomer.join_version
        self._heard_of(group, member, now)

    def _take_over(
        self,
        group: ClassicGroup,
        draft: Draft,
        holder: ClassicMember,
        newcomer: ClassicMember,
        now: Now,
    ) -> None:
        """A static member has restarted: its new id replaces the old one (KIP-345)."""
        _dismiss(draft, holder, ErrorCode.FENCED_INSTANCE_ID)
        self._timers.cancel(SessionDeadline(group.id, holder.id))
        newcomer.assignment = holder.assignment
        group.members = {
            newcomer.id if id == holder.id else id: newcomer if id == holder.id else member
            for id, member in group.members.items()
        }
        group.unsynced.discard(holder.id)
        former_leader = group.leader
        if group.leader == holder.id:
            group.leader = newcomer.id
        self._heard_of(group, newcomer, now)
        if not group.in_state(_STABLE) or group.choose_protocol() != group.protocol:
            self._rebalance_or_complete(group, draft, now)
            return
        draft.records.append(record_of(group.id, group.value(now)))
        reply = self._generation_reply(group, newcomer.id)
        if newcomer.join_version < _SKIPS_ASSIGNMENT:
            # Told the leader's former id, the member takes itself for a follower and keeps still.
            reply.leader = former_leader or ""
        elif group.leader == newcomer.id:
            reply.skip_assignment = True
            reply.members = group.subscriptions(group.protocol)
        draft.reply(newcomer.join_token, reply)
        newcomer.join_token = None

    def _generation_reply(self, group: ClassicGroup, member_id: str) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol or "",
            leader=group.leader or "",
            member_id=member_id,
        )

    # Rebalancing

    def _rebalance_or_complete(self, group: ClassicGroup, draft: Draft, now: Now) -> None:
        if not group.in_state(_PREPARING):
            self._prepare(group, draft, now)
        elif not group.is_starting and group.has_all_joined:
            self._complete(group, draft, now)

    def _prepare(self, group: ClassicGroup, draft: Draft, now: Now) -> None:
        """Ask all members to join again."""
        for member in group.members.values():
            if member.sync_token is not None:
                error = ErrorCode.REBALANCE_IN_PROGRESS
                draft.reply(member.sync_token, SyncGroupResponse(error_code=error))
                member.sync_token = None
        self._timers.cancel(SyncDeadline(group.id))
        group.unsynced.clear()
        group.is_starting = group.in_state(_EMPTY)
        group.state = _PREPARING
        if group.is_starting:
            delay: int = self._settings["group.initial.rebalance.delay.ms"]
            group.delay_left_ms = max(group.rebalance_timeout_ms - delay, 0)
            group.has_newcomer = False
            self._timers.set(JoinDeadline(group.id), now.steady_ms + delay)
        elif group.has_all_joined:
            self._complete(group, draft, now)
        else:
            self._timers.set(JoinDeadline(group.id), now.steady_ms + group.rebalance_timeout_ms)

    def _complete(self, group: ClassicGroup, draft: Draft, now: Now) -> None:
        """Begin a generation with those who have joined. Static members may miss it (KIP-345)."""
        self._timers.cancel(JoinDeadline(group.id))
        group.is_starting = False
        for member in list(group.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._drop(group, draft, member)
        leader = group.choose_leader()
        if leader is None and group.members:
            self._timers.set(JoinDeadline(group.id), now.steady_ms + group.rebalance_timeout_ms)
            return
        value = group.next_generation(leader, now)
        draft.records.append(record_of(group.id, value))
        group.unsynced = {m.id for m in group.members.values() if m.join_token is not None}
        for member in group.members.values():
            if member.join_token is not None:
                reply = JoinGroupResponse(
                    generation_id=value.generation,
                    protocol_type=value.protocol_type,
                    protocol_name=value.protocol or "",
                    leader=leader or "",
                    member_id=member.id,
                    members=group.subscriptions(value.protocol) if member.id == leader else [],
                )
                draft.reply(member.join_token, reply)
                member.join_token = None
                member.is_new = False
                self._heard_of(group, member, now)
        if group.unsynced:
            self._timers.set(SyncDeadline(group.id), now.steady_ms + group.rebalance_timeout_ms)

    def _drop(self, group: ClassicGroup, draft: Draft, member: ClassicMember) -> None:
        _dismiss(draft, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._timers.cancel(SessionDeadline(group.id, member.id))
        group.unsynced.discard(member.id)
        del group.members[member.id]

    def _heard_of(self, group: ClassicGroup, member: ClassicMember, now: Now) -> None:
        self._timers.set(
            SessionDeadline(group.id, member.id), now.steady_ms + member.session_timeout_ms
        )

    # Synchronising, staying, leaving

    def sync(self, draft: Draft, request: SyncGroupRequest, token: Token, now: Now) -> None:
        """Hand out the leader's assignment, or wait for it."""
        group = self._classic(request.group_id)
        error = _sync_error(group, request)
        if group is None or error:
            draft.reply(token, SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.id)
        self._heard_of(group, member, now)
        if group.in_state(_STABLE):
            draft.reply(token, _assignment_reply(group, member.assignment))
            return
        if member.sync_token is not None:
            error = ErrorCode.REBALANCE_IN_PROGRESS
            draft.reply(member.sync_token, SyncGroupResponse(error_code=error))
        member.sync_token = token
        if member.id == group.leader:
            assignments = {a.member_id: a.assignment for a in request.assignments}
            draft.records.append(record_of(group.id, group.value(now, assignments=assignments)))
            for waiting in group.members.values():
                if waiting.sync_token is not None:
                    own = assignments.get(waiting.id, b"")
                    draft.reply(waiting.sync_token, _assignment_reply(group, own))
                    waiting.sync_token = None

    def heartbeat(self, draft: Draft, request: HeartbeatRequest, token: Token, now: Now) -> None:
        """Note that a member lives, and tell it about a rebalance."""
        group = self._classic(request.group_id)
        error = _member_error(group, request)
        if group is not None and not error:
            self._heard_of(group, group.members[request.member_id], now)
            if group.in_state(_PREPARING):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        draft.reply(token, HeartbeatResponse(error_code=error))

    def heard_of(self, group_id: str, member_id: str, now: Now) -> None:
        """A member, if it is one, has shown in another way that it lives."""
        group = self._classic(group_id)
        if group is not None and member_id in group.members:
            self._heard_of(group, group.members[member_id], now)

    def leave(
        self, draft: Draft, request: LeaveGroupRequest, version: int, token: Token, now: Now
    ) -> None:
        """Remove members at their own or an operator's wish."""
        if not request.group_id:
            draft.reply(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
            return
        leaving = request.members
        if version < _BATCHED_LEAVE:
            leaving = [MemberIdentity(member_id=request.member_id)]
        group = self._classic(request.group_id)
        results = [self._leave_one(group, draft, identity) for identity in leaving]
        if group is not None and any(result.error_code == ErrorCode.NONE for result in results):
            self._after_loss(group, draft, now)
        if version < _BATCHED_LEAVE:
            draft.reply(token, LeaveGroupResponse(error_code=results[0].error_code))
        else:
            draft.reply(token, LeaveGroupResponse(members=results))

    def _leave_one(
        self, group: ClassicGroup | None, draft: Draft, identity: MemberIdentity
    ) -> MemberResponse:
        result = MemberResponse(identity.member_id, identity.group_instance_id)
        if group is None:
            result.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return result
        member_id = identity.member_id
        if not member_id:
            # An operator knows the instance id only.
            holder = group.static_member(identity.group_instance_id)
            member_id = holder.id if holder else ""
        if member_id in group.expected:
            group.expected.discard(member_id)
            self._timers.cancel(SessionDeadline(group.id, member_id))
            return result
        result.error_code = group.identity_error(member_id, identity.group_instance_id)
        if result.error_code == ErrorCode.NONE:
            self._drop(group, draft, group.members[member_id])
        return result

    def _after_loss(self, group: ClassicGroup, draft: Draft, now: Now) -> None:
        """Members are gone: the others share what they had."""
        if group.in_state(_STABLE, _COMPLETING, _PREPARING):
            self._rebalance_or_complete(group, draft, now)

    def _classic(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    # Deadlines

    def session_ended(self, draft: Draft, member_id: str, now: Now) -> None:
        """A member wasn't heard of in time."""
        group = self._classic(draft.group)
        if group is None:
            return
        member = group.members.get(member_id)
        if member is not None and member.is_waiting and not member.is_new:
            self._heard_of(group, member, now)  # its parked request shows that it lives
            return
        if member is not None:
            self._drop(group, draft, member)
        elif member_id not in group.expected:
            return
        group.expected.discard(member_id)
        self._after_loss(group, draft, now)

    def join_ended(self, draft: Draft, now: Now) -> None:
        """The time to join is over; a first rebalance is put off while members keep coming."""
        group = self._classic(draft.group)
        if group is None or not group.in_state(_PREPARING):
            return
        if group.is_starting and group.has_newcomer and group.delay_left_ms:
            limit: int = self._settings["group.initial.rebalance.delay.ms"]
            delay = min(limit, group.delay_left_ms)
            group.delay_left_ms -= delay
            group.has_newcomer = False
            if delay:
                self._timers.set(JoinDeadline(group.id), now.steady_ms + delay)
                return
        self._complete(group, draft, now)

    def sync_ended(self, draft: Draft, now: Now) -> None:
        """Members that joined but never asked for their assignment are dropped."""
        group = self._classic(draft.group)
        if group is None or not group.unsynced or not group.in_state(_COMPLETING, _STABLE):
            return
        for member_id in sorted(group.unsynced & group.members.keys()):
            self._drop(group, draft, group.members[member_id])
        self._prepare(group, draft, now)

    def loaded(self, groups: Iterable[ClassicGroup], now: Now) -> None:
        """After a restart every member has its whole timeout to be heard of again."""
        for group in groups:
            for member in group.members.values():
                self._heard_of(group, member, now)
            if group.in_state(_COMPLETING):
                group.unsynced = set(group.members)
                self._timers.set(SyncDeadline(group.id), now.steady_ms + group.rebalance_timeout_ms)


def join_refusal(version: int, error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """An error, in the words of the request's version."""
    return JoinGroupResponse(
        error_code=error,
        member_id=member_id,
        protocol_name=None if version >= _NULLS_PROTOCOL else "",
    )


def _newcomer(
    request: JoinGroupRequest, version: int, token: Token, client: Client, id: str
) -> ClassicMember:
    rebalance = request.rebalance_timeout_ms  # v0 has none
    return ClassicMember(
        id,
        request.group_instance_id,
        client,
        request.session_timeout_ms if rebalance < 0 else rebalance,
        request.session_timeout_ms,
        protocols_of(request),
        join_token=token,
        join_version=version,
    )


def _dismiss(draft: Draft, member: ClassicMember, error: ErrorCode) -> None:
    """Answer what a member that is no more has parked."""
    if member.join_token is not None:
        draft.reply(member.join_token, join_refusal(member.join_version, error, member.id))
        member.join_token = None
    if member.sync_token is not None:
        draft.reply(member.sync_token, SyncGroupResponse(error_code=error))
        member.sync_token = None


def _assignment_reply(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def _member_error(
    group: ClassicGroup | None, request: SyncGroupRequest | HeartbeatRequest
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.identity_error(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _sync_error(group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
    error = _member_error(group, request)
    if error or group is None:
        return error
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.in_state(_PREPARING):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
