"""Entries: what becomes durable all at once or not at all, and their bytes in the journal.

An entry is a list of items. Its payload is the two clocks, then item after item:

    wall_ms i64, steady_ms i64, { kind u8, topic id 16 bytes, partition i32, size u32, content }*

The journal's checksum runs over the payload, hence over topic id, partition and (inside the batch)
base offset: a write that landed in the wrong place never passes for another one.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.disk import Buffer
from dualwrite.wire.records import BatchHeader

PartitionKey: TypeAlias = tuple[bytes, int]

_CLOCKS = struct.Struct(">qq")
_ITEM = struct.Struct(">B16siI")
_OFFSET = struct.Struct(">q")
_COUNTS = struct.Struct(">qHHI")
_REMOVED = struct.Struct(">qi")
_ADDED = struct.Struct(">qiqqqq")

_APPEND: Final = 1
_CREATE: Final = 2
_DELETE: Final = 3
_LOG_START: Final = 4
_META: Final = 5
_ROLL: Final = 6
_SWAP: Final = 7

_NOBODY: Final = bytes(16)
# Below this size it is cheaper to copy a buffer than to hand it to the kernel on its own.
COPY_BELOW: Final = 16 << 10


@dataclass(slots=True)
class Append:
    """One record batch for a log. `Storage.add` sets `base_offset`, also in the bytes it keeps.

    These are a copy, unless `batch` is a large view that can be written to: then it is the storage's
    from there on. Give `header` if it is already parsed.
    """

    key: PartitionKey
    batch: Buffer
    header: BatchHeader | None = None
    leader_epoch: int = 0
    base_offset: int = -1


@dataclass(slots=True)
class CreateLog:
    key: PartitionKey


@dataclass(slots=True)
class DeleteLog:
    key: PartitionKey


@dataclass(slots=True)
class LogStart:
    """Forget everything below `offset`."""

    key: PartitionKey
    offset: int


@dataclass(slots=True)
class Roll:
    """Close the active segment; the next batch begins a new one.

    Journalled, since a replay does not know the settings that were in force at the time.
    """

    key: PartitionKey
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """What the journal and the checkpoint remember of a segment."""

    base_offset: int
    generation: int
    size: int
    end_offset: int
    max_timestamp: int
    # The broker's wall clock at the first append, for closing a segment by age.
    created_ms: int


@dataclass(slots=True)
class Swap:
    """Put compacted segments, already durable, in the place of `removed` (base, generation)."""

    key: PartitionKey
    cleaned_to: int
    removed: tuple[tuple[int, int], ...]
    added: tuple[SegmentInfo, ...]
    # Offsets of markers of aborted transactions that are no longer there.
    markers_gone: tuple[int, ...] = ()


@dataclass(slots=True)
class Meta:
    """A record of the caller's own; handed back on recovery."""

    payload: Buffer


Item: TypeAlias = Append | CreateLog | DeleteLog | LogStart | Roll | Swap | Meta
Entry: TypeAlias = list[Item]


class Encoder:
    """Collects an entry's payload as buffers, copying the small and keeping the large as they are."""

    __slots__ = ("_head", "parts", "size")

    def __init__(self, now: Now) -> None:
        self._head = bytearray(_CLOCKS.pack(*now))
        self.parts: list[Buffer] = [self._head]
        self.size = 0

    def append(self, key: PartitionKey, batch: Buffer) -> None:
        self._item(_APPEND, key, batch)

    def item(self, item: Item) -> None:
        match item:
            case CreateLog(key):
                self._item(_CREATE, key, b"")
            case DeleteLog(key):
                self._item(_DELETE, key, b"")
            case LogStart(key, offset):
                self._item(_LOG_START, key, _OFFSET.pack(offset))
            case Roll(key, base_offset):
                self._item(_ROLL, key, _OFFSET.pack(base_offset))
            case Swap(key):
                self._item(_SWAP, key, _encode_swap(item))
            case Meta(payload):
                self._item(_META, (_NOBODY, 0), payload)
            case Append(key, batch):
                self._item(_APPEND, key, batch)

    def _item(self, kind: int, key: PartitionKey, content: Buffer) -> None:
        head = self._head
        head += _ITEM.pack(kind, key[0], key[1], len(content))
        if len(content) < COPY_BELOW:
            head += content
            return
        self.size += len(head) + len(content)
        self._head = bytearray()
        self.parts += (content, self._head)

    def finish(self) -> "EncodedEntry":
        if len(self._head):
            self.size += len(self._head)
        else:
            self.parts.pop()
        return EncodedEntry(self.parts, self.size)


class EncodedEntry:
    """An entry's payload, ready for the journal."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[Buffer], size: int) -> None:
        self.parts = parts
        self.size = size


def decode_entry(payload: memoryview) -> tuple[Now, Iterator[Item]]:
    """Read a payload whose checksum was right. Batches are copied out of the journal's buffer."""
    return Now(*_CLOCKS.unpack_from(payload)), _items(payload)


def _items(payload: memoryview) -> Iterator[Item]:
    position = _CLOCKS.size
    end = len(payload)
    while position < end:
        kind, topic_id, partition, size = _ITEM.unpack_from(payload, position)
        position += _ITEM.size
        content = payload[position : position + size]
        if kind == _APPEND:  # nearly all of them
            yield Append((topic_id, partition), bytes(content))
        else:
            yield _decode(kind, (topic_id, partition), content)
        position += size


def _decode(kind: int, key: PartitionKey, content: memoryview) -> Item:
    match kind:
        case 2:
            return CreateLog(key)
        case 3:
            return DeleteLog(key)
        case 4:
            return LogStart(key, *_OFFSET.unpack(content))
        case 5:
            return Meta(bytes(content))
        case 6:
            return Roll(key, *_OFFSET.unpack(content))
        case 7:
            return _decode_swap(key, content)
    raise ValueError(f"journal holds an item of kind {kind}, written by a later version")


def _encode_swap(swap: Swap) -> bytes:
    counts = len(swap.removed), len(swap.added), len(swap.markers_gone)
    parts = [_COUNTS.pack(swap.cleaned_to, *counts)]
    parts += [_REMOVED.pack(*pair) for pair in swap.removed]
    parts += [encode_segment_info(info) for info in swap.added]
    parts += [_OFFSET.pack(offset) for offset in swap.markers_gone]
    return b"".join(parts)


def _decode_swap(key: PartitionKey, content: memoryview) -> Swap:
    cleaned_to, removed_count, added_count, gone_count = _COUNTS.unpack_from(content)
    position = _COUNTS.size
    removed = []
    for _ in range(removed_count):
        removed.append(_REMOVED.unpack_from(content, position))
        position += _REMOVED.size
    added = []
    for _ in range(added_count):
        added.append(decode_segment_info(content, position))
        position += SEGMENT_INFO_SIZE
    gone = struct.unpack_from(f">{gone_count}q", content, position)
    return Swap(key, cleaned_to, tuple(removed), tuple(added), gone)


SEGMENT_INFO_SIZE: Final = _ADDED.size


def encode_segment_info(info: SegmentInfo) -> bytes:
    return _ADDED.pack(
        info.base_offset,
        info.generation,
        info.size,
        info.end_offset,
        info.max_timestamp,
        info.created_ms,
    )


def decode_segment_info(data: Buffer, position: int) -> SegmentInfo:
    base, generation, size, end, max_timestamp, created_ms = _ADDED.unpack_from(data, position)
    return SegmentInfo(
        base_offset=base,
        generation=generation,
        size=size,
        end_offset=end,
        max_timestamp=max_timestamp,
        created_ms=created_ms,
    )
