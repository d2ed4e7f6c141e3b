"""Fetch (1), v4-18.

Waits up to `max_wait_ms` for `min_bytes`, and is woken when a log that it reads has new durable records
or its last stable offset moves. Whole batches, from the one that holds the offset; the first batch of the
answer comes whatever its size. read_committed stops at the last stable offset and lists the aborted
transactions of what it returns, from the same state. v13 names topics by id.

Left out: fetch sessions (KIP-227). Every answer says session 0, which clients take for "none"; a fetch that
goes on in a session is 70. Replica fetches: there are no replicas, and the right for one is asked for all
the same (CVE-2018-1288). Rack-aware reads.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.clock import Now
from dualwrite.broker.handlers import handles
from dualwrite.broker.leadership import epoch_error
from dualwrite.broker.storage.disk import Buffer
from dualwrite.broker.storage.entry import PartitionKey
from dualwrite.broker.storage.errors import LogOffline, OffsetOutOfRange
from dualwrite.broker.storage.log import Log
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.batch_header import batches
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_NAMES_BY_ID: Final = 13
_READ_COMMITTED: Final = 1
_WHOLE: Final = (0, -1)  # epochs of a fetch that names all its partitions
_KNOWS_STORAGE_ERROR: Final = 6


@handles(ApiKey.FETCH, versions=(4, 18), request=FetchRequest)
def fetch(node: "Node", call: "Call[FetchRequest]") -> FetchResponse | None:
    request = call.request
    if request.session_epoch not in _WHOLE:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    first = _Attempt(node, call)
    if first.is_enough or request.max_wait_ms <= 0:
        return first.answer()

    def attempt(now: Now, is_last: bool) -> FetchResponse | None:
        again = _Attempt(node, call)
        return again.answer() if again.is_enough or is_last else None

    node.wait(call, first.keys, call.now.steady_ms + request.max_wait_ms, attempt)
    return None


class _Attempt:
    """One look at everything that a request asks for."""

    def __init__(self, node: "Node", call: "Call[FetchRequest]") -> None:
        request = call.request
        self._node = node
        self._call = call
        largest: int = min(request.max_bytes, node.settings["fetch.max.bytes"])
        # Whoever wants more than fits into an answer does not wait for it.
        self._wanted = min(request.min_bytes, largest)
        self._left = min(largest, node.unsent.room)
        self._bytes = 0
        self._has_error = False
        self._reads_committed = request.isolation_level == _READ_COMMITTED
        self.keys: list[PartitionKey] = []
        self._response = FetchResponse(responses=[self._topic(topic) for topic in request.topics])

    def answer(self) -> FetchResponse:
        self._node.unsent.add(self._call.connection, self._bytes)
        return self._response

    @property
    def is_enough(self) -> bool:
        return self._has_error or self._bytes >= self._wanted or not self.keys

    def _topic(self, wanted: FetchTopic) -> FetchableTopicResponse:
        node, call = self._node, self._call
        error = ErrorCode.NONE
        if call.version >= _NAMES_BY_ID:
            topic = node.topics.by_id(wanted.topic_id)
            if topic is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = node.topics.get(wanted.topic)
            if topic is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        name = wanted.topic if topic is None else topic.name
        if not self._may_read(name):
            # By id, a topic that may not be read must look like one that isn't there (KIP-516).
            by_id = call.version >= _NAMES_BY_ID and topic is None
            error = error if by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        shown = FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id)
        for part in wanted.partitions:
            if error or topic is None:
                shown.partitions.append(self._failed(part.partition, error))
            else:
                log = node.log_of(topic, part.partition)
                shown.partitions.append(self._partition(log, part))
        return shown

    def _may_read(self, name: str) -> bool:
        request = self._call.request
        state = request.replica_state
        is_replica = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
        if is_replica and not self._call.may(
            Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster"
        ):
            return False
        return self._call.may(Operation.READ, ResourceType.TOPIC, name)

    def _partition(self, log: Log | None, wanted: FetchPartition) -> PartitionData:
        index = wanted.partition
        if log is None:
            return self._failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = epoch_error(wanted.current_leader_epoch)
        if error:
            return self._failed(index, error)
        offset = wanted.fetch_offset
        last_stable = log.last_stable
        upper = last_stable if self._reads_committed else log.high_watermark
        try:
            found = self._read(log, offset, wanted.partition_max_bytes, upper)
        except OffsetOutOfRange:
            return self._failed(index, ErrorCode.OFFSET_OUT_OF_RANGE)
        except LogOffline:
            is_known = self._call.version >= _KNOWS_STORAGE_ERROR
            code = ErrorCode.KAFKA_STORAGE_ERROR
            return self._failed(index, code if is_known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.keys.append(log.key)
        aborted = None
        if self._reads_committed:
            aborted = _aborted(log, offset, upper, found) if found else []
        return PartitionData(
            partition_index=index,
            high_watermark=log.high_watermark,
            last_stable_offset=last_stable,
            log_start_offset=log.log_start,
            aborted_transactions=aborted,
            records=found or b"",
        )

    def _read(self, log: Log, offset: int, max_bytes: int, upper: int) -> list[bytes | memoryview]:
        limit = min(max_bytes, self._left)
        if limit <= 0 and self._bytes:
            # Still says whether the offset is in range.
            limit = 0
            upper = min(upper, offset)
        found = log.read(offset, limit, upper)
        size = sum(map(len, found))
        if size > limit and self._bytes:
            # Only the first batch of an answer may be larger than what was asked for.
            return []
        self._bytes += size
        self._left -= size
        return [part if isinstance(part, bytes) else memoryview(part) for part in found]

    def _failed(self, index: int, code: ErrorCode) -> PartitionData:
        self._has_error = True
        return PartitionData(
            partition_index=index,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=[] if self._reads_committed else None,
            records=b"",
        )


def _aborted(
    log: Log, offset: int, upper: int, found: Iterable[Buffer]
) -> list[AbortedTransaction]:
    """The aborted transactions that the reader of `found` must leave out, by their first offset."""
    known = log.aborted(offset, upper)
    if not known:
        return []
    end = max(header.last_offset for part in found for _, header in batches(part))
    return [
        AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in sorted(known, key=lambda entry: entry.first_offset)
        if entry.first_offset <= end
    ]
