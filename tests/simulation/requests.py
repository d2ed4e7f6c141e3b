"""The conversations of simulated clients with the broker, as generators of `Send` and `Sleep`."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from dualwrite.wire.records import build_batch
from tests.simulation.world import WALL_START_MS, Send, Sleep, Violation, World

GROUP = "copiers"
RETRIABLE = {3, 7, 14, 15, 16, 19, 51, 56, 88}
FENCED = {47, 49, 90}
ATTEMPTS_MAX = 100


class Stuck(Violation):
    """The broker gives no answer that lets a client go on."""


def attempts(world: World) -> Iterator[int]:
    """As many as it takes, but not for ever once nothing is wrong any more."""
    left = ATTEMPTS_MAX
    for attempt in count():
        yield attempt
        left -= world.is_healed
        if not left:
            return


def init(world: World, transactional_id: str, *, version: int, **fields: Any) -> Any:
    """InitProducerId until it succeeds."""
    for attempt in attempts(world):
        request = InitProducerIdRequest(transactional_id=transactional_id, **fields)
        reply = yield Send(ApiKey.INIT_PRODUCER_ID, version, request)
        if reply is not None and not reply.error_code:
            return reply
        if reply is not None and reply.error_code not in RETRIABLE:
            raise Violation(f"InitProducerId of {transactional_id} answered {reply.error_code}")
        yield Sleep(20 + 20 * min(attempt, 50))
    raise Stuck(f"InitProducerId of {transactional_id} never succeeds: {reply}")


def end(
    world: World, transactional_id: str, pair: tuple[int, int], *, commit: bool, version: int
) -> Any:
    """EndTxn until there is a definite answer."""
    for attempt in attempts(world):
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=commit,
        )
        reply = yield Send(ApiKey.END_TXN, version, request)
        if reply is not None and reply.error_code not in RETRIABLE:
            return reply
        yield Sleep(20 + 20 * min(attempt, 50))
    raise Stuck(f"EndTxn of {transactional_id} never ends: {reply}")


def produce(
    world: World,
    transactional_id: str,
    pair: tuple[int, int],
    where: tuple[str, int],
    sequence: int,
    values: list[bytes],
    *,
    version: int,
) -> Any:
    """Produce one batch until there is a definite answer; None after too many attempts."""
    stamp = WALL_START_MS + world.now_ms
    request = producing(transactional_id, pair, where, sequence, values, stamp)
    for _ in range(12):
        reply = yield Send(ApiKey.PRODUCE, version, request)
        if reply is not None:
            code = code_of(ApiKey.PRODUCE, reply)
            if code not in RETRIABLE:
                return code
        yield Sleep(20)
    return None


def producing(
    transactional_id: str,
    pair: tuple[int, int],
    where: tuple[str, int],
    sequence: int,
    values: list[bytes],
    wall_ms: int,
) -> ProduceRequest:
    batch = build_batch(
        ((value, value, None, wall_ms) for value in values),
        producer_id=pair[0],
        producer_epoch=pair[1],
        base_sequence=sequence,
        is_transactional=True,
    )
    part = PartitionProduceData(index=where[1], records=batch)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=where[0], partition_data=[part])],
    )


def add_partition(
    world: World,
    transactional_id: str,
    pair: tuple[int, int],
    where: tuple[str, int],
    *,
    version: int,
) -> Any:
    """AddPartitionsToTxn for one partition until there is a definite answer."""
    request = adding(transactional_id, pair, where)
    for _ in attempts(world):
        reply = yield Send(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        if reply is not None:
            code = code_of(ApiKey.ADD_PARTITIONS_TO_TXN, reply)
            if code not in RETRIABLE:
                return code
        yield Sleep(20)
    raise Stuck(f"AddPartitionsToTxn of {transactional_id} never ends: {reply}")


def adding(
    transactional_id: str, pair: tuple[int, int], where: tuple[str, int]
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=pair[0],
        v3_and_below_producer_epoch=pair[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
    )


def offset_request() -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="input", partition_indexes=[0])]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)], require_stable=True
    )


def read_offset(world: World) -> Any:
    """The group's committed offset, once no transaction has one pending; -1 for none."""
    for _ in attempts(world):
        reply = yield Send(ApiKey.OFFSET_FETCH, 8, offset_request())
        if reply is not None:
            (group,) = reply.groups
            if not group.error_code:
                part = group.topics[0].partitions[0]
                if not part.error_code:
                    return part.committed_offset
        yield Sleep(50)
    raise Stuck(f"OffsetFetch never answers: {reply}")


