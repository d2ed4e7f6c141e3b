"""The records of `__consumer_offsets` in Kafka's formats: keys by type, values by version.

All versions are read; the newest is written. Two private tags, which other readers skip, keep what
Kafka's formats have no place for: times on the steady clock, and whether a generation still waits for
its leader's assignment.
"""

from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from dualwrite.broker.groups.decision import GroupRecord
from dualwrite.wire.codec import decode, encode
from dualwrite.wire.message import (
    INT32,
    STRING,
    WireError,
    array,
    binary,
    boolean,
    int8,
    int32,
    int64,
    schema_of,
    stored,
    string,
    struct,
    uuid,
)

_INT16 = Struct(">h")
_STEADY_TAG = 10_000
_PRIVATE_TAG = 10_001
UNKNOWN_MS = -1


class Kind(IntEnum):
    """The first number of a key: what the record is about."""

    LEGACY_OFFSET = 0
    OFFSET = 1
    CLASSIC_GROUP = 2
    CONSUMER_GROUP = 3
    CONSUMER_TOPICS = 4  # written by Kafka 4.0 only; later replaced by a hash in CONSUMER_GROUP
    CONSUMER_MEMBER = 5
    CONSUMER_TARGET = 6
    CONSUMER_TARGET_MEMBER = 7
    CONSUMER_CURRENT = 8
    CONSUMER_REGEX = 16


@stored("0")
class OffsetKey:
    group: str = string()
    topic: str = string()
    partition: int = int32()


@stored("0")
class GroupKey:
    group: str = string()


@stored("0")
class MemberKey:
    group: str = string()
    member: str = string()


@stored("0")
class RegexKey:
    group: str = string()
    regex: str = string()


@stored("0-4", flexible="4+")
class OffsetValue:
    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=UNKNOWN_MS, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)
    steady_ms: int = int64("4+", tag=_STEADY_TAG, default=UNKNOWN_MS, ignorable=True)
    expires_steady_ms: int = int64("4+", tag=_PRIVATE_TAG, default=UNKNOWN_MS, ignorable=True)


@struct
class StoredMember:
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


@stored("0-4", flexible="4+")
class ClassicGroupValue:
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+", default=None)
    leader: str | None = string(nullable="0+", default=None)
    current_state_timestamp: int = int64("2+", default=UNKNOWN_MS, ignorable=True)
    members: list[StoredMember] = array(StoredMember)
    steady_ms: int = int64("4+", tag=_STEADY_TAG, default=UNKNOWN_MS, ignorable=True)
    awaits_assignment: bool = boolean("4+", tag=_PRIVATE_TAG, ignorable=True)


@stored("0", flexible="0+")
class ConsumerGroupValue:
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


@stored("0", flexible="0+")
class ConsumerMemberValue:
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)


@stored("0", flexible="0+")
class ConsumerTargetValue:
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


@struct
class TargetPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)


@stored("0", flexible="0+")
class ConsumerTargetMemberValue:
    topic_partitions: list[TargetPartitions] = array(TargetPartitions)


@struct
class CurrentPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array(INT32)
    assignment_epochs: list[int] | None = array(INT32, nullable="0+", default=None, tag=0)


@stored("0", flexible="0+")
class ConsumerCurrentValue:
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[CurrentPartitions] = array(CurrentPartitions)
    partitions_pending_revocation: list[CurrentPartitions] = array(CurrentPartitions)


@stored("0", flexible="0+")
class ConsumerRegexValue:
    topics: list[str] = array(STRING)
    version: int = int64()
    timestamp: int = int64()


_FORMATS: dict[Kind, tuple[type[Any], type[Any]]] = {
    Kind.LEGACY_OFFSET: (OffsetKey, OffsetValue),
    Kind.OFFSET: (OffsetKey, OffsetValue),
    Kind.CLASSIC_GROUP: (GroupKey, ClassicGroupValue),
    Kind.CONSUMER_GROUP: (GroupKey, ConsumerGroupValue),
    Kind.CONSUMER_MEMBER: (MemberKey, ConsumerMemberValue),
    Kind.CONSUMER_TARGET: (GroupKey, ConsumerTargetValue),
    Kind.CONSUMER_TARGET_MEMBER: (MemberKey, ConsumerTargetMemberValue),
    Kind.CONSUMER_CURRENT: (MemberKey, ConsumerCurrentValue),
    Kind.CONSUMER_REGEX: (RegexKey, ConsumerRegexValue),
}


class Parsed(NamedTuple):
    """A record that was understood."""

    kind: Kind
    key: Any
    value: Any  # None: the key is deleted


def make(kind: Kind, key: Any, value: Any) -> GroupRecord:
    """A record in the newest version of its format."""
    data = _INT16.pack(kind) + encode(key, 0)
    if value is None:
        return GroupRecord(data, None)
    version = schema_of(type(value)).versions.last
    return GroupRecord(data, _INT16.pack(version) + encode(value, version))


def parse(key: bytes, value: bytes | None) -> Parsed | None:
    """Read a record; None for kinds of record that this broker has no use for."""
    if len(key) < _INT16.size:
        raise WireError("a group record without a key")
    number: int = _INT16.unpack_from(key)[0]
    try:
        kind = Kind(number)
        key_class, value_class = _FORMATS[kind]
    except (ValueError, KeyError):
        return None
    parsed_key = decode(key_class, key, 0, _INT16.size)
    if value is None:
        return Parsed(kind, parsed_key, None)
    if len(value) < _INT16.size:
        raise WireError("a group record without a version")
    version: int = _INT16.unpack_from(value)[0]
    return Parsed(kind, parsed_key, decode(value_class, value, version, _INT16.size))
