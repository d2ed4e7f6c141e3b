"""The group coordinator: groups of both protocols and their offsets, without IO and without a clock.

A request leads to a decision. What survives a restart changes in `replay` and `replay_marker` only,
which load a log and follow a decision alike.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

from dualwrite.broker.clock import Now
from dualwrite.broker.groups import views
from dualwrite.broker.groups.classic import ClassicGroup, ClassicState, record_of
from dualwrite.broker.groups.classic_requests import (
    ClassicRequests,
    Groups,
    JoinDeadline,
    SessionDeadline,
    SyncDeadline,
)
from dualwrite.broker.groups.commits import (
    CommitRequest,
    CommitTopic,
    commit_rule,
    offset_record,
    offset_tombstone,
)
from dualwrite.broker.groups.consumer import ConsumerGroup
from dualwrite.broker.groups.consumer_requests import (
    ConsumerRequests,
    ConsumerSessionDeadline,
    RevocationDeadline,
)
from dualwrite.broker.groups.decision import (
    Client,
    Draft,
    GroupDecision,
    Token,
    answer,
)
from dualwrite.broker.groups.expiry import expired_places
from dualwrite.broker.groups.offsets import CommittedOffset, Offsets
from dualwrite.broker.groups.records import UNKNOWN_MS, Kind, Parsed, parse
from dualwrite.broker.groups.timers import Timers
from dualwrite.broker.settings import Settings
from dualwrite.broker.topics import Topic, Topics
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from dualwrite.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from dualwrite.wire.messages.describe_groups import DescribedGroup
from dualwrite.wire.messages.heartbeat import HeartbeatRequest
from dualwrite.wire.messages.join_group import JoinGroupRequest
from dualwrite.wire.messages.leave_group import LeaveGroupRequest
from dualwrite.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from dualwrite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from dualwrite.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from dualwrite.wire.messages.sync_group import SyncGroupRequest
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_EXPIRY: Final = "expiry"
_OFFSET_KINDS: Final = frozenset({Kind.LEGACY_OFFSET, Kind.OFFSET})


class GroupCoordinator:
    """All groups of the broker."""

    def __init__(self, settings: Settings, topics: Topics) -> None:
        self._settings = settings
        self._topics = topics
        self._groups: Groups = {}
        self._offsets = Offsets()
        self._timers = Timers()
        self._classic = ClassicRequests(settings, self._groups, self._timers)
        self._consumer = ConsumerRequests(settings, topics, self._groups, self._timers)

    # Membership

    def join_group(
        self,
        request: JoinGroupRequest,
        version: int,
        token: Token,
        now: Now,
        client: Client,
        fresh_id: str,
    ) -> GroupDecision:
        """JoinGroup; answered when the generation begins."""
        draft = Draft(request.group_id)
        self._classic.join(draft, request, version, token, now, client, fresh_id)
        return self._finish(draft)

    def sync_group(self, request: SyncGroupRequest, token: Token, now: Now) -> GroupDecision:
        """SyncGroup; answered when the leader's assignment is there."""
        draft = Draft(request.group_id)
        self._classic.sync(draft, request, token, now)
        return self._finish(draft)

    def heartbeat(self, request: HeartbeatRequest, token: Token, now: Now) -> GroupDecision:
        """Heartbeat of a classic member."""
        draft = Draft(request.group_id)
        self._classic.heartbeat(draft, request, token, now)
        return self._finish(draft)

    def leave_group(
        self, request: LeaveGroupRequest, version: int, token: Token, now: Now
    ) -> GroupDecision:
        """LeaveGroup of one or many classic members."""
        draft = Draft(request.group_id)
        self._classic.leave(draft, request, version, token, now)
        return self._finish(draft)

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        token: Token,
        now: Now,
        client: Client,
        fresh_id: str,
        visible: Callable[[str], bool],
    ) -> GroupDecision:
        """ConsumerGroupHeartbeat; `visible` says which topics a pattern of the sender may find."""
        draft = Draft(request.group_id)
        self._consumer.heartbeat(draft, request, version, token, now, client, fresh_id, visible)
        return self._finish(draft)

    def _finish(self, draft: Draft) -> GroupDecision:
        """Forget a group that only a refused request has brought into being."""
        group = self._groups.get(draft.group)
        if (
            isinstance(group, ClassicGroup)
            and group.in_state(ClassicState.EMPTY)
            and not (group.members or group.expected or group.generation)
            and not self._offsets.has_any(group.id)
        ):
            del self._groups[draft.group]
        return draft.decision()

    # Offsets

    def offset_commit(
        self, request: OffsetCommitRequest, version: int, token: Token, now: Now
    ) -> GroupDecision:
        """OffsetCommit. A commit of a classic member shows that it lives."""
        draft = Draft(request.group_id)
        response = OffsetCommitResponse()
        for asked, errors in self._commit(draft, request, version, now, request.retention_time_ms):
            results = [OffsetCommitResponsePartition(index, error) for index, error in errors]
            response.topics.append(OffsetCommitResponseTopic(asked.name, asked.topic_id, results))
        if draft.records:
            self._classic.heard_of(draft.group, request.member_id, now)
        draft.reply(token, response)
        return draft.decision()

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, version: int, token: Token, now: Now
    ) -> GroupDecision:
        """TxnOffsetCommit; the offsets are pending until the transaction ends (KIP-447)."""
        draft = Draft(request.group_id)
        response = TxnOffsetCommitResponse()
        for asked, errors in self._commit(draft, request, version, now):
            results = [TxnOffsetCommitResponsePartition(index, error) for index, error in errors]
            response.topics.append(
                TxnOffsetCommitResponseTopic(asked.name, asked.topic_id, results)
            )
        draft.reply(token, response)
        return draft.decision((request.producer_id, request.producer_epoch))

    def _commit(
        self,
        draft: Draft,
        request: CommitRequest,
        version: int,
        now: Now,
        retention_ms: int = UNKNOWN_MS,
    ) -> Iterator[tuple[CommitTopic, list[tuple[int, ErrorCode]]]]:
        """Draft what may be committed; gives each topic with its partitions and their errors."""
        rule = commit_rule(self._groups.get(draft.group), request, version)
        for asked in request.topics:
            topic = self._topic(asked.name, asked.topic_id)
            errors = []
            for partition in asked.partitions:
                error = self._commit_error(topic, asked.topic_id, partition)
                if topic is not None:
                    error = error or rule(topic, partition.partition_index)
                    if not error:
                        draft.records.append(
                            offset_record(draft.group, topic, partition, now, retention_ms)
                        )
                errors.append((partition.partition_index, error))
            yield asked, errors

    def _topic(self, name: str, topic_id: bytes) -> Topic | None:
        return self._topics.get(name) if name else self._topics.by_id(topic_id)

    def _commit_error(self, topic: Topic | None, topic_id: bytes, partition: Any) -> ErrorCode:
        if topic is None:
            is_by_id = any(topic_id)
            return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not 0 <= partition.partition_index < topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata or ""
        if len(metadata.encode()) > self._settings["offset.metadata.max.bytes"]:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def offset_fetch(
        self, request: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """The offsets of one group; `topics` None asks for all. An unknown group has none."""
        group = self._groups.get(request.group_id)
        error = views.fetch_error(group, request.member_id, request.member_epoch)
        if error:
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)
        return views.fetched(self._offsets, self._topics, request, require_stable)

    def offset_delete(self, request: OffsetDeleteRequest, token: Token, now: Now) -> GroupDecision:
        """OffsetDelete: not of topics in use (KIP-496), nor under an open transaction."""
        group = self._groups.get(request.group_id)
        if group is None:
            refusal = OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            return answer(request.group_id, token, refusal)
        if views.is_opaque(group):
            refusal = OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
            return answer(request.group_id, token, refusal)
        subscribed = views.subscribed_topics(group)
        draft = Draft(request.group_id)
        response = OffsetDeleteResponse()
        committed = self._offsets.committed(draft.group)
        for asked in request.topics:
            results = []
            for partition in asked.partitions:
                place = (asked.name, partition.partition_index)
                error = ErrorCode.NONE
                if self._is_missing(*place):
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif subscribed is None or asked.name in subscribed:
                    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._offsets.is_pending(draft.group, place):
                    error = ErrorCode.UNSTABLE_OFFSET_COMMIT
                elif place in committed:
                    draft.records.append(offset_tombstone(draft.group, *place))
                results.append(OffsetDeleteResponsePartition(partition.partition_index, error))
            response.topics.append(OffsetDeleteResponseTopic(asked.name, results))
        draft.reply(token, response)
        return draft.decision()

    def _is_missing(self, name: str, partition: int) -> bool:
        topic = self._topics.get(name)
        return topic is None or not 0 <= partition < topic.partitions

    # Operators

    def delete_group(self, group_id: str, now: Now) -> tuple[ErrorCode, GroupDecision]:
        """DeleteGroups, for one group: only without members and without an open transaction."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, GroupDecision(group_id)
        is_empty = isinstance(group, ConsumerGroup) or group.in_state(ClassicState.EMPTY)
        if group.members or not is_empty or self._offsets.has_pending(group_id):
            return ErrorCode.NON_EMPTY_GROUP, GroupDecision(group_id)
        draft = Draft(group_id)
        self._delete(draft, group)
        return ErrorCode.NONE, draft.decision()

    def _delete(self, draft: Draft, group: ClassicGroup | ConsumerGroup) -> None:
        for topic, partition in sorted(self._offsets.committed(group.id)):
            draft.records.append(offset_tombstone(group.id, topic, partition))
        self._delete_bare(draft, group)

    def _delete_bare(self, draft: Draft, group: ClassicGroup | ConsumerGroup) -> None:
        if isinstance(group, ConsumerGroup):
            draft.records.extend(group.tombstones())
        else:
            draft.records.append(record_of(group.id, None))

    def committed_offsets(self) -> Iterator[tuple[str, tuple[str, int], int]]:
        """Every committed offset as (group, (topic, partition), offset)."""
        return self._offsets.all_committed()

    def list_groups(self, request: ListGroupsRequest) -> list[ListedGroup]:
        """All groups, or those in the given states and of the given types."""
        return views.listed(self._groups.values(), request)

    def describe_group(self, group_id: str, version: int) -> DescribedGroup:
        """A classic group as DescribeGroups shows it."""
        return views.described(group_id, self._groups.get(group_id), version)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """A group of the new protocol as ConsumerGroupDescribe shows it."""
        return views.described_consumer(group_id, self._groups.get(group_id), self._topics)

    def topic_deleted(self, name: str, now: Now) -> list[GroupDecision]:
        """Forget the offsets of a topic; a new one of the same name begins anew."""
        return [
            GroupDecision(group, tuple(offset_tombstone(group, *place) for place in places))
            for group, places in self._offsets.groups_at(name)
        ]

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, on the steady clock."""
        return self._timers.next_ms()

    def tick(self, now: Now) -> list[GroupDecision]:
        """Handle one deadline that has passed, if there is one, and what follows from it.

        Decisions must be settled before the next call, so a tick handles one deadline; the node
        calls again while `next_deadline_ms` lies in the past.
        """
        name = self._timers.pop_due(now.steady_ms)
        if name is None:
            return []
        if name == _EXPIRY:
            return self._expire(now)
        decision = self._deadline(name, now)
        return [decision] if decision.records or decision.replies else []

    def _deadline(self, name: Hashable, now: Now) -> GroupDecision:
        match name:
            case SessionDeadline(group, member):
                draft = Draft(group)
                self._classic.session_ended(draft, member, now)
            case JoinDeadline(group):
                draft = Draft(group)
                self._classic.join_ended(draft, now)
            case SyncDeadline(group):
                draft = Draft(group)
                self._classic.sync_ended(draft, now)
            case ConsumerSessionDeadline(group, member):
                draft = Draft(group)
                self._consumer.session_ended(draft, member, now)
            case RevocationDeadline(group, member):
                draft = Draft(group)
                self._consumer.revocation_ended(draft, member, now)
            case _:
                raise ValueError(f"not a deadline: {name!r}")
        return self._finish(draft)

    def _expire(self, now: Now) -> list[GroupDecision]:
        """Drop offsets nobody has used for long, and groups that then have nothing left."""
        self._plan_expiry(now)
        retention = self._settings["offsets.retention.minutes"] * 60_000
        decisions = []
        for group in list(self._groups.values()):
            places = expired_places(group, self._offsets, retention, now)
            draft = Draft(group.id)
            draft.records.extend(offset_tombstone(group.id, *place) for place in places)
            left = len(self._offsets.committed(group.id)) - len(places)
            if left == 0 and views.is_removable(group) and not self._offsets.has_pending(group.id):
                self._delete_bare(draft, group)
            if draft.records:
                decisions.append(draft.decision())
        return decisions

    def _plan_expiry(self, now: Now) -> None:
        interval: int = self._settings["offsets.retention.check.interval.ms"]
        self._timers.set(_EXPIRY, now.steady_ms + interval)

    # What survives a restart

    def replay(
        self,
        partition: int,
        key: bytes,
        value: bytes | None,
        offset: int,
        now: Now,
        producer_id: int = -1,
    ) -> None:
        """Apply one record of a partition of `__consumer_offsets`."""
        record = parse(key, value)
        if record is None:
            return
        group_id: str = record.key.group
        if record.kind in _OFFSET_KINDS:
            place = (record.key.topic, record.key.partition)
            committed = record.value and CommittedOffset.of(record.value, offset, now)
            writer = None if producer_id < 0 else (partition, producer_id)
            self._offsets.replay(group_id, place, committed, writer)
            if committed is not None and group_id not in self._groups:
                self._groups[group_id] = ClassicGroup(group_id)
        elif record.kind is Kind.CLASSIC_GROUP:
            self._replay_classic(group_id, record, now)
        else:
            self._replay_consumer(group_id, record)

    def _replay_classic(self, group_id: str, record: Parsed, now: Now) -> None:
        group = self._groups.get(group_id)
        if record.value is None:
            if isinstance(group, ClassicGroup):
                del self._groups[group_id]
            return
        if not isinstance(group, ClassicGroup):
            group = self._groups[group_id] = ClassicGroup(group_id)
        group.install(record.value, now)

    def _replay_consumer(self, group_id: str, record: Parsed) -> None:
        group = self._groups.get(group_id)
        if record.value is None:
            if isinstance(group, ConsumerGroup):
                group.replay(record)
                if record.kind is Kind.CONSUMER_GROUP:
                    del self._groups[group_id]
            return
        if not isinstance(group, ConsumerGroup):
            # A group that so far was known by its offsets only, or an empty classic one.
            group = self._groups[group_id] = ConsumerGroup(group_id)
        group.replay(record)

    def replay_marker(self, partition: int, producer_id: int, commit: bool) -> None:
        """Apply the end of a transaction in a partition of `__consumer_offsets`."""
        self._offsets.replay_marker((partition, producer_id), commit)

    def loaded(self, now: Now) -> None:
        """Start the timeouts of everything that was replayed."""
        groups = list(self._groups.values())
        self._classic.loaded([g for g in groups if isinstance(g, ClassicGroup)], now)
        self._consumer.loaded([g for g in groups if isinstance(g, ConsumerGroup)], now)
        self._plan_expiry(now)
