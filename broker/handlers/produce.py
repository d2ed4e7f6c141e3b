"""Produce (0), v3-13; offered from 0, because older librdkafka reads the range as a sign of compression.

One batch per partition, kept as the bytes that came. Transactional batches need the right to their
transactional id (CVE-2018-17196: by the batch's flag, not by the request's field), or the request is
refused as a whole, and the coordinator is
asked for each of them: up to v11 whether the partition is part of the transaction, from v12 to make it
so (KIP-890). The coordinator's record and all batches of a request are one journal entry. v13 names
topics by id. acks=0 has no answer; an error then closes the connection.

Left out: acks other than -1, 0, 1; versions below 3; a server-side wait for CONCURRENT_TRANSACTIONS,
since that code is seen only while a partition is offline.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import HANG_UP, NO_REPLY
from dualwrite.broker.handlers import handles
from dualwrite.broker.producers.verdicts import Accept, Duplicate, Standing
from dualwrite.broker.storage.entry import Append, Item
from dualwrite.broker.storage.log import Log
from dualwrite.broker.topics import Topic
from dualwrite.broker.transactions.decision import DONE, Decision, refuse
from dualwrite.broker.transactions.dialect import dialect, is_transaction_v2
from dualwrite.broker.transactions.state import Pair, PartitionRef
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.batch_header import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchError,
    BatchHeader,
    check_batch,
    seal,
)
from dualwrite.wire.compression import Compression
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from dualwrite.wire.records import records

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_KNOWS_ZSTD: Final = 7
_NAMES_BY_ID: Final = 13
_ACKS: Final = (-1, 0, 1)
_COMES_AGAIN: Final = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS)


class _Batch:
    """One partition's share of a request on its way into the log."""

    __slots__ = ("append", "header", "log", "ref", "response", "topic", "verified")

    def __init__(self, topic: Topic, log: Log, append: Append, header: BatchHeader) -> None:
        self.topic = topic
        self.log = log
        self.append = append
        self.header = header
        self.ref = PartitionRef(topic.name, append.key[1])
        self.response = PartitionProduceResponse(index=append.key[1])
        self.verified = False


@handles(ApiKey.PRODUCE, versions=(3, 13), request=ProduceRequest, offered_from=0)
def produce(node: "Node", call: "Call[ProduceRequest]") -> Any:
    request = call.request
    accepted: list[_Batch] = []
    topics: list[TopicProduceResponse] = []
    for data in request.topic_data:
        topic, error = _find_topic(node, call, data)
        shown = TopicProduceResponse(name=data.name, topic_id=data.topic_id)
        topics.append(shown)
        for part in data.partition_data:
            found = _accept(node, call, topic, part) if error is None and topic else error
            if isinstance(found, _Batch):
                accepted.append(found)
                shown.partition_responses.append(found.response)
            else:
                shown.partition_responses.append(_failed(part.index, *(found or _UNKNOWN)))
    if any(batch.header.is_transactional for batch in accepted) and not _may_transact(call):
        topics = [_unauthorized(data) for data in request.topic_data]
    elif accepted:
        _append(node, call, accepted)
    if request.acks == 0:
        failed = any(p.error_code for topic in topics for p in topic.partition_responses)
        return HANG_UP if failed else NO_REPLY
    return ProduceResponse(responses=topics)


_Failure = tuple[ErrorCode, str]
_UNKNOWN: Final[_Failure] = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")


