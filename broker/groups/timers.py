"""Deadlines by name, on the steady clock."""

from collections.abc import Hashable
from heapq import heappop, heappush


class Timers:
    """Many deadlines of which each is moved far more often than it is reached.

    A deadline that moves later leaves its old place in the heap, which is corrected when it comes up;
    so a heartbeat costs one dictionary write.
    """

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._queued: dict[Hashable, int] = {}  # the earliest place of a name in the heap
        self._count = 0  # keeps the heap from comparing names

    def __contains__(self, name: Hashable) -> bool:
        return name in self._at

    def set(self, name: Hashable, at_ms: int) -> None:
        """Start a deadline, or move it."""
        self._at[name] = at_ms
        queued = self._queued.get(name)
        if queued is None or at_ms < queued:
            self._queue(name, at_ms)

    def cancel(self, name: Hashable) -> None:
        """Forget a deadline, if it is there."""
        self._at.pop(name, None)

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        while self._heap:
            at, _, name = self._heap[0]
            wanted = self._at.get(name)
            if wanted == at:
                return at
            heappop(self._heap)
            if self._queued.get(name) == at:
                del self._queued[name]
                if wanted is not None:
                    self._queue(name, wanted)
        return None

    def pop_due(self, now_ms: int) -> Hashable | None:
        """Take one name whose deadline has come, the earliest first; None if there is none."""
        at = self.next_ms()
        if at is None or at > now_ms:
            return None
        _, _, name = heappop(self._heap)
        del self._at[name]
        if self._queued.get(name) == at:
            del self._queued[name]
        return name

    def _queue(self, name: Hashable, at_ms: int) -> None:
        self._count += 1
        self._queued[name] = at_ms
        heappush(self._heap, (at_ms, self._count, name))
