"""A consumer group of the new protocol (KIP-848): members, target and current assignments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from hashlib import blake2b
from typing import Any

from dualwrite.broker.groups.decision import NOBODY, Client, GroupRecord
from dualwrite.broker.groups.records import (
    ConsumerCurrentValue,
    ConsumerGroupValue,
    ConsumerMemberValue,
    ConsumerRegexValue,
    ConsumerTargetMemberValue,
    ConsumerTargetValue,
    CurrentPartitions,
    GroupKey,
    Kind,
    MemberKey,
    Parsed,
    RegexKey,
    TargetPartitions,
    make,
)
from dualwrite.broker.topics import Topics

JOINING = 0
LEAVING = -1
LEAVING_FOR_NOW = -2  # a static member that will be back

Target = dict[bytes, frozenset[int]]
"""By topic id, the partitions that a member is to have."""
Held = dict[bytes, dict[int, int]]
"""By topic id and partition, the epoch in which a member got it."""


class MemberState(IntEnum):
    """How far a member is on its way to its target, by Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `held` is what it may read, `revoking` what it must give back first."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client: Client = NOBODY
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    held: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)

    def metadata_record(self, group: str) -> GroupRecord:
        value = ConsumerMemberValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client.id,
            client_host=self.client.host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
        )
        return make(Kind.CONSUMER_MEMBER, MemberKey(group, self.id), value)

    def current_record(self, group: str) -> GroupRecord:
        value = ConsumerCurrentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_current(self.held),
            partitions_pending_revocation=_current(self.revoking),
        )
        return make(Kind.CONSUMER_CURRENT, MemberKey(group, self.id), value)

    def is_same_subscription(self, other: "ConsumerMember") -> bool:
        return self.topics == other.topics and self.regex == other.regex

    def is_same_assignment(self, other: "ConsumerMember") -> bool:
        mine = (self.epoch, self.previous_epoch, self.state, self.held, self.revoking)
        return mine == (
            other.epoch,
            other.previous_epoch,
            other.state,
            other.held,
            other.revoking,
        )

    def moved_to(self, epoch: int, **changes: Any) -> "ConsumerMember":
        """A copy in an epoch; the epoch before is remembered, its reply may have been lost."""
        previous = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(self, epoch=epoch, previous_epoch=previous, **changes)


def _current(held: Held) -> list[CurrentPartitions]:
    return [
        CurrentPartitions(topic, sorted(held[topic]), [held[topic][p] for p in sorted(held[topic])])
        for topic in sorted(held)
        if held[topic]
    ]


