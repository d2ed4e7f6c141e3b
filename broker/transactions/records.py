"""The records of `__transaction_state`: Kafka's formats, with what Kafka forgets in tags of our own.

Key: int16 0, then the id with an int16 length. Value: int16 version, then fields. Version 1 (flexible)
is always written, because the tags are needed at every `transaction.version`; version 0 is read too.
Kafka skips tags that it doesn't know, so it could go on with our log.
"""

from functools import lru_cache
from operator import attrgetter
from struct import Struct
from typing import Final

from dualwrite.broker.transactions.state import (
    Cause,
    Outcome,
    PartitionRef,
    Transaction,
    TxnState,
)
from dualwrite.wire.codec import decode
from dualwrite.wire.message import (
    INT32,
    WireError,
    array,
    int8,
    int16,
    int32,
    int64,
    response,
    string,
    struct,
)
from dualwrite.wire.primitives import SHORT_UVARINTS, write_uvarint

_VERSION = Struct(">h")
_KEY_HEAD = Struct(">hh")
_KEY_VERSION: Final = 0
_NEWEST: Final = 1

# By the number that is persisted.
_OUTCOMES: Final = (Outcome.NONE, Outcome.COMMIT, Outcome.ABORT)
_CAUSES: Final = (Cause.NONE, Cause.CLIENT, Cause.TIMEOUT, Cause.FENCED, Cause.FORCED)


@struct
class _Topic:
    topic: str = string()
    partition_ids: list[int] = array(INT32)


@response(-1, "0-1", flexible="1+")
class _Value:
    producer_id: int = int64()
    producer_epoch: int = int16()
    timeout_ms: int = int32()
    status: int = int8()
    topics: list[_Topic] | None = array(_Topic, nullable="0+")
    update_ms: int = int64()
    start_ms: int = int64()
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    client_transaction_version: int = int16("1+", default=0, tag=2)
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    # Upstream persists the last producer epoch too (KAFKA-20357), under a tag that we don't know.
    last_producer_epoch: int = int16("1+", default=-1, tag=10000)
    update_steady_ms: int = int64("1+", default=-1, tag=10001)
    start_steady_ms: int = int64("1+", default=-1, tag=10002)
    last_finished_producer_id: int = int64("1+", default=-1, tag=10003)
    last_finished_producer_epoch: int = int16("1+", default=-1, tag=10004)
    last_outcome: int = int8("1+", default=0, tag=10005)
    last_cause: int = int8("1+", default=0, tag=10006)
    owner: str = string("1+", tag=10007)


_SAME_NAME: Final = (
    "producer_id",
    "producer_epoch",
    "timeout_ms",
    "update_ms",
    "start_ms",
    "previous_producer_id",
    "next_producer_id",
    "client_transaction_version",
    "next_producer_epoch",
    "last_producer_epoch",
    "update_steady_ms",
    "start_steady_ms",
    "last_finished_producer_id",
    "last_finished_producer_epoch",
    "owner",
)


_HEAD = Struct(">hqhib")  # version, producer id, epoch, timeout, status
_TIMES = Struct(">qq")
_LONG = Struct(">q")
_SHORT = Struct(">h")


def _tag(number: int, size: int) -> bytes:
    return write_uvarint(number) + write_uvarint(size)


_tagged = attrgetter(
    "previous_producer_id",
    "next_producer_id",
    "client_transaction_version",
    "next_producer_epoch",
    "last_producer_epoch",
    "update_steady_ms",
    "start_steady_ms",
    "last_finished_producer_id",
    "last_finished_producer_epoch",
)
# In the same order, by tag: what is left out, the tag and its size, how the value is written.
_TAGS: Final = (
    (-1, _tag(0, 8), _LONG.pack),
    (-1, _tag(1, 8), _LONG.pack),
    (0, _tag(2, 2), _SHORT.pack),
    (-1, _tag(3, 2), _SHORT.pack),
    (-1, _tag(10000, 2), _SHORT.pack),
    (-1, _tag(10001, 8), _LONG.pack),
    (-1, _tag(10002, 8), _LONG.pack),
    (-1, _tag(10003, 8), _LONG.pack),
    (-1, _tag(10004, 2), _SHORT.pack),
)
_OUTCOME_HEAD: Final = _tag(10005, 1)
_CAUSE_HEAD: Final = _tag(10006, 1)
_OWNER: Final = 10007


