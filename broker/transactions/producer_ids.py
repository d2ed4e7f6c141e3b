"""Producer ids: each is given out once in the life of a data directory, and in no other one's.

Ids are taken from blocks; a block's end is journalled before the first reply that carries one of its
ids, and a restart goes on behind it. The first block begins at a place drawn from time and chance: a
wiped data directory never hands out a pair again that somebody's database still remembers as prepared.
"""

from typing import Final, Protocol

BLOCK: Final = 1000
_BLOCKS_PER_SECOND: Final = 1000
_LARGEST: Final = 2**63 - 1


class ProducerIdSource(Protocol):
    """Where the coordinator gets fresh producer ids."""

    def take(self) -> int | None:
        """An id that was never given out before; None if there is none at the moment."""
        ...


def first_producer_id(wall_ms: int, chance: int) -> int:
    """Where a new data directory begins; `chance` is any random number.

    Seconds make it later than what an earlier directory can have used up, chance keeps apart what was
    born in the same second. It stays below 2^53 for readers whose numbers are floats.
    """
    return (max(wall_ms, 0) // 1000 * _BLOCKS_PER_SECOND + chance % _BLOCKS_PER_SECOND) * BLOCK


class ProducerIds:
    """A counter with a durable upper bound.

    The node adds `unsaved` to the entry that it journals next, before anything else in it, then calls
    `replay` with it, exactly as it does when it loads.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._saved = first
        self._reserved = first

    def take(self) -> int | None:
        if self._next >= _LARGEST:
            return None
        producer_id = self._next
        self._next += 1
        if self._next > self._reserved:
            self._reserved = self._next + BLOCK - 1
        return producer_id

    @property
    def unsaved(self) -> int | None:
        """The end of the block in use, if it still has to be journalled."""
        return self._reserved if self._reserved > self._saved else None

    def replay(self, end: int) -> None:
        """The journal holds `end`: ids below it may have been given out."""
        self._saved = max(self._saved, end)
        if end > self._reserved:
            self._reserved = self._next = end

    def snapshot(self) -> int:
        """What a checkpoint must remember; given to `replay` when it is loaded."""
        return self._saved
