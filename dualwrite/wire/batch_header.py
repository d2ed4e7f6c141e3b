"""The header of a record batch (version 2, KIP-98), and all that can be done by it alone.

The checksum begins at the attributes, so that a broker can write the base offset and the leader
epoch into the bytes that arrived and keep everything else as it came: its path is `check_batch` and
`patch_offset`; no record is taken apart.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from crc32c import crc32c

from dualwrite.wire.compression import Compression
from dualwrite.wire.error_codes import ErrorCode

Data: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = 2
HEADER_SIZE: Final = 61

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_LENGTH_END: Final = 12  # the length field counts the bytes behind itself
_CRC_FROM: Final = 21
_RECORD_SIZE_MIN: Final = 7  # every field of a record takes a byte at least

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")


class BatchError(ValueError):
    """A batch that must not be stored or can't be read; `code` is what a producer is told."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, kw_only=True)
class BatchHeader:
    """The header of one batch; `length` counts all its bytes, header included."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, data: Data, position: int = 0) -> "BatchHeader":
        """Read the header at `position`; raises `BatchError` unless it can be one of version 2."""
        header = cls.__new__(cls)
        try:
            (
                header.base_offset,
                length,
                header.leader_epoch,
                header.magic,
                header.crc,
                header.attributes,
                header.last_offset_delta,
                header.base_timestamp,
                header.max_timestamp,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
            ) = _HEADER.unpack_from(data, position)
        except struct.error:
            raise BatchError(
                ErrorCode.CORRUPT_MESSAGE,
                f"batch header needs {HEADER_SIZE} bytes, {len(data) - position} are left",
            ) from None
        if header.magic != MAGIC:
            raise BatchError(ErrorCode.INVALID_RECORD, f"batch has magic {header.magic}, not 2")
        header.length = length + _LENGTH_END
        if header.length < HEADER_SIZE:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"batch claims a length of {length}")
        return header

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON != 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (0 follows 2147483647); -1 without sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def check_crc(data: Data, header: BatchHeader, position: int = 0) -> bool:
    """Whether the checksum fits; `data` holds the whole batch at `position`."""
    body = memoryview(data)[position + _CRC_FROM : position + header.length]
    return crc32c(body) == header.crc


def check_batch(data: Data) -> BatchHeader:
    """Everything that a broker can ask of a produced batch without taking its records apart.

    `data` must be one whole batch. Raises `BatchError` with the code for the producer. What depends
    on who sends it (control batches, sequences) is `ProducerStates.check`'s.
    """
    header = BatchHeader.parse(data)
    if header.length > len(data):
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE, f"batch of {header.length} bytes is cut at {len(data)}"
        )
    if header.length < len(data):
        raise BatchError(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if crc32c(memoryview(data)[_CRC_FROM:]) != header.crc:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "batch checksum does not fit")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"batch has {header.record_count} records and offset delta {header.last_offset_delta}",
        )
    compression = header.attributes & COMPRESSION_MASK
    if not compression and header.record_count * _RECORD_SIZE_MIN > header.length - HEADER_SIZE:
        raise BatchError(ErrorCode.INVALID_RECORD, f"no room for {header.record_count} records")
    if compression > Compression.ZSTD:
        raise BatchError(ErrorCode.INVALID_RECORD, f"unknown compression {compression}")
    if header.attributes & LOG_APPEND_TIME:
        raise BatchError(ErrorCode.INVALID_TIMESTAMP, "log append time is the broker's to set")
    if header.attributes & DELETE_HORIZON:
        raise BatchError(ErrorCode.INVALID_RECORD, "a delete horizon is the broker's to set")
    return header


def patch_offset(
    buffer: bytearray | memoryview, base_offset: int, leader_epoch: int = 0, position: int = 0
) -> None:
    """Write the log's numbers into the batch at `position`; both lie outside the checksum."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LENGTH_END, leader_epoch)


def batches(data: Data, *, cut_tail: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over batches lying one behind the other, as a segment or a fetch response holds them.

    With `cut_tail` a last batch that is not all there ends the walk, else it is a `BatchError`.
    Checksums are not looked at.
    """
    position = 0
    end = len(data)
    while position < end:
        if end - position < HEADER_SIZE and cut_tail:
            return
        header = BatchHeader.parse(data, position)
        if position + header.length > end:
            if cut_tail:
                return
            raise BatchError(
                ErrorCode.CORRUPT_MESSAGE,
                f"batch of {header.length} bytes at {position} is cut at {end}",
            )
        yield position, header
        position += header.length


def seal(header: BatchHeader, payload: bytes) -> bytes:
    """A whole batch: `header`, in which length and checksum are set, and `payload`."""
    tail = _AFTER_CRC.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    header.length = HEADER_SIZE + len(payload)
    header.crc = crc32c(payload, crc32c(tail))
    front = _BEFORE_CRC.pack(
        header.base_offset, header.length - _LENGTH_END, header.leader_epoch, MAGIC, header.crc
    )
    return b"".join((front, tail, payload))
