"""Record batches of version 2 (KIP-98): the bytes that producers send, logs keep and consumers get.

A batch is a header of 61 bytes and records of variable length, compressed as a whole or not at all.
`records` is for readers, `BatchBuilder` and `build_batch` for writers, `rebuild_batch` for the log
cleaner; what needs only the header is in `batch_header` and can be imported from here too.

Record: length, attributes (0), timestamp delta, offset delta, key, value, headers; all numbers are
zigzag varints and a length of -1 stands for null.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from dualwrite.wire.batch_builder import (
    NO_TIMESTAMP,
    NULL,
    RECORD_OVERHEAD_MAX,
    ZERO,
    BatchBuilder,
    Headers,
    Pair,
    build_batch,
    encode_headers,
    encode_nullable,
    varint,
)
from dualwrite.wire.batch_header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchError,
    BatchHeader,
    Data,
    batches,
    check_batch,
    check_crc,
    patch_offset,
    seal,
)
from dualwrite.wire.compression import CompressionError, compress, decompress
from dualwrite.wire.error_codes import ErrorCode

__all__ = [
    "HEADER_SIZE",
    "NO_TIMESTAMP",
    "RECORD_OVERHEAD_MAX",
    "BatchBuilder",
    "BatchError",
    "BatchHeader",
    "EndMarker",
    "Headers",
    "Pair",
    "Record",
    "batches",
    "build_batch",
    "check_batch",
    "check_crc",
    "control_batch",
    "patch_offset",
    "rebuild_batch",
    "records",
    "records_of",
    "timestamp_of",
    "varint",
]

DECOMPRESSED_MAX: Final = 128 * 1024 * 1024

_ABORT: Final = 0
_COMMIT: Final = 1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
# A marker's only record as a whole: the sizes and deltas in front of its key, the key, the size of
# its value, the value, no headers. All of these varints take one byte.
_MARKER = struct.Struct(">5shhBhix")
_MARKER_OPENING: Final = bytes((32, 0, 0, 0, 8))
_MARKER_VALUE_SIZE: Final = 12


class Record(NamedTuple):
    """One record as it is stored: offset and timestamp count from those of its batch."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class EndMarker(NamedTuple):
    """What a control batch says of a transaction: it ended with commit or abort."""

    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def parse(cls, batch: Data, header: BatchHeader | None = None) -> "EndMarker | None":
        """The marker in a control batch; None for a control type that does not end a transaction.

        Fields that a later version may add behind the known ones are skipped.
        """
        if header is None:
            header = BatchHeader.parse(batch)
        if not header.attributes & CONTROL:
            raise BatchError(ErrorCode.INVALID_RECORD, "not a control batch")
        if len(batch) == HEADER_SIZE + _MARKER.size and header.length == len(batch):
            opening, _, kind, value_size, _, epoch = _MARKER.unpack_from(batch, HEADER_SIZE)
            if (
                opening == _MARKER_OPENING
                and value_size == _MARKER_VALUE_SIZE
                and kind in (_ABORT, _COMMIT)
            ):
                return cls(kind == _COMMIT, header.producer_id, header.producer_epoch, epoch)
        record = next(records(batch, DECOMPRESSED_MAX), None)
        if record is None:  # the log cleaner leaves empty batches behind
            return None
        try:
            _version, kind = _MARKER_KEY.unpack_from(record.key or b"")
            if kind not in (_ABORT, _COMMIT):
                return None
            _version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
        except struct.error as error:
            raise BatchError(ErrorCode.INVALID_RECORD, f"damaged end marker: {error}") from error
        return cls(kind == _COMMIT, header.producer_id, header.producer_epoch, coordinator_epoch)


def records(
    batch: Data, max_bytes: int = DECOMPRESSED_MAX, header: BatchHeader | None = None
) -> Iterator[Record]:
    """Take a batch apart, record by record; `header` if it is already parsed.

    The first step decompresses at most `max_bytes`. Any step raises `BatchError` when the bytes are
    not what the header says; a batch has been read whole only when the iterator has ended.
    """
    if header is None:
        header = BatchHeader.parse(batch)
    data = _payload(batch, header, max_bytes)
    position = 0
    offset_max = header.last_offset_delta
    new = tuple.__new__  # leaves out a Python frame per record
    try:
        for _ in range(header.record_count):
            length, position = _read_varint(data, position)
            end = position + length
            position += 1  # the attributes
            # Most of these take one byte, and calls are what reading many records costs.
            if (byte := data[position]) < 0x80:
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                timestamp_delta, position = _read_varint(data, position)
            if (byte := data[position]) < 0x80:
                offset_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                offset_delta, position = _read_varint(data, position)
            if (byte := data[position]) < 0x80:
                length = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                length, position = _read_varint(data, position)
            key = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            length, position = _read_varint(data, position)
            value = None
            if length >= 0:
                value = data[position : position + length]
                position += length
            headers: Headers = ()
            if data[position]:
                headers, position = _read_headers(data, position)
            else:
                position += 1
            # A length that lies about any field moves the position away from the record's end.
            if position != end or end > len(data) or not 0 <= offset_delta <= offset_max:
                raise _damaged(f"record at byte {position} does not end where it says")
            yield new(Record, (offset_delta, timestamp_delta, key, value, headers))
    except IndexError:
        raise _damaged("records end too early") from None
    if position != len(data):
        raise _damaged(f"{len(data) - position} bytes behind the last record")


