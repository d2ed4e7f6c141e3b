"""Producer states as bytes: Kafka's snapshot file, and behind it what Kafka leaves out.

Kafka's part (version 1): int16 version, uint32 CRC-32C of everything behind it, int32 count, and 46
bytes per producer: id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
first offset of the open transaction. It keeps one batch per producer, so that after a restart a
retry of the four before it is refused instead of being known again.

Our part follows under the same checksum: for each producer its last sign of life in running time and
all cached batches, then the aborted transactions. A file without it, as Kafka writes it, is read too.
"""

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from dualwrite.broker.producers.aborted import AbortedTxn, decode_aborted, encode_aborted
from dualwrite.broker.producers.states import (
    CACHED_BATCHES,
    EXPIRATION_MS,
    SEQUENCE_MAX,
    CachedBatch,
    ProducerState,
    ProducerStates,
)

_VERSION: Final = 1
_FRONT = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhiqiqiq")

_OURS: Final = b"dualwrite\x01"
_ACTIVITY = struct.Struct(">qqB")  # last timestamp, running time, number of cached batches
_BATCH = struct.Struct(">iqiq")  # last sequence, last offset, offset delta, timestamp


class SnapshotError(ValueError):
    """The bytes are no producer snapshot, or a damaged one: the log must be replayed instead."""


def encode_snapshot(states: ProducerStates, *, aborted_from: int = 0) -> bytes:
    """All that `states` must know after a restart.

    Taken when everything applied is durable. A log keeps the aborted transactions of its closed
    segments in transaction indexes: `aborted_from` leaves out those whose markers lie below it.
    """
    producers = list(states.producers.items())
    parts = [encode_producers(producers), _OURS]
    for _, state in producers:
        parts.append(_ACTIVITY.pack(state.last_timestamp, state.last_steady_ms, len(state.batches)))
        parts += [_pack_batch(batch) for batch in state.batches]
    parts.append(encode_aborted(a for a in states.aborted if a.last_offset >= aborted_from))
    return _sealed(b"".join(parts))


def encode_snapshot_for_kafka(producers: Iterable[tuple[int, ProducerState]]) -> bytes:
    """Kafka's part alone: a snapshot file as Kafka itself would write it."""
    return _sealed(encode_producers(list(producers)))


def decode_snapshot(data: bytes, expiration_ms: int = EXPIRATION_MS) -> ProducerStates:
    """Read a snapshot, ours or Kafka's; raises `SnapshotError` for anything else."""
    try:
        producers, rest = _decode_producers(data)
        aborted = _decode_ours(rest, producers) if rest else []
    except (struct.error, ValueError) as error:
        raise SnapshotError(f"damaged producer snapshot: {error}") from error
    states = ProducerStates(expiration_ms)
    states.load(producers, aborted)
    return states


def encode_producers(producers: list[tuple[int, ProducerState]]) -> bytes:
    """Kafka's count and entries, without the version and the checksum."""
    parts = [_COUNT.pack(len(producers))]
    for producer_id, state in producers:
        sequence, offset, delta = -1, -1, 0
        if state.batches:
            last = state.batches[-1]
            sequence, offset = last.last_sequence, last.last_offset
            delta = last.last_offset - last.base_offset
        parts.append(
            _PRODUCER.pack(
                producer_id,
                state.epoch,
                sequence,
                offset,
                delta,
                state.last_timestamp,
                state.coordinator_epoch,
                -1 if state.first_offset is None else state.first_offset,
            )
        )
    return b"".join(parts)


def _sealed(body: bytes) -> bytes:
    return _FRONT.pack(_VERSION, crc32c(body)) + body


def _pack_batch(batch: CachedBatch) -> bytes:
    delta = batch.last_offset - batch.base_offset
    return _BATCH.pack(batch.last_sequence, batch.last_offset, delta, batch.timestamp)


def _cached(sequence: int, offset: int, delta: int, timestamp: int) -> CachedBatch:
    if delta < 0 or offset < delta:
        raise ValueError(f"batch ends at {offset} with offset delta {delta}")
    # Going below 0 a sequence continues at 2147483647; a coordinator's batches have none.
    first = -1 if sequence < 0 else (sequence - delta) & SEQUENCE_MAX
    return CachedBatch(first, sequence, offset - delta, offset, timestamp)


def _decode_producers(data: bytes) -> tuple[list[tuple[int, ProducerState]], bytes]:
    """Kafka's part, and the bytes behind it."""
    version, checksum = _FRONT.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"version {version}")
    body = data[_FRONT.size :]
    if crc32c(body) != checksum:
        raise ValueError("checksum does not fit")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * _PRODUCER.size
    if count < 0 or end > len(body):
        raise ValueError(f"{count} producers in {len(body)} bytes")
    producers: list[tuple[int, ProducerState]] = []
    for fields in _PRODUCER.iter_unpack(body[_COUNT.size : end]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = fields
        state = ProducerState()
        state.epoch = epoch
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = timestamp
        state.first_offset = None if first < 0 else first
        if offset >= 0:
            state.batches.append(_cached(sequence, offset, delta, timestamp))
        producers.append((producer_id, state))
    return producers, body[end:]


def _decode_ours(data: bytes, producers: list[tuple[int, ProducerState]]) -> list[AbortedTxn]:
    """Complete the states in place; the bytes behind them are the aborted transactions."""
    if not data.startswith(_OURS):
        raise ValueError("unknown bytes behind the producers")
    position = len(_OURS)
    for _, state in producers:
        state.last_timestamp, state.last_steady_ms, count = _ACTIVITY.unpack_from(data, position)
        if count > CACHED_BATCHES:
            raise ValueError(f"{count} cached batches")
        position += _ACTIVITY.size
        state.batches.clear()
        for _ in range(count):
            state.batches.append(_cached(*_BATCH.unpack_from(data, position)))
            position += _BATCH.size
    return decode_aborted(data[position:])
