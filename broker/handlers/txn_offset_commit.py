"""TxnOffsetCommit (28), v0-6.

The offsets are pending until the transaction ends. The transaction must hold the group's partition of
__consumer_offsets: up to v4 that is verified, from v5 it is added (KIP-890). From v3 the group member is
checked (KIP-447), from v6 topics are named by id and an unknown group or a stale epoch has its own
code. Needs the right to write the transactional id and to read the group and each topic.
"""

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.transactions.dialect import dialect, is_transaction_v2
from dualwrite.broker.transactions.state import Pair
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 6), request=TxnOffsetCommitRequest)
def txn_offset_commit(
    node: "Node", call: "Call[TxnOffsetCommitRequest]"
) -> TxnOffsetCommitResponse | None:
    request = call.request
    error = _request_error(node, call)
    if error:
        return _response(request, error)
    readable = [_may_read(node, call, topic) for topic in request.topics]
    allowed = list(compress(request.topics, readable))
    if allowed:
        error = _join_transaction(node, call)
        if error:
            return _response(request, dialect(error, ApiKey.TXN_OFFSET_COMMIT, call.version))
    decision = node.groups.txn_offset_commit(
        replace(request, topics=allowed), call.version, call, call.now
    )
    response: TxnOffsetCommitResponse = decision.replies[0][1]
    results = iter(response.topics)
    response.topics = [
        next(results) if may_read else _refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for topic, may_read in zip(request.topics, readable, strict=True)
    ]
    error = node.settle(decision, call.now)
    if error:
        return _response(request, dialect(error, ApiKey.TXN_OFFSET_COMMIT, call.version))
    return None


def _request_error(node: "Node", call: "Call[TxnOffsetCommitRequest]") -> ErrorCode:
    request = call.request
    if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not call.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    return node.group_error(request.group_id)


def _join_transaction(node: "Node", call: "Call[TxnOffsetCommitRequest]") -> ErrorCode:
    """Ask the transaction coordinator, as a transactional Produce does."""
    request = call.request
    name = request.transactional_id
    pair = Pair(request.producer_id, request.producer_epoch)
    partition = node.offsets_partition(request.group_id)
    error = node.transaction_error(name, begins=True)
    if error:
        return error
    if not is_transaction_v2(ApiKey.TXN_OFFSET_COMMIT, call.version):
        return node.transactions.verify(name, pair, [partition]).error_for(partition)
    decision = node.transactions.add_partitions(name, pair, [partition], tv2=True, now=call.now)
    node.execute(decision, call.now)
    return decision.error


def _may_read(
    node: "Node", call: "Call[TxnOffsetCommitRequest]", topic: TxnOffsetCommitRequestTopic
) -> bool:
    name = node.topics.name_of(topic.name, topic.topic_id)
    # Without a name there is nothing to ask about; the answer is UNKNOWN_TOPIC_ID.
    return name is None or call.may(Operation.READ, ResourceType.TOPIC, name)


def _response(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=[_refused(topic, error) for topic in request.topics])


def _refused(topic: TxnOffsetCommitRequestTopic, error: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        topic.name,
        topic.topic_id,
        [TxnOffsetCommitResponsePartition(p.partition_index, error) for p in topic.partitions],
    )