def _find_topic(
    node: "Node", call: "Call[ProduceRequest]", data: TopicProduceData
) -> tuple[Topic | None, _Failure | None]:
    if call.request.acks not in _ACKS:
        return None, (ErrorCode.INVALID_REQUIRED_ACKS, f"acks={call.request.acks}")
    if call.version >= _NAMES_BY_ID:
        topic = node.topics.by_id(data.topic_id)
        if topic is None:
            return None, (ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        name = topic.name
    else:
        name = data.name
        topic = node.topics.get(name)
    if not call.may(Operation.WRITE, ResourceType.TOPIC, name):
        return None, (ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not authorized to write to {name!r}")
    if topic is None:
        return None, _UNKNOWN
    if topic.is_internal:
        return None, (ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the broker only")
    if node.storage.is_full:
        return None, (ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    return topic, None


def _accept(
    node: "Node", call: "Call[ProduceRequest]", topic: Topic, part: PartitionProduceData
) -> _Batch | _Failure:
    """Everything about a batch that can be said without producers and transactions."""
    log = node.log_of(topic, part.index)
    if log is None:
        return _UNKNOWN
    if log.offline is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR, log.offline
    data = part.records
    if not data:
        return ErrorCode.INVALID_RECORD, "no records"
    if len(data) > log.settings.max_message_bytes:
        return (
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {len(data)} bytes, max.message.bytes is {log.settings.max_message_bytes}",
        )
    try:
        header = check_batch(data)
    except BatchError as error:
        return error.code, str(error)
    if header.is_control:
        return ErrorCode.INVALID_RECORD, "clients can't write control records"
    if header.compression == Compression.ZSTD and call.version < _KNOWS_ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7"
    if log.settings.compact and not _all_have_keys(data):
        return ErrorCode.INVALID_RECORD, "a compacted topic needs keys"
    refusal = node.check_timestamp(topic, header.max_timestamp, call.now)
    if refusal is not None:
        return ErrorCode.INVALID_TIMESTAMP, refusal
    return _Batch(topic, log, Append(log.key, data, header), header)


def _may_transact(call: "Call[ProduceRequest]") -> bool:
    transactional_id = call.request.transactional_id
    return transactional_id is not None and call.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _unauthorized(data: TopicProduceData) -> TopicProduceResponse:
    """Nothing of a request is written if it has a transactional batch that may not be written."""
    failure = (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "not authorized to the transactional id",
    )
    return TopicProduceResponse(
        name=data.name,
        topic_id=data.topic_id,
        partition_responses=[_failed(part.index, *failure) for part in data.partition_data],
    )


def _all_have_keys(data: bytes | memoryview) -> bool:
    try:
        return all(record.key is not None for record in records(data))
    except BatchError:
        return False


def _append(node: "Node", call: "Call[ProduceRequest]", batches: list[_Batch]) -> None:
    """Ask the coordinator and the logs, then append what nobody refuses, in one entry."""
    tv2 = is_transaction_v2(ApiKey.PRODUCE, call.version)
    decision = DONE
    if any(batch.header.attributes & TRANSACTIONAL for batch in batches):
        decision = _join_transaction(node, call, batches, tv2)
    items: list[Item] = []
    appended: list[_Batch] = []
    for batch in batches:
        if not batch.response.error_code and _is_taken(node, call, batch, tv2, appended):
            appended.append(batch)
            items.append(batch.append)
    if not items and not decision.records:
        return
    node.execute(decision, call.now, items)
    for batch in appended:
        batch.response.base_offset = batch.append.base_offset
        batch.response.log_start_offset = batch.log.log_start


def _join_transaction(
    node: "Node", call: "Call[ProduceRequest]", batches: list[_Batch], tv2: bool
) -> Decision:
    """The coordinator's word on the transactional batches; marks those that it accepts."""
    asking: list[_Batch] = []
    pairs: set[Pair] = set()
    for batch in batches:
        header = batch.header
        if not header.attributes & TRANSACTIONAL:
            continue
        pairs.add(Pair(header.producer_id, header.producer_epoch))
        if (
            batch.log.producers.standing(header.producer_id, header.producer_epoch)
            is Standing.FENCED
        ):
            _fail(batch, ErrorCode.INVALID_PRODUCER_EPOCH, "a newer epoch has written here")
        else:
            asking.append(batch)
    if not asking:
        return DONE
    transactional_id = call.request.transactional_id
    if len(pairs) > 1:
        for batch in asking:
            _fail(batch, ErrorCode.INVALID_PRODUCER_ID_MAPPING, "several producers in one request")
        return DONE
    pair = pairs.pop()
    refs = [batch.ref for batch in asking]
    error = node.transaction_error(transactional_id or "", begins=True)
    if error:
        decision = refuse(error)
    elif tv2:
        decision = node.transactions.add_partitions(
            transactional_id, pair, refs, tv2=True, now=call.now
        )
    else:
        decision = node.transactions.verify(transactional_id, pair, refs)
    for batch in asking:
        error = decision.error_for(batch.ref)
        if error is ErrorCode.NONE:
            batch.verified = True
            continue
        code = dialect(error, ApiKey.PRODUCE, call.version)
        if code in _COMES_AGAIN:
            batch.log.producers.postpone(batch.header, tv2=tv2, now=call.now)
        _fail(batch, code, f"the transaction coordinator says {error.name}")
    return decision


def _is_taken(
    node: "Node",
    call: "Call[ProduceRequest]",
    batch: _Batch,
    tv2: bool,
    before: list[_Batch],
) -> bool:
    """Whether the log takes the batch; if not, its response says why."""
    if any(other.log is batch.log for other in before):
        _fail(batch, ErrorCode.INVALID_REQUEST, "the request names the partition twice")
        return False
    verdict = batch.log.producers.check(batch.header, verified=batch.verified, tv2=tv2)
    if isinstance(verdict, Duplicate):
        batch.response.base_offset = verdict.base_offset
        batch.response.log_start_offset = batch.log.log_start
        if node.uses_append_time(batch.topic):
            batch.response.log_append_time_ms = verdict.timestamp
        return False
    if not isinstance(verdict, Accept):
        _fail(batch, verdict.code, verdict.reason)
        return False
    if node.uses_append_time(batch.topic):
        _stamp(batch, call.now.wall_ms)
    return True


def _stamp(batch: _Batch, wall_ms: int) -> None:
    """LogAppendTime: the broker's clock in place of the producer's, for the batch as a whole."""
    header = replace(
        batch.header, attributes=batch.header.attributes | LOG_APPEND_TIME, max_timestamp=wall_ms
    )
    batch.append.batch = seal(header, bytes(batch.append.batch[HEADER_SIZE:]))
    batch.append.header = header
    batch.response.log_append_time_ms = wall_ms


def _fail(batch: _Batch, code: ErrorCode, reason: str) -> None:
    batch.response.error_code = code
    batch.response.base_offset = -1
    batch.response.error_message = reason


def _failed(index: int, code: ErrorCode, reason: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=reason
    )
