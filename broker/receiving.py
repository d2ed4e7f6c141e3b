"""What one socket receives, cut into frames.

Small things come through one buffer that all connections share, since the loop fills and empties it in
one go; so an idle connection owns none. A large frame is received where it stays: in a slab, which the
storage takes over with the batch in it and which serves again when the last view of it is gone. That
leaves out two copies in memory and, since a fresh buffer of that size is fresh pages, the kernel's
zeroing of them. Without a free slab a large frame is collected in pieces like any other.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from dualwrite.wire.frame import FRAME_BYTES_BEFORE_AUTHENTICATION, FrameReader

SHARED_BYTES: Final = 256 << 10
# One batch of the largest size that clients send by default, and what surrounds it.
SLAB_BYTES: Final = (1 << 20) + (64 << 10)
# They get free about in the order in which they were used: if these aren't, hardly any is.
_LOOKS: Final = 4
# A frame of which so much is still to come is worth one.
LARGE_MISSING: Final = 64 << 10
# Behind a large frame mostly comes another: read little more than its size in front of its slab.
_PEEK_BYTES: Final = 4 << 10


class Buffers:
    """The memory that all connections of a server receive into; its slabs take at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._slabs_max = max_bytes // SLAB_BYTES
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self._slabs: deque[bytearray] = deque()  # the one used last is the last

    def slab(self) -> memoryview | None:
        """A slab that nobody looks at any more, or None if there are enough of them in use."""
        slabs = self._slabs
        for _ in range(min(_LOOKS, len(slabs))):
            slab = slabs.popleft()
            slabs.append(slab)
            if _is_unseen(slab):
                return memoryview(slab)
        if len(slabs) >= self._slabs_max:
            return None
        slabs.append(bytearray(SLAB_BYTES))
        return memoryview(slabs[-1])

    def trim(self) -> None:
        """Free what is not in use; to be called now and then, not often."""
        self._slabs = deque(slab for slab in self._slabs if not _is_unseen(slab))


def _is_unseen(slab: bytearray) -> bool:
    """Python itself keeps count: as long as there is a view of a bytearray, it can't change size."""
    try:
        slab.append(slab.pop())
    except BufferError:
        return False
    return True


class Receiver:
    """One connection's side: says where the next bytes go, and what they complete."""

    __slots__ = ("_buffers", "_frame", "_have", "_pieces", "room")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._pieces = FrameReader(FRAME_BYTES_BEFORE_AUTHENTICATION)
        self.room = buffers.shared  # where the next bytes go
        self._frame: memoryview | None = None  # a large one, of which `_have` bytes have come
        self._have = 0

    def allow(self, max_bytes: int) -> None:
        """Frames of up to this size, from the next one on."""
        self._pieces.max_bytes = max_bytes

    def received(self, count: int) -> Sequence[bytes | memoryview]:
        """The frames that `count` bytes in `room` complete; a WireError ends the stream."""
        frame = self._frame
        if frame is None:
            pieces = self._pieces
            frames = pieces.feed(self.room[:count])
            self.room = self._buffers.shared
            if pieces.missing >= LARGE_MISSING:
                self._continue_in_slab()
            return frames
        self._have += count
        if self._have < len(frame):
            self.room = frame[self._have :]
            return []
        self._frame = None
        self.room = self._buffers.shared[:_PEEK_BYTES]
        return [frame]

    def _continue_in_slab(self) -> None:
        """Receive the rest of a frame where the whole of it is to lie, if there is such a place."""
        size = self._pieces.buffered + self._pieces.missing
        slab = self._buffers.slab() if size <= SLAB_BYTES else None
        if slab is not None:
            self._frame = slab[:size]
            self._have = self._pieces.move_to(slab)
            self.room = self._frame[self._have :]

    def drop(self) -> None:
        """Give a slab back: the connection is gone."""
        self._frame = None
        self.room = self._buffers.shared
