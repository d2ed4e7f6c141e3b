"""`Burst`: records that `produce` has taken in quick succession and not yet put into batches.

Most records are like the one before: for the same topic, nothing but key and value, within the same
millisecond. They are taken without a lock, and put into batches together, at a fraction of what each
would cost alone.

    burst.pairs.append(pair)                     # any thread
    if burst is not the open one any more:       # closed meanwhile, maybe before the pair was in it
        with lock:
            if burst.has_missed(pair): ...       # it was: nobody has taken it

Whoever holds the lock closes the open burst before doing anything else. A list takes an element in
one step: what was in time went into a batch, and what was not is found behind it.
"""

from dataclasses import dataclass, field

from dualwrite.wire.records import Pair


@dataclass(slots=True, eq=False)
class Burst:
    """Records that share all but key and value; one that is made without arguments takes none."""

    topic: str = ""
    partition: int = -1
    key_type: type[object] = object
    """Either all have a key or none has one."""
    count_max: int = 0
    bytes_max: int = -1
    """How long a key and a value may be."""
    timestamp_ms: int = 0
    now_ms: float = 0.0
    until: float = 0.0
    """From when on it takes nothing, in seconds of the monotonic clock."""
    pairs: list[Pair] = field(default_factory=list)
    _count: int = 0

    def close(self) -> list[Pair]:
        """The records that were in time."""
        self._count = len(self.pairs)
        return self.pairs[: self._count]

    def has_missed(self, pair: Pair) -> bool:
        """Whether the record came too late; it is forgotten then."""
        for place in range(self._count, len(self.pairs)):
            if self.pairs[place] is pair:
                del self.pairs[place]
                return True
        return False