def _held(stored: Iterable[CurrentPartitions], epoch: int) -> Held:
    held: Held = {}
    for topic in stored:
        epochs = topic.assignment_epochs or [epoch] * len(topic.partitions)
        held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return held


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """One group; only `replay` changes it."""

    id: str
    epoch: int = 0
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target_epoch: int = 0
    targets: dict[str, Target] = field(default_factory=dict)
    regexes: dict[str, frozenset[str]] = field(default_factory=dict)
    owners: dict[tuple[bytes, int], str] = field(default_factory=dict)

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if any(not self.is_reconciled(member) for member in self.members.values()):
            return "Reconciling"
        return "Stable"

    def is_reconciled(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.target_epoch

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def is_unreleased(self, topic_id: bytes, partition: int, member_id: str) -> bool:
        """Whether another member still has a partition."""
        return self.owners.get((topic_id, partition), member_id) != member_id

    def topics_of(self, member: ConsumerMember, resolved: Mapping[str, frozenset[str]]) -> set[str]:
        """The topics that a member subscribes to, by name and by pattern."""
        return set(member.topics) | resolved.get(member.regex or "", frozenset())

    def preferred_assignor(self, members: Iterable[ConsumerMember], default: str) -> str:
        """What most members ask for."""
        votes: dict[str, int] = {}
        for member in members:
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name], default=default)

    def tombstones(self) -> Iterator[GroupRecord]:
        """Records that delete the group."""
        for member_id in self.members:
            yield from self.member_tombstones(member_id)
        for regex in self.regexes:
            yield make(Kind.CONSUMER_REGEX, RegexKey(self.id, regex), None)
        yield make(Kind.CONSUMER_TARGET, GroupKey(self.id), None)
        yield make(Kind.CONSUMER_GROUP, GroupKey(self.id), None)

    def member_tombstones(self, member_id: str) -> Iterator[GroupRecord]:
        """Records that delete a member."""
        key = MemberKey(self.id, member_id)
        yield make(Kind.CONSUMER_CURRENT, key, None)
        yield make(Kind.CONSUMER_TARGET_MEMBER, key, None)
        yield make(Kind.CONSUMER_MEMBER, key, None)

    def replay(self, record: Parsed) -> None:
        """Apply one record about this group."""
        key, value = record.key, record.value
        match record.kind:
            case Kind.CONSUMER_GROUP if value is not None:
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
            case Kind.CONSUMER_MEMBER:
                self._replay_member(key.member, value)
            case Kind.CONSUMER_TARGET:
                self.target_epoch = 0 if value is None else value.assignment_epoch
            case Kind.CONSUMER_TARGET_MEMBER:
                if value is None:
                    self.targets.pop(key.member, None)
                else:
                    self.targets[key.member] = {
                        topic.topic_id: frozenset(topic.partitions)
                        for topic in value.topic_partitions
                    }
            case Kind.CONSUMER_CURRENT:
                self._replay_current(key.member, value)
            case Kind.CONSUMER_REGEX:
                if value is None:
                    self.regexes.pop(key.regex, None)
                else:
                    self.regexes[key.regex] = frozenset(value.topics)

    def _replay_member(self, member_id: str, value: ConsumerMemberValue | None) -> None:
        if value is None:
            self._disown(member_id)
            self.members.pop(member_id, None)
            return
        self.members[member_id] = replace(
            self.members.get(member_id) or ConsumerMember(member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client=Client(value.client_id, value.client_host),
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
        )

    def _replay_current(self, member_id: str, value: ConsumerCurrentValue | None) -> None:
        self._disown(member_id)
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self.members[member_id] = replace(
                    member, epoch=LEAVING, previous_epoch=LEAVING, held={}, revoking={}
                )
            return
        known = value.state in MemberState._value2member_map_
        state = MemberState(value.state) if known else MemberState.UNKNOWN
        # In a compacted log the current assignment may come before the subscription.
        member = self.members[member_id] = replace(
            member or ConsumerMember(member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=state,
            held=_held(value.assigned_partitions, value.member_epoch),
            revoking=_held(value.partitions_pending_revocation, value.member_epoch),
        )
        for held in (member.held, member.revoking):
            for topic, partitions in held.items():
                for partition in partitions:
                    self.owners[topic, partition] = member_id

    def _disown(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for held in (member.held, member.revoking):
            for topic, partitions in held.items():
                for partition in partitions:
                    if self.owners.get((topic, partition)) == member_id:
                        del self.owners[topic, partition]


def epoch_record(group: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """The record of a group's epoch."""
    return make(Kind.CONSUMER_GROUP, GroupKey(group), ConsumerGroupValue(epoch, metadata_hash))


def target_epoch_record(group: str, epoch: int, timestamp: int) -> GroupRecord:
    """The record that a group's targets are those of an epoch."""
    return make(Kind.CONSUMER_TARGET, GroupKey(group), ConsumerTargetValue(epoch, timestamp))


def target_record(group: str, member_id: str, target: Target | None) -> GroupRecord:
    """The record of one member's target, or of its end."""
    value = None
    if target is not None:
        partitions = [TargetPartitions(topic, sorted(target[topic])) for topic in sorted(target)]
        value = ConsumerTargetMemberValue(partitions)
    return make(Kind.CONSUMER_TARGET_MEMBER, MemberKey(group, member_id), value)


def regex_record(group: str, regex: str, topics: frozenset[str] | None, now_ms: int) -> GroupRecord:
    """The record of the topics that a pattern stands for, or of its end."""
    value = None if topics is None else ConsumerRegexValue(sorted(topics), 0, now_ms)
    return make(Kind.CONSUMER_REGEX, RegexKey(group, regex), value)


def hash_of(names: Iterable[str], topics: Topics) -> int:
    """A number that changes when a subscribed topic comes, goes or grows; 0 for no topics."""
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            digest.update(topic.id + topic.partitions.to_bytes(4, "big"))
            is_empty = False
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)
