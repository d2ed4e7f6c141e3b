"""Where the first record lies whose fate a reader can't know yet.

A transaction holds readers back from its first record until it has ended *and* its marker is durable:
state changes as soon as an entry is added to the journal, the high watermark follows at the flush, and
in between a reader must not be let past a marker that a power loss could take back.
"""

from heapq import heappop, heappush


class Unstable:
    """First offsets of open transactions, and of ended ones whose markers aren't durable yet.

    Both are heaps, because transactions end in any order and there may be many. An open transaction
    that has ended leaves its heap only when it gets to the top.
    """

    __slots__ = ("_ended", "_open", "_open_heap")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # first offset -> producer id
        self._open_heap: list[int] = []
        self._ended: list[tuple[int, int]] = []  # first offset, offset of the marker

    def __len__(self) -> int:
        return len(self._open)

    @property
    def first_open(self) -> int | None:
        return self._open_heap[0] if self._open_heap else None

    def open(self, first_offset: int, producer_id: int) -> None:
        self._open[first_offset] = producer_id
        heappush(self._open_heap, first_offset)

    def end(self, first_offset: int, marker_offset: int) -> None:
        del self._open[first_offset]
        heap = self._open_heap
        while heap and heap[0] not in self._open:
            heappop(heap)
        heappush(self._ended, (first_offset, marker_offset))

    def producers(self) -> list[int]:
        """Producer ids with an open transaction, the oldest first."""
        return [self._open[first_offset] for first_offset in sorted(self._open)]

    def first(self, high_watermark: int) -> int | None:
        """The first unstable offset; `high_watermark` may only grow from call to call."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        if not ended:
            return self.first_open
        first_ended = ended[0][0]
        if not self._open_heap:
            return first_ended
        return min(first_ended, self._open_heap[0])
