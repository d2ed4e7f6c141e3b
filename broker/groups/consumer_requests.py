"""ConsumerGroupHeartbeat: the whole conversation of the new group protocol (KIP-848).

The coordinator computes a target assignment per group epoch and moves each member towards it, one
heartbeat at a time. Everything but the timeouts is stored.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from dualwrite.broker.groups.classic import ClassicGroup, record_of
from dualwrite.broker.groups.classic_requests import Groups
from dualwrite.broker.groups.consumer import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    ConsumerGroup,
    ConsumerMember,
    Held,
    MemberState,
    Target,
    epoch_record,
    hash_of,
    regex_record,
    target_epoch_record,
    target_record,
)
from dualwrite.broker.groups.decision import Client, Draft, Token
from dualwrite.broker.groups.reconciliation import Owned, reconcile
from dualwrite.broker.groups.timers import Timers
from dualwrite.broker.settings import Settings
from dualwrite.broker.topics import Topics
from dualwrite.broker.transactions.pattern import Pattern, PatternError
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

Visible = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ConsumerSessionDeadline:
    """A member of the new protocol must be heard of."""

    group: str
    member: str


@dataclass(frozen=True, slots=True)
class RevocationDeadline:
    """A member must have given back partitions."""

    group: str
    member: str


class Refusal(Exception):
    """A heartbeat is answered by an error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True)
class _Change:
    """A group while one of its members' heartbeats is worked on; nothing is changed before replay."""

    group: ConsumerGroup
    draft: Draft
    members: dict[str, ConsumerMember]
    targets: dict[str, Target]
    regexes: dict[str, frozenset[str]]
    epoch: int
    target_epoch: int

    @classmethod
    def of(cls, group: ConsumerGroup, draft: Draft) -> "_Change":
        return cls(
            group,
            draft,
            dict(group.members),
            dict(group.targets),
            dict(group.regexes),
            group.epoch,
            group.target_epoch,
        )

    def topics_of(self, member: ConsumerMember) -> set[str]:
        return self.group.topics_of(member, self.regexes)


