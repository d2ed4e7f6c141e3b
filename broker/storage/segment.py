"""One segment: a file of record batches, and the tail of it that is not in the file yet.

Batches arrive in the tail. They are written to the file when the journal has made them durable and
enough of them have come together; until then reads are served from memory.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from dualwrite.broker.producers import AbortedTxn, decode_aborted, encode_aborted
from dualwrite.broker.storage.disk import Buffer, File
from dualwrite.broker.storage.entry import SegmentInfo
from dualwrite.broker.storage.errors import StorageError
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.index import ForeignIndex, SegmentIndex
from dualwrite.wire.records import (
    NO_TIMESTAMP,
    BatchError,
    BatchHeader,
    batches,
    check_crc,
    control_batch,
)

# Base offset, length behind this field, ..., last offset delta: all that walking needs.
_WALK = struct.Struct(">qi11xi")
_LENGTH_END = 12
_SCAN_BYTES = 4 << 20
_CHECKSUM = struct.Struct(">I")


class DamagedSegment(StorageError):
    """The file does not hold what was written to it."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {what}")
        self.path = path
        self.position = position


class Damage(NamedTuple):
    """A stretch of a file that does not hold what was written to it."""

    position: int
    size: int
    first_offset: int
    end_offset: int


class Segment:
    """Batches with offsets from `base_offset` to below `end_offset`."""

    __slots__ = (
        "_index",
        "_interval",
        "_tail",
        "_tail_offsets",
        "_tail_times",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "generation",
        "is_sealed",
        "is_synced",
        "max_timestamp",
        "size",
        "tail_size",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        interval: int,
        *,
        generation: int = 0,
        created_ms: int = -1,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.generation = generation
        self.end_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.created_ms = created_ms
        # Bytes synced; indexes on disk.
        self.is_synced = True
        self.is_sealed = False
        self._interval = interval
        self._index: SegmentIndex | None = SegmentIndex(interval)
        self._tail: list[Buffer] = []
        self._tail_offsets: list[int] = []
        self._tail_times: list[int] = []
        self.tail_size = 0

    @classmethod
    def restore(
        cls, directory: str, info: SegmentInfo, index: Buffer | None, interval: int
    ) -> "Segment":
        """A segment whose bytes are all in its file; without `index` it is loaded when needed."""
        segment = cls(directory, info.base_offset, interval)
        segment.generation = info.generation
        segment.end_offset = info.end_offset
        segment.size = info.size
        segment.max_timestamp = info.max_timestamp
        segment.created_ms = info.created_ms
        segment._index = None if index is None else SegmentIndex.decode(index, segment.stem)
        segment.is_sealed = index is None
        return segment

    @property
    def stem(self) -> str:
        return f"{self.directory}/{self.base_offset:020d}.{self.generation}"

    @property
    def path(self) -> str:
        return f"{self.stem}.log"

    @property
    def index_path(self) -> str:
        return f"{self.stem}.index"

    @property
    def aborted_path(self) -> str:
        return f"{self.stem}.txnindex"

    @property
    def written(self) -> int:
        """How many bytes the file holds."""
        return self.size - self.tail_size

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            base_offset=self.base_offset,
            generation=self.generation,
            size=self.size,
            end_offset=self.end_offset,
            max_timestamp=self.max_timestamp,
            created_ms=self.created_ms,
        )

    # Writing

    def append(self, batch: Buffer, base_offset: int, end_offset: int, max_timestamp: int) -> None:
        size = len(batch)
        self._tail.append(batch)
        self._tail_offsets.append(base_offset)
        self._tail_times.append(max_timestamp)
        self.tail_size += size
        self.size += size
        self.end_offset = end_offset
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def write_behind(self, files: FileCache, durable_end: int) -> int:
        """Move the tail's batches below `durable_end` to the file; says how many bytes."""
        count = bisect_left(self._tail_offsets, durable_end)
        if not count:
            return 0
        batches = self._tail[:count]
        size = sum(map(len, batches))
        self._file(files).writev(batches, self.written)
        index = self.index(files)
        for batch, offset, time in zip(batches, self._tail_offsets, self._tail_times, strict=False):
            index.extend(offset, time, batch)
        del self._tail[:count], self._tail_offsets[:count], self._tail_times[:count]
        self.tail_size -= size
        self.is_synced = False
        return size

    def _file(self, files: FileCache) -> File:
        # The first bytes make the file anew: one that a killed process left may have no durable name.
        if self.written:
            try:
                return files.open(self.path)
            except FileNotFoundError:
                pass  # recovery knows, and takes the log offline
        return files.create(self.path)

    def finish(self, files: FileCache) -> None:
        """Write all that is left and sync; for a segment that nobody reads yet."""
        self.write_behind(files, self.end_offset)
        if self.size:
            files.sync(self.path)

    # Reading

    def index(self, files: FileCache) -> SegmentIndex:
        """The index of what the file holds, read or made anew if it is not in memory."""
        if self._index is None:
            self._index = self._load_index(files)
        return self._index

    def has_index(self) -> bool:
        return self._index is not None

    def drop_index(self) -> None:
        """Free the memory; only for a closed segment whose index is on disk."""
        self._index = None

    def _load_index(self, files: FileCache) -> SegmentIndex:
        try:
            file = files.open(self.index_path)
            index = SegmentIndex.decode(file.pread(file.size(), 0), self.stem)
            if index.end == self.size:
                return index
        except ForeignIndex as error:
            # Then the batches may be foreign, too, however sound they are.
            raise DamagedSegment(self.path, 0, "its index is another segment's") from error
        except (FileNotFoundError, ValueError):
            pass
        return self.scan(files, SegmentIndex(self._interval))

    def load_aborted(self, files: FileCache) -> list[AbortedTxn]:
        """The aborted transactions whose markers lie here; a ValueError if they can't be read."""
        try:
            data = files.read(self.aborted_path)
        except FileNotFoundError:
            return []
        content, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
        if self._aborted_checksum(content) != checksum:
            raise ValueError(f"{self.aborted_path} is damaged")
        return decode_aborted(content)

    def _aborted_checksum(self, content: Buffer) -> bytes:
        """Of the content and whose it is."""
        return _CHECKSUM.pack(crc32c(content, crc32c(self.stem.encode())))

    def seal(self, files: FileCache, aborted: list[AbortedTxn]) -> None:
        """Write the indexes of a closed segment, durable but for their names."""
        files.write(self.index_path, self.index(files).encode(self.stem))
        if aborted:
            content = encode_aborted(aborted)
            files.write(self.aborted_path, content + self._aborted_checksum(content))
        else:
            files.unlink(self.aborted_path)
        self.is_sealed = True

    def scan(self, files: FileCache, index: SegmentIndex) -> SegmentIndex:
        """Make the index anew from the batches, checked by their own checksums and their order."""
        expected = self.base_offset
        try:
            while index.end < self.written:
                data = self._raw(files, index.end, _SCAN_BYTES)
                length = BatchHeader.parse(data).length
                if length > self.written - index.end:
                    raise DamagedSegment(self.path, index.end, f"a batch of {length} bytes")
                if length > len(data):
                    data = self._raw(files, index.end, length)
                for position, header in batches(data, cut_tail=True):
                    batch = data[position : position + header.length]
                    if header.base_offset < expected or not check_crc(batch, header):
                        raise DamagedSegment(self.path, index.end, "batch checksum does not fit")
                    index.extend(header.base_offset, header.max_timestamp, batch)
                    expected = header.last_offset + 1
        except BatchError as error:
            raise DamagedSegment(self.path, index.end, str(error)) from error
        if expected > self.end_offset:
            raise DamagedSegment(self.path, index.end, "offsets run past the segment's end")
        return index

    def _raw(self, files: FileCache, position: int, size: int) -> memoryview:
        size = min(size, self.written - position)
        try:
            data = files.open(self.path).pread(size, position)
        except OSError as error:
            raise DamagedSegment(self.path, position, str(error)) from error
        if len(data) < size:
            raise DamagedSegment(self.path, position + len(data), "the file ends here")
        return memoryview(data)

    def batches(self, files: FileCache) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch in order, its bytes checked; for a segment that is all in its file."""
        assert not self.tail_size
        for stretch in range(len(self.index(files))):
            data = self.stretches(files, stretch, stretch)
            for position, header in batches(data):
                yield header, data[position : position + header.length]

    def damages(self, files: FileCache) -> list[Damage]:
        """Every damaged stretch of the file."""
        index = self.index(files)
        found = []
        for stretch in range(len(index)):
            try:
                self.stretches(files, stretch, stretch)
            except DamagedSegment:
                following = stretch + 1
                end = index.offsets[following] if following < len(index) else self.end_offset
                begin = index.positions[stretch]
                size = index.stop(stretch) - begin
                found.append(Damage(begin, size, index.offsets[stretch], end))
        return found

    def without_damage(self, files: FileCache, aborted: list[AbortedTxn]) -> "Segment":
        """A new generation of this segment that holds its intact stretches, durable but for names.

        `aborted` are the transactions whose markers lie here. A marker that is lost is put back:
        without it a consumer would go on leaving out the producer's records.
        """
        target = Segment(
            self.directory,
            self.base_offset,
            self._interval,
            generation=self.generation + 1,
            created_ms=self.created_ms,
        )
        lost = self.damages(files)
        for header, batch in sorted(
            (*self._intact(files), *_markers(aborted, lost)), key=lambda pair: pair[0].base_offset
        ):
            end = header.last_offset + 1
            target.append(batch, header.base_offset, end, header.max_timestamp)
        target.end_offset = self.end_offset
        target.finish(files)
        target.seal(files, aborted)
        return target

    def _intact(self, files: FileCache) -> Iterator[tuple[BatchHeader, Buffer]]:
        for stretch in range(len(self.index(files))):
            try:
                data = self.stretches(files, stretch, stretch)
            except DamagedSegment:
                continue
            for position, header in batches(data):
                yield header, data[position : position + header.length]

    def from_time(self, files: FileCache, timestamp: int) -> Iterator[tuple[BatchHeader, Buffer]]:
        """The batches from the first on that may hold a record of this time or later."""
        if self.written:
            index = self.index(files)
            first = index.find_time(timestamp)
            for stretch in range(len(index) if first is None else first, len(index)):
                data = self.stretches(files, stretch, stretch)
                for position, header in batches(data):
                    if header.max_timestamp >= timestamp:
                        yield header, data[position : position + header.length]
        for batch, largest in zip(self._tail, self._tail_times, strict=True):
            if largest >= timestamp:
                yield BatchHeader.parse(batch), batch

    def read(
        self, files: FileCache, offset: int, max_bytes: int, upper: int, out: list[Buffer]
    ) -> int:
        """Add whole batches to `out`, from the one that contains `offset` (or the first behind it).

        Stops below `upper` and before `max_bytes` are passed, but with an empty `out` gives one
        batch at least. Returns the bytes added, or -1 if it stopped before the segment's end.
        """
        taken = 0
        tail = self._tail_offsets
        if self.written and (not tail or offset < tail[0]):
            taken, is_at_end = self._read_file(files, offset, max_bytes, upper, out)
            if not is_at_end:
                return -1
        first = max(0, bisect_right(tail, offset) - 1)
        for number in range(first, len(tail)):
            batch = self._tail[number]
            if tail[number] >= upper or (out and taken + len(batch) > max_bytes):
                return -1
            out.append(batch)
            taken += len(batch)
        return taken

    def _read_file(
        self, files: FileCache, offset: int, max_bytes: int, upper: int, out: list[Buffer]
    ) -> tuple[int, bool]:
        """Like `read` for the file alone; says how much, and whether the file was exhausted."""
        index = self.index(files)
        first = index.find(offset)
        while True:
            last = self._last_stretch(index, first, max_bytes, upper)
            data = self.stretches(files, first, last)
            start = _position_of(data, offset)
            if start < len(data) or last + 1 == len(index):
                break
            first = last + 1  # a gap that the cleaner left
        # Whole stretches that fit need no look at their batches.
        origin = index.positions[first]
        skip = bisect_right(index.positions, origin + start + max_bytes) - 1
        skip = min(skip, bisect_left(index.offsets, upper) - 1)
        sure = max(start, index.positions[skip] - origin) if skip > first else start
        stop = _walk_end(data, start, sure, max_bytes, upper, is_first=not out)
        if stop > start:
            out.append(data[start:stop])
        return stop - start, index.positions[first] + stop == index.end

    def _last_stretch(self, index: SegmentIndex, first: int, max_bytes: int, upper: int) -> int:
        last = bisect_left(index.positions, index.stop(first) + max_bytes, first + 1) - 1
        return max(first, min(last, bisect_left(index.offsets, upper) - 1))

    def stretches(self, files: FileCache, first: int, last: int) -> memoryview:
        """The bytes from stretch `first` to the end of `last`; raises `DamagedSegment`."""
        index = self.index(files)
        start = index.positions[first]
        data = self._raw(files, start, index.stop(last) - start)
        bad = index.first_bad(data, first)
        if bad is not None:
            raise DamagedSegment(self.path, bad, "checksum does not fit")
        return data


def _markers(aborted: list[AbortedTxn], lost: list[Damage]) -> Iterator[tuple[BatchHeader, Buffer]]:
    """New markers for the aborted transactions whose own were lost."""
    for txn in aborted:
        if any(d.first_offset <= txn.last_offset < d.end_offset for d in lost):
            batch = control_batch(
                commit=False,
                producer_id=txn.producer_id,
                producer_epoch=0,  # which one it was is not known, and no consumer looks at it
                coordinator_epoch=0,
                timestamp_ms=NO_TIMESTAMP,
                base_offset=txn.last_offset,
                leader_epoch=0,
            )
            yield BatchHeader.parse(batch), batch


def _position_of(data: memoryview, offset: int) -> int:
    """Where the first batch lies that ends at or behind `offset`; the end if there is none."""
    position = 0
    end = len(data)
    while position < end:
        base, length, delta = _WALK.unpack_from(data, position)
        if base + delta >= offset:
            return position
        position += length + _LENGTH_END
    return position


def _walk_end(
    data: memoryview, start: int, sure: int, max_bytes: int, upper: int, *, is_first: bool
) -> int:
    """The end of the batches from `start` that lie below `upper` and within `max_bytes`.

    All before `sure` are known to do so.
    """
    position = sure
    end = len(data)
    while position < end:
        base, length, _ = _WALK.unpack_from(data, position)
        stop = position + length + _LENGTH_END
        if base >= upper or (stop - start > max_bytes and not (is_first and position == start)):
            break
        position = stop
    return position
