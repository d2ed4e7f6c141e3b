"""`BatchBuilder`: record batches for producers, one record after the other or many at once."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Final, TypeAlias

from dualwrite.wire.batch_header import (
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    seal,
)
from dualwrite.wire.compression import Compression, compress

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Pair: TypeAlias = tuple[bytes | None, bytes]
"""The key and the value of a record that has nothing else."""

NO_TIMESTAMP: Final = -1
_TIMESTAMP_LIMIT: Final = 1 << 62  # so that every difference of two fits into 64 bits
RECORD_OVERHEAD_MAX: Final = 40
"""More than a record takes beside key, value and headers."""


def varint(number: int) -> bytes:
    """The zigzag form of a number of at most 64 bits."""
    if 0 <= number < _TABLE_SIZE:
        return _VARINTS[number]
    zigzag = (number << 1) ^ (number >> 63)
    if zigzag >> 14 and not zigzag >> 21:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80, zigzag >> 14))
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _varints(first: int, end: int) -> Sequence[bytes]:
    if end <= _TABLE_SIZE:
        return _VARINTS[first:end]
    return [varint(number) for number in range(first, end)]


# Every non-negative number that needs one or two bytes: nearly all that occur in real records.
_TABLE_SIZE: Final = 1 << 13
_VARINTS: Final = tuple(bytes((n << 1,)) for n in range(64)) + tuple(
    bytes((n << 1 & 0x7F | 0x80, n >> 6)) for n in range(64, _TABLE_SIZE)
)
NULL: Final = b"\x01"
ZERO: Final = b"\x00"


class BatchBuilder:
    """Collects records for one batch; appending encodes, building joins.

    `size` is the size of the uncompressed batch so far. `build` leaves the builder as it is, so
    that the same records can be built again under another epoch or sequence.
    """

    __slots__ = (
        "_base_timestamp",
        "_beside_size",
        "_offset_grows_at",
        "_parts",
        "_time",
        "_timestamp",
        "count",
        "max_timestamp",
        "size",
    )

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._base_timestamp = NO_TIMESTAMP
        self._timestamp = NO_TIMESTAMP
        self._time = b"\x00\x00"  # attributes and timestamp delta of the record before
        self._beside_size = 4  # what a record takes beside its own size, key, value and headers
        self._offset_grows_at = 64  # the first offset delta that takes a byte more
        self.max_timestamp = NO_TIMESTAMP
        self.count = 0
        self.size = HEADER_SIZE

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp_ms: int = NO_TIMESTAMP,
    ) -> int:
        """Add a record and return the size of the uncompressed batch."""
        count = self.count
        if timestamp_ms != self._timestamp or count == self._offset_grows_at:
            self._move_time(timestamp_ms)
        offset = _VARINTS[count] if count < _TABLE_SIZE else varint(count)
        if key is None:
            key_size, key = NULL, b""
            length = self._beside_size + 1
        else:
            length = len(key)
            key_size = _VARINTS[length] if length < _TABLE_SIZE else varint(length)
            length += self._beside_size + len(key_size)
        if value is None:
            value_size, value = NULL, b""
            length += 1
        else:
            value_length = len(value)
            value_size = (
                _VARINTS[value_length] if value_length < _TABLE_SIZE else varint(value_length)
            )
            length += value_length + len(value_size)
        tail = ZERO
        if headers:
            tail = encode_headers(headers)
            length += len(tail) - len(ZERO)
        size = _VARINTS[length] if length < _TABLE_SIZE else varint(length)
        self._parts += (size, self._time, offset, key_size, key, value_size, value, tail)
        self.count = count + 1
        self.size += length + len(size)
        return self.size

    def extend(self, pairs: Sequence[Pair], timestamp_ms: int, bytes_max: int) -> int:
        """Add records that are nothing but key and value, while the batch stays within `bytes_max`.

        Returns how many were added. What many of them have in common is found once for all.
        """
        if pairs and self.size + RECORD_OVERHEAD_MAX + _size_of(*pairs[0]) > bytes_max:
            return 0  # before a time is noted that no record has
        added = 0
        while added < len(pairs):
            if timestamp_ms != self._timestamp or self.count == self._offset_grows_at:
                self._move_time(timestamp_ms)
            some = pairs[added : added + self._offset_grows_at - self.count]
            fitting = self._extend(some, bytes_max)
            added += fitting
            if fitting < len(some):
                break
        return added

    def _extend(self, pairs: Sequence[Pair], bytes_max: int) -> int:
        """As above, for records whose offset deltas are equally wide."""
        parts: list[bytes] = []
        size = self.size
        shapes: dict[object, tuple[bytes, bytes, bytes, int]] = {}
        offsets = _varints(self.count, self.count + len(pairs))
        for added, (key, value) in enumerate(pairs):
            shape = len(value) if key is None else (len(key), len(value))
            try:
                opening, key_size, value_size, whole = shapes[shape]
            except KeyError:
                opening, key_size, value_size, whole = shapes[shape] = self._around(key, value)
            if size + whole > bytes_max:
                break
            size += whole
            parts += (opening, offsets[added], key_size, key or b"", value_size, value, ZERO)
        else:
            added = len(pairs)
        self._parts += parts
        self.count += added
        self.size = size
        return added

    def _around(self, key: bytes | None, value: bytes) -> tuple[bytes, bytes, bytes, int]:
        """What stands before the offset, the key and the value of a record like this one, and how
        long it is as a whole."""
        key_size = NULL if key is None else varint(len(key))
        value_size = varint(len(value))
        rest = self._beside_size + len(key_size) + len(value_size) + _size_of(key, value)
        size = varint(rest)
        return size + self._time, key_size, value_size, len(size) + rest

    def fill(self, encoded: bytes, count: int, timestamp_ms: int) -> None:
        """Take records that were encoded elsewhere: offset deltas from 0 on, all at one time."""
        if self.count:
            raise ValueError("encoded records count their offsets from the first of the batch")
        self._move_time(timestamp_ms)
        self._parts = [encoded]
        self.count = count
        self.size += len(encoded)

    def build(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        compression: int = Compression.NONE,
        base_offset: int = 0,
        leader_epoch: int = -1,
    ) -> bytes:
        """The batch of all records so far; without any it is a ValueError."""
        if not self.count:
            raise ValueError("a batch needs a record")
        return seal(
            BatchHeader(
                base_offset=base_offset,
                length=0,
                leader_epoch=leader_epoch,
                magic=MAGIC,
                crc=0,
                attributes=compression | (TRANSACTIONAL if is_transactional else 0),
                last_offset_delta=self.count - 1,
                base_timestamp=self._base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=self.count,
            ),
            compress(compression, b"".join(self._parts)),
        )

    def _move_time(self, timestamp_ms: int) -> None:
        timestamp_ms = index(timestamp_ms)  # a TypeError here leaves the batch as it was
        if not -_TIMESTAMP_LIMIT < timestamp_ms < _TIMESTAMP_LIMIT:
            raise ValueError(f"a timestamp out of range: {timestamp_ms}")
        count = self.count
        if not count:
            self._base_timestamp = timestamp_ms
        elif count == self._offset_grows_at:
            self._offset_grows_at <<= 7
        if timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self._timestamp = timestamp_ms
        self._time = ZERO + varint(timestamp_ms - self._base_timestamp)
        self._beside_size = len(self._time) + len(varint(count)) + len(ZERO)


def build_batch(
    content: Iterable[tuple[bytes | None, bytes | None, Headers | None, int]],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    compression: int = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """One batch of (key, value, headers, timestamp in milliseconds); at least one record."""
    builder = BatchBuilder()
    append = builder.append
    for key, value, headers, timestamp_ms in content:
        append(key, value, headers, timestamp_ms)
    return builder.build(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        compression=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def _size_of(key: bytes | None, value: bytes) -> int:
    return len(value) if key is None else len(key) + len(value)


def encode_nullable(data: bytes | None) -> bytes:
    return NULL if data is None else varint(len(data)) + data


def encode_headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode(errors="surrogateescape")
        parts += (varint(len(encoded)), encoded, encode_nullable(value))
    return b"".join(parts)
