"""Where a segment's batches lie, what times they hold, and a checksum over each stretch of them.

A segment is cut into stretches of whole batches, about `interval` bytes each. For every stretch the
index keeps its first offset, its position, the largest timestamp of the segment up to its end, and the
CRC-32C of its bytes. A batch's own checksum leaves out the base offset and the leader epoch, so it is
this one that a read checks: no bit of a segment is served that was not written. It names its segment,
so that another one's sound files in its place are noticed as well.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from crc32c import crc32c

from dualwrite.broker.storage.disk import Buffer

_HEAD = struct.Struct(">IIqIII")
_MAGIC: Final = 0x64775832


class ForeignIndex(Exception):
    """An index that is sound, and another segment's."""


class SegmentIndex:
    """The stretches of one segment, in order. Grows while the segment does."""

    __slots__ = ("crcs", "end", "interval", "offsets", "positions", "times")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.crcs = array("I")
        self.end = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, base_offset: int, max_timestamp: int, batch: Buffer) -> None:
        """Take in the batch that was written at `end`."""
        if self.offsets and self.end - self.positions[-1] < self.interval:
            self.crcs[-1] = crc32c(batch, self.crcs[-1])
            if max_timestamp > self.times[-1]:
                self.times[-1] = max_timestamp
        else:
            self.offsets.append(base_offset)
            self.positions.append(self.end)
            largest = self.times[-1] if self.times else -1
            self.times.append(max(largest, max_timestamp))
            self.crcs.append(crc32c(batch))
        self.end += len(batch)

    def find(self, offset: int) -> int:
        """The last stretch that begins at or below `offset`, or the first one."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def find_time(self, timestamp: int) -> int | None:
        """The first stretch that holds a batch with a timestamp of at least this."""
        found = bisect_left(self.times, timestamp)
        return found if found < len(self.times) else None

    def stop(self, stretch: int) -> int:
        """The position behind a stretch."""
        following = stretch + 1
        return self.positions[following] if following < len(self.positions) else self.end

    def first_bad(self, data: Buffer, first: int) -> int | None:
        """Check `data`, the bytes of whole stretches from `first` on; the position of a bad one."""
        view = memoryview(data)
        start = self.positions[first]
        stretch = first
        position = 0
        while position < len(view):
            stop = self.stop(stretch) - start
            if stop > len(view) or crc32c(view[position:stop]) != self.crcs[stretch]:
                return start + position
            position = stop
            stretch += 1
        return None

    def encode(self, name: str) -> bytes:
        body = b"".join(a.tobytes() for a in (self.offsets, self.positions, self.times, self.crcs))
        owner = crc32c(name.encode())
        rest = _HEAD.pack(_MAGIC, 0, self.end, self.interval, len(self.offsets), owner)[8:]
        return struct.pack(">II", _MAGIC, crc32c(body, crc32c(rest))) + rest + body

    @classmethod
    def decode(cls, data: Buffer, name: str) -> "SegmentIndex":
        """Read an encoded index; a ValueError if it is damaged, ForeignIndex if `name` is not its own."""
        try:
            magic, checksum, end, interval, count, owner = _HEAD.unpack_from(data)
        except struct.error as error:
            raise ValueError(f"index is too short: {error}") from error
        view = memoryview(data)
        if magic != _MAGIC or crc32c(view[8:]) != checksum:
            raise ValueError("index is damaged")
        if owner != crc32c(name.encode()):
            raise ForeignIndex
        index = cls(interval)
        index.end = end
        position = _HEAD.size
        for column in (index.offsets, index.positions, index.times, index.crcs):
            size = column.itemsize * count
            column.frombytes(view[position : position + size])
            position += size
        return index