class ConsumerRequests:
    """The conversation with members of the new protocol's groups."""

    def __init__(self, settings: Settings, topics: Topics, groups: Groups, timers: Timers) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._timers = timers

    def heartbeat(
        self,
        draft: Draft,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        token: Token,
        now: Now,
        client: Client,
        fresh_id: str,
        visible: Visible,
    ) -> None:
        """Join, stay in or leave a group."""
        try:
            check_heartbeat(request, version)
            if request.member_epoch < JOINING:
                response = self._leave(draft, request, now)
            else:
                response = self._stay(draft, request, now, client, fresh_id, visible)
        except Refusal as refusal:
            draft.records.clear()
            response = ConsumerGroupHeartbeatResponse(
                error_code=refusal.code, error_message=refusal.message
            )
        draft.reply(token, response)

    def _stay(
        self,
        draft: Draft,
        request: ConsumerGroupHeartbeatRequest,
        now: Now,
        client: Client,
        fresh_id: str,
        visible: Visible,
    ) -> ConsumerGroupHeartbeatResponse:
        change = _Change.of(self._group_of(draft, request), draft)
        before = self._member_of(change, request, request.member_id or fresh_id)
        is_new = before.id not in change.members
        member = _updated(before, request, client)
        change.members[member.id] = member
        if is_new or member != before:
            draft.records.append(member.metadata_record(draft.group))
        resolved = self._resolve(change, member, now, visible)
        subscription_changed = is_new or not member.is_same_subscription(before) or resolved
        self._bump(change, subscription_changed or member.assignor != before.assignor)
        self._retarget(change, now)
        member = self._reconciled(change, member, request.topic_partitions, subscription_changed)
        known = change.group.members.get(member.id)
        if known is None or not member.is_same_assignment(known):
            draft.records.append(member.current_record(draft.group))
        self._watch(draft.group, member, now)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings["group.consumer.heartbeat.interval.ms"],
        )
        is_full = request.rebalance_timeout_ms != -1 and request.topic_partitions is not None
        if request.member_epoch == JOINING or is_full or _differ(before.held, member.held):
            response.assignment = Assignment(
                [TopicPartitions(t, sorted(member.held[t])) for t in sorted(member.held)]
            )
        return response

    def _group_of(self, draft: Draft, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            if (
                request.member_epoch == JOINING
                and request.member_id not in group.members
                and not group.static_member(request.instance_id)
                and len(group.members) >= self._settings["group.consumer.max.size"]
            ):
                raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, "The consumer group is full.")
            return group
        if request.member_epoch != JOINING:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"No consumer group {request.group_id}.")
        if isinstance(group, ClassicGroup):
            if group.members or group.expected:
                message = f"Group {request.group_id} is used by the classic protocol."
                raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, message)
            draft.records.append(record_of(group.id, None))
        return ConsumerGroup(request.group_id)

    def _member_of(
        self, change: _Change, request: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> ConsumerMember:
        """The sender as it is known, or as it begins."""
        group = change.group
        if request.instance_id is not None:
            holder = group.static_member(request.instance_id)
            if request.member_epoch == JOINING:
                if holder is None or holder.id == member_id:
                    return holder or ConsumerMember(member_id)
                return _successor(change, holder, member_id)
            _check_holder(holder, member_id, request.instance_id)
        member = group.members.get(member_id)
        if member is None:
            if request.member_epoch == JOINING:
                return ConsumerMember(member_id)
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"No member {member_id}.")
        _check_epoch(member, request)
        return member

    def _resolve(self, change: _Change, member: ConsumerMember, now: Now, visible: Visible) -> bool:
        """Find the topics that the member's pattern stands for; forget patterns of nobody."""
        group = change.group
        used = {m.regex for m in change.members.values() if m.regex}
        for regex in group.regexes.keys() - used:
            del change.regexes[regex]
            change.draft.records.append(regex_record(group.id, regex, None, now.wall_ms))
        if not member.regex:
            return False
        try:
            pattern = Pattern(member.regex)
        except PatternError as error:
            raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
        names = [topic.name for topic in self._topics if not topic.is_internal]
        found = frozenset(n for n in names if pattern.fullmatch(n) and visible(n))
        if change.regexes.get(member.regex) == found:
            return False
        change.regexes[member.regex] = found
        change.draft.records.append(regex_record(group.id, member.regex, found, now.wall_ms))
        return True

    def _bump(self, change: _Change, is_forced: bool) -> None:
        """A new group epoch, if members, subscriptions or topics have changed."""
        names = {name for m in change.members.values() for name in change.topics_of(m)}
        metadata_hash = hash_of(names, self._topics)
        if is_forced or metadata_hash != change.group.metadata_hash:
            change.epoch += 1
            change.draft.records.append(epoch_record(change.group.id, change.epoch, metadata_hash))

    def _retarget(self, change: _Change, now: Now) -> None:
        """A target for the group's epoch, if it has none yet."""
        if change.target_epoch >= change.epoch:
            return
        group, draft = change.group, change.draft
        ids = {name: topic.id for topic in self._topics for name in (topic.name,)}
        subscriptions = {
            m.id: frozenset(ids[name] for name in change.topics_of(m) if name in ids)
            for m in change.members.values()
        }
        wanted = {topic for topics in subscriptions.values() for topic in topics}
        partitions = {t.id: t.partitions for t in self._topics if t.id in wanted}
        name = group.preferred_assignor(change.members.values(), DEFAULT_ASSIGNOR)
        targets = ASSIGNORS[name](subscriptions, partitions, change.targets)
        for member_id, target in sorted(targets.items()):
            if change.targets.get(member_id) != target:
                draft.records.append(target_record(group.id, member_id, target))
        change.targets = targets
        change.target_epoch = change.epoch
        draft.records.append(target_epoch_record(group.id, change.epoch, now.wall_ms))

    def _reconciled(
        self,
        change: _Change,
        member: ConsumerMember,
        owned: Owned,
        subscription_changed: bool,
    ) -> ConsumerMember:
        names = change.topics_of(member)
        found = reconcile(
            member,
            change.targets.get(member.id, {}),
            change.target_epoch,
            owned,
            {topic.id for name in names if (topic := self._topics.get(name)) is not None},
            lambda topic, partition: change.group.is_unreleased(topic, partition, member.id),
            subscription_changed,
        )
        if found is None:
            message = "The member must abandon all its partitions and rejoin."
            raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)
        return found

    def _watch(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """Expect the next heartbeat, and the end of a revocation if there is one."""
        timeout: int = self._settings["group.consumer.session.timeout.ms"]
        self._timers.set(ConsumerSessionDeadline(group_id, member.id), now.steady_ms + timeout)
        deadline = RevocationDeadline(group_id, member.id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._timers.cancel(deadline)
        elif deadline not in self._timers:
            self._timers.set(deadline, now.steady_ms + max(0, member.rebalance_timeout_ms))

    # Leaving

    def _leave(
        self, draft: Draft, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> ConsumerGroupHeartbeatResponse:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"No consumer group {request.group_id}.")
        if request.instance_id is not None:
            _check_holder(
                group.static_member(request.instance_id), request.member_id, request.instance_id
            )
        member = group.members.get(request.member_id)
        if member is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"No member {request.member_id}.")
        if request.member_epoch == LEAVING_FOR_NOW:
            away = replace(
                member,
                epoch=LEAVING_FOR_NOW,
                previous_epoch=member.epoch,
                state=MemberState.STABLE,
                revoking={},
            )
            draft.records.append(away.current_record(group.id))
            self._timers.cancel(RevocationDeadline(group.id, member.id))
        else:
            self._remove(draft, group, member, now)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.id, member_epoch=request.member_epoch
        )

    def _remove(self, draft: Draft, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        """Take a member out; the next heartbeat of another one computes a new target."""
        self._timers.cancel(ConsumerSessionDeadline(group.id, member.id))
        self._timers.cancel(RevocationDeadline(group.id, member.id))
        draft.records.extend(group.member_tombstones(member.id))
        others = [other for other in group.members.values() if other.id != member.id]
        if member.regex in group.regexes and all(m.regex != member.regex for m in others):
            draft.records.append(regex_record(group.id, member.regex or "", None, now.wall_ms))
        names = {n for m in others for n in group.topics_of(m, group.regexes)}
        metadata_hash = hash_of(names, self._topics)
        draft.records.append(epoch_record(group.id, group.epoch + 1, metadata_hash))

    # Deadlines

    def session_ended(self, draft: Draft, member_id: str, now: Now) -> None:
        """A member wasn't heard of in time."""
        group = self._groups.get(draft.group)
        if isinstance(group, ConsumerGroup) and member_id in group.members:
            self._remove(draft, group, group.members[member_id], now)

    def revocation_ended(self, draft: Draft, member_id: str, now: Now) -> None:
        """A member kept partitions that others wait for."""
        group = self._groups.get(draft.group)
        if isinstance(group, ConsumerGroup) and member_id in group.members:
            member = group.members[member_id]
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._remove(draft, group, member, now)

    def loaded(self, groups: Iterable[ConsumerGroup], now: Now) -> None:
        """After a restart every member has its whole timeout to be heard of again."""
        for group in groups:
            for member in group.members.values():
                self._watch(group.id, member, now)


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """What can be refused without knowing the group."""
    epoch = request.member_epoch
    needs_id = version >= 1 or epoch > JOINING or epoch == LEAVING
    texts: Mapping[str, str | None] = {
        "MemberId": request.member_id if needs_id else None,
        "GroupId": request.group_id,
        "InstanceId": request.instance_id,
        "RackId": request.rack_id,
    }
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    problem = None
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be provided in the first request."
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "TopicPartitions must be empty when joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            problem = "SubscribedTopicNames or SubscribedTopicRegex must be set when joining."
    elif epoch == LEAVING_FOR_NOW and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch < LEAVING_FOR_NOW:
        problem = "MemberEpoch is invalid."
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        message = f"ServerAssignor {request.server_assignor} is not one of {', '.join(ASSIGNORS)}."
        raise Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_holder(holder: ConsumerMember | None, member_id: str, instance_id: str) -> None:
    if holder is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"No static member {instance_id}.")
    if holder.id != member_id:
        message = f"Static member {instance_id} was fenced by another one."
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, message)


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """The epoch must be the member's, or the one before if the reply with the newer was lost."""
    received = request.member_epoch
    if received in (JOINING, member.epoch):
        return
    owned = request.topic_partitions
    if received == member.previous_epoch and received < member.epoch and owned is not None:
        held = member.held
        if all(p in held.get(t.topic_id, ()) for t in owned for p in t.partitions):
            return
    message = f"The member's epoch is {member.epoch}, not {received}: it must rejoin."
    raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _successor(change: _Change, holder: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member that left for now is back under a new id and inherits what it had."""
    if holder.epoch != LEAVING_FOR_NOW:
        message = f"Static member {holder.instance_id} is in use by {holder.id}."
        raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    group, draft = change.group, change.draft
    member = replace(holder, id=member_id, epoch=0, previous_epoch=0)
    draft.records.extend(group.member_tombstones(holder.id))
    draft.records.append(member.metadata_record(group.id))
    del change.members[holder.id]
    change.members[member_id] = member
    target = change.targets.pop(holder.id, {})
    change.targets[member_id] = target
    draft.records.append(target_record(group.id, member_id, target))
    return member


def _updated(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerMember:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client=client,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=request.server_assignor or member.assignor,
    )


def _differ(before: Held, after: Held) -> bool:
    def places(held: Held) -> set[tuple[bytes, int]]:
        return {(topic, p) for topic, partitions in held.items() for p in partitions}

    return places(before) != places(after)
