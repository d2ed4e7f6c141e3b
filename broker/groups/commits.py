"""OffsetCommit and TxnOffsetCommit: who may commit for a group, and the records of a commit."""

from collections.abc import Callable
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.classic import ClassicGroup, ClassicState
from dualwrite.broker.groups.consumer import ConsumerGroup, ConsumerMember
from dualwrite.broker.groups.decision import GroupRecord
from dualwrite.broker.groups.records import UNKNOWN_MS, Kind, OffsetKey, OffsetValue, make
from dualwrite.broker.topics import Topic
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

Group = ClassicGroup | ConsumerGroup | None
CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest
CommitTopic = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic
CommitPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
Rule = Callable[[Topic, int], ErrorCode]
"""What becomes of a commit, by topic and partition."""

_OFFSET_COMMIT_NEW_ERRORS: Final = 9
_TXN_COMMIT_NEW_ERRORS: Final = 6


def commit_rule(group: Group, request: CommitRequest, version: int) -> Rule:
    """Whether the sender may commit; the answer can differ by partition in a KIP-848 group."""
    if isinstance(group, ConsumerGroup):
        return _consumer_rule(group, request, version)
    error = _classic_error(group, request, version)
    return lambda topic, partition: error


def _names_nobody(request: CommitRequest) -> bool:
    return (
        request.generation_id_or_member_epoch < 0
        and not request.member_id
        and request.group_instance_id is None
    )


def _knows_new_errors(request: CommitRequest, version: int) -> bool:
    if isinstance(request, TxnOffsetCommitRequest):
        return version >= _TXN_COMMIT_NEW_ERRORS
    return version >= _OFFSET_COMMIT_NEW_ERRORS


def _classic_error(group: ClassicGroup | None, request: CommitRequest, version: int) -> ErrorCode:
    generation = request.generation_id_or_member_epoch
    is_transactional = isinstance(request, TxnOffsetCommitRequest)
    if group is None:
        if generation < 0:
            return ErrorCode.NONE  # a group without members, for its offsets only
        if _knows_new_errors(request, version):
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.in_state(ClassicState.EMPTY):
        return ErrorCode.NONE
    if _names_nobody(request):
        # A transactional commit from before KIP-447 has nothing to be checked by.
        return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.identity_error(request.member_id, request.group_instance_id)
    if error:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if not is_transactional and group.in_state(ClassicState.COMPLETING_REBALANCE):
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _consumer_rule(group: ConsumerGroup, request: CommitRequest, version: int) -> Rule:
    epoch = request.generation_id_or_member_epoch
    is_transactional = isinstance(request, TxnOffsetCommitRequest)
    stale = ErrorCode.STALE_MEMBER_EPOCH
    if is_transactional and not _knows_new_errors(request, version):
        stale = ErrorCode.ILLEGAL_GENERATION

    def always(error: ErrorCode) -> Rule:
        return lambda topic, partition: error

    if epoch < 0 and not group.members:
        return always(ErrorCode.NONE)
    if is_transactional and _names_nobody(request):
        return always(ErrorCode.NONE)
    member = group.members.get(request.member_id)
    if member is None:
        return always(ErrorCode.UNKNOWN_MEMBER_ID)
    if not is_transactional and version < _OFFSET_COMMIT_NEW_ERRORS:
        return always(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.epoch:
        return always(ErrorCode.NONE)
    if epoch > member.epoch:
        return always(stale)
    return _older_epoch_rule(member, epoch, stale)


def _older_epoch_rule(member: ConsumerMember, epoch: int, stale: ErrorCode) -> Rule:
    """A member may be an epoch behind for partitions that it had in that epoch already."""

    def rule(topic: Topic, partition: int) -> ErrorCode:
        since = member.held.get(topic.id, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic.id, {}).get(partition)
        return ErrorCode.NONE if since is not None and since <= epoch else stale

    return rule


def offset_record(
    group: str, topic: Topic, partition: CommitPartition, now: Now, retention_ms: int = UNKNOWN_MS
) -> GroupRecord:
    """The record that commits one offset."""
    expires = UNKNOWN_MS if retention_ms < 0 else now.steady_ms + retention_ms
    value = OffsetValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now.wall_ms,
        topic_id=topic.id,
        steady_ms=now.steady_ms,
        expires_steady_ms=expires,
    )
    return make(Kind.OFFSET, OffsetKey(group, topic.name, partition.partition_index), value)


def offset_tombstone(group: str, topic: str, partition: int) -> GroupRecord:
    """The record that deletes one offset."""
    return make(Kind.OFFSET, OffsetKey(group, topic, partition), None)