def commit_offset(
    world: World, transactional_id: str, pair: tuple[int, int], offset: int, *, version: int
) -> Any:
    """Put an offset into the transaction; up to v4 the group's partition is added first."""
    if version < 5:
        added = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=pair[0],
            producer_epoch=pair[1],
            group_id=GROUP,
        )
        for _ in attempts(world):
            reply = yield Send(ApiKey.ADD_OFFSETS_TO_TXN, version, added)
            if reply is not None and reply.error_code not in RETRIABLE:
                break
            yield Sleep(20)
        if reply.error_code:
            return reply.error_code
    return (yield from put_offset(world, transactional_id, pair, offset, version=version))


def put_offset(
    world: World, transactional_id: str, pair: tuple[int, int], offset: int, *, version: int
) -> Any:
    """TxnOffsetCommit until there is a definite answer."""
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=GROUP,
        producer_id=pair[0],
        producer_epoch=pair[1],
        topics=[TxnOffsetCommitRequestTopic(name="input", partitions=[part])],
    )
    for _ in attempts(world):
        reply = yield Send(ApiKey.TXN_OFFSET_COMMIT, version, request)
        if reply is not None:
            code = reply.topics[0].partitions[0].error_code
            if code not in RETRIABLE:
                return code
        yield Sleep(20)
    raise Stuck(f"TxnOffsetCommit of {transactional_id} never ends: {reply}")


# What a fenced instance may still send

Wish = tuple[ApiKey, int, Any]


def _stray_end(version: int, commit: bool) -> Callable[[str, tuple[int, int]], Wish]:
    return lambda name, pair: (
        ApiKey.END_TXN,
        version,
        EndTxnRequest(
            transactional_id=name, producer_id=pair[0], producer_epoch=pair[1], committed=commit
        ),
    )


def _stray_init(keep: bool) -> Callable[[str, tuple[int, int]], Wish]:
    return lambda name, pair: (
        ApiKey.INIT_PRODUCER_ID,
        6,
        InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=pair[0],
            producer_epoch=pair[1],
            enable_2pc=True,
            keep_prepared_txn=keep,
        ),
    )


def _stray_add(name: str, pair: tuple[int, int]) -> Wish:
    return ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding(name, pair, ("orders", 0))


def _stray_produce(version: int) -> Callable[[str, tuple[int, int]], Wish]:
    return lambda name, pair: (
        ApiKey.PRODUCE,
        version,
        producing(name, pair, ("orders", 0), 0, [b"stray/0"], WALL_START_MS),
    )


STRAY_REQUESTS = (
    _stray_end(5, True),
    _stray_end(5, False),
    _stray_end(3, True),
    _stray_end(3, False),
    _stray_end(1, True),
    _stray_init(True),
    _stray_init(False),
    _stray_add,
    _stray_produce(11),
    _stray_produce(12),
)


def code_of(key: ApiKey, reply: Any) -> int:
    """The error code of an answer about one thing."""
    if key is ApiKey.PRODUCE:
        code: int = reply.responses[0].partition_responses[0].error_code
    elif key is ApiKey.ADD_PARTITIONS_TO_TXN:
        (topic,) = reply.results_by_topic_v3_and_below
        code = topic.results_by_partition[0].partition_error_code
    elif key is ApiKey.WRITE_TXN_MARKERS:
        code = reply.markers[0].topics[0].partitions[0].error_code
    elif key is ApiKey.DESCRIBE_TRANSACTIONS:
        code = reply.transaction_states[0].error_code
    else:
        code = reply.error_code
    return code
