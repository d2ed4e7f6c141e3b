"""Deadlines of very many ids, most of which move before they are reached."""

from heapq import heappop, heappush


class Timers:
    """At most one live alarm per id, never later than the id's deadline.

    A deadline that moves back costs nothing: the alarm goes off early, and whoever takes it looks at the
    id and arms it again. So a million idle ids cost a million entries and no work.
    """

    __slots__ = ("_alarms", "_heap")

    def __init__(self) -> None:
        self._alarms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._alarms)

    def arm(self, key: str, at_ms: int) -> None:
        """Have `key` come out of `due` at `at_ms` or earlier."""
        alarm = self._alarms.get(key)
        if alarm is None or at_ms < alarm:
            self._alarms[key] = at_ms
            heappush(self._heap, (at_ms, key))

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Take at most `limit` ids whose alarms have gone off; arm those again that must come back."""
        heap = self._heap
        keys: list[str] = []
        while heap and heap[0][0] <= now_ms and len(keys) < limit:
            at_ms, key = heappop(heap)
            if self._alarms.get(key) == at_ms:
                del self._alarms[key]
                keys.append(key)
        return keys

    def next_ms(self) -> int | None:
        """When the next alarm goes off, perhaps for nothing."""
        return self._heap[0][0] if self._heap else None