def records_of(batch: Data, max_bytes: int = DECOMPRESSED_MAX) -> list[Record]:
    """All records of a batch, or a `BatchError`."""
    return list(records(batch, max_bytes))


def timestamp_of(header: BatchHeader, record: Record) -> int:
    """The time of a record in milliseconds: its own, or the broker's for the whole batch."""
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    return header.base_timestamp + record.timestamp_delta


def _payload(batch: Data, header: BatchHeader, max_bytes: int) -> bytes:
    if header.length > len(batch):
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE, f"batch of {header.length} bytes is cut at {len(batch)}"
        )
    body = memoryview(batch)[HEADER_SIZE : header.length]
    # An empty batch, as the log cleaner leaves it, has no payload even if it names a compression.
    if header.record_count == 0 and not body:
        return b""
    try:
        return decompress(header.compression, body, max_bytes)
    except CompressionError as error:
        raise BatchError(ErrorCode.INVALID_RECORD, str(error)) from error


def _damaged(message: str) -> BatchError:
    return BatchError(ErrorCode.INVALID_RECORD, message)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number = byte & 0x7F
    shift = 7
    while shift < 64:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    raise _damaged(f"number at byte {position} has more than 64 bits")


def _read_headers(data: bytes, position: int) -> tuple[Headers, int]:
    count, position = _read_varint(data, position)
    if count < 0:
        raise _damaged(f"record has {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = _read_varint(data, position)
        if length < 0:
            raise _damaged("header without a name")
        # Names that are not UTF-8 must come out of the log cleaner as they went in.
        name = data[position : position + length].decode(errors="surrogateescape")
        length, position = _read_varint(data, position + length)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + length]))
            position += length
    return tuple(headers), position


def keyed_batch(
    content: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int
) -> tuple[bytes, BatchHeader]:
    """One batch of keys and values without a producer, and its header.

    What `build_batch` gives, for coordinators, which write several of these for each transaction.
    """
    parts: list[bytes] = []
    for number, (key, value) in enumerate(content):
        body = b"".join(
            (
                b"\0\0",  # attributes, timestamp delta
                varint(number),
                varint(len(key)),
                key,
                NULL if value is None else varint(len(value)),
                value or b"",
                ZERO,  # headers
            )
        )
        parts += (varint(len(body)), body)
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=len(content) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(content),
    )
    return seal(header, b"".join(parts)), header


def control_batch(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The marker that ends a producer's transaction in one partition: always 78 bytes."""
    marker = EndMarker(commit, producer_id, producer_epoch, coordinator_epoch)
    batch, _ = marker_batch(
        marker, timestamp_ms, base_offset=base_offset, leader_epoch=leader_epoch
    )
    return batch


def marker_batch(
    marker: EndMarker, timestamp_ms: int, *, base_offset: int = 0, leader_epoch: int = -1
) -> tuple[bytes, BatchHeader]:
    """`control_batch` and its header."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    kind = _COMMIT if marker.commit else _ABORT
    payload = _MARKER.pack(
        _MARKER_OPENING, 0, kind, _MARKER_VALUE_SIZE, 0, marker.coordinator_epoch
    )
    return seal(header, payload), header


def rebuild_batch(
    header: BatchHeader, kept: Sequence[Record], delete_horizon_ms: int | None = None
) -> bytes:
    """The batch of `header` with only the records that the log cleaner keeps, maybe none.

    Offsets, producer fields and the last offset stay, because consumers and producer state count on
    them. A delete horizon takes the place of the base timestamp (KIP-534), from which the records'
    timestamps then count.
    """
    base = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    shift = header.base_timestamp - base
    parts: list[bytes] = []
    for record in kept:
        body = b"".join(
            (
                ZERO,
                varint(record.timestamp_delta + shift),
                varint(record.offset_delta),
                encode_nullable(record.key),
                encode_nullable(record.value),
                encode_headers(record.headers),
            )
        )
        parts += (varint(len(body)), body)
    max_timestamp = header.max_timestamp
    if kept and not header.is_log_append_time:
        max_timestamp = max(timestamp_of(header, record) for record in kept)
    rebuilt = replace(
        header,
        attributes=header.attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON),
        base_timestamp=base,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    payload = b"".join(parts)
    return seal(rebuilt, compress(header.compression, payload) if kept else payload)