@lru_cache(maxsize=16_384)  # three records of each transaction have the same one
def encode_key(transactional_id: str) -> bytes:
    """The record key of an id."""
    name = transactional_id.encode()
    return _KEY_HEAD.pack(_KEY_VERSION, len(name)) + name


def encode_value(transaction: Transaction) -> bytes | None:
    """The record value; None, a tombstone, for an id that is gone.

    Written by hand: every transaction has three of these, and the compiled form of `_Value` takes
    most of the coordinator's time.
    """
    state = transaction.state
    if state is TxnState.DEAD:
        return None
    tags = [
        head + pack(value)
        for value, (default, head, pack) in zip(_tagged(transaction), _TAGS, strict=True)
        if value != default
    ]
    tags += _last_tags(transaction.last_outcome, transaction.last_cause, transaction.owner)
    head = _HEAD.pack(
        _NEWEST,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        state,
    )
    topics = b"\0" if state is TxnState.EMPTY else _encode_topics(transaction.partitions)
    times = _TIMES.pack(transaction.update_ms, transaction.start_ms)
    return b"".join((head, topics, times, SHORT_UVARINTS[len(tags)], *tags))


@lru_cache(maxsize=1_024)  # few outcomes, and few owners
def _last_tags(outcome: Outcome, cause: Cause, owner: str) -> tuple[bytes, ...]:
    tags = []
    if outcome:
        tags.append(_OUTCOME_HEAD + bytes((_OUTCOMES.index(outcome),)))
    if cause:
        tags.append(_CAUSE_HEAD + bytes((_CAUSES.index(cause),)))
    if owner:
        name = owner.encode()
        value = write_uvarint(len(name) + 1) + name
        tags.append(_tag(_OWNER, len(value)) + value)
    return tuple(tags)


@lru_cache(maxsize=1_024)  # PrepareX and most later transactions of an id have the same ones
def _encode_topics(partitions: frozenset[PartitionRef]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        by_topic.setdefault(name, []).append(partition)
    parts = [write_uvarint(len(by_topic) + 1)]
    for name, indexes in by_topic.items():
        encoded = name.encode()
        parts += (
            write_uvarint(len(encoded) + 1),
            encoded,
            write_uvarint(len(indexes) + 1),
            Struct(f">{len(indexes)}i").pack(*indexes),
            b"\0",
        )
    return b"".join(parts)


def decode_key(key: bytes) -> str | None:
    """The id of a record; None for a kind of record that this version doesn't know."""
    if len(key) < _KEY_HEAD.size:
        raise WireError("record key is cut short")
    version, size = _KEY_HEAD.unpack_from(key)
    if version != _KEY_VERSION:
        return None
    name = key[_KEY_HEAD.size :]
    if len(name) != size:
        raise WireError(f"transactional id of {size} bytes in a key that holds {len(name)}")
    return name.decode()


def decode_record(key: bytes, value: bytes | None) -> Transaction | None:
    """A record as `Coordinator.replay` takes it; None for one to be skipped."""
    transactional_id = decode_key(key)
    if transactional_id is None:
        return None
    if value is None:
        return tombstone(transactional_id)
    fields = decode(_Value, value, int.from_bytes(value[:2], signed=True), _VERSION.size)
    if not (
        0 <= fields.status < TxnState.DEAD
        and 0 <= fields.last_outcome < len(_OUTCOMES)
        and 0 <= fields.last_cause < len(_CAUSES)
    ):
        raise WireError(f"transaction of {transactional_id} has an unknown state or outcome")
    return Transaction(
        transactional_id=transactional_id,
        state=TxnState(fields.status),
        partitions=frozenset(
            PartitionRef(topic.topic, partition)
            for topic in fields.topics or ()
            for partition in topic.partition_ids
        ),
        last_outcome=_OUTCOMES[fields.last_outcome],
        last_cause=_CAUSES[fields.last_cause],
        **{name: getattr(fields, name) for name in _SAME_NAME},
    )


def tombstone(transactional_id: str, update_ms: int = -1) -> Transaction:
    """The record that makes an id unknown."""
    return Transaction(
        transactional_id=transactional_id,
        producer_id=-1,
        producer_epoch=-1,
        timeout_ms=0,
        state=TxnState.DEAD,
        update_ms=update_ms,
    )
