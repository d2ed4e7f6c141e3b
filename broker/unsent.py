"""Answers that were read from the logs and that their readers have not taken yet."""

from dualwrite.broker.call import Connection


class Unsent:
    """Counts them over all connections, so that readers who do not read cannot fill the memory.

    A connection has at most one large answer at a time. When the limit is reached, further answers
    hold one batch each: slow for everyone, and nobody is stuck.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Connection, int] = {}
        self._total = 0

    @property
    def room(self) -> int:
        """How large the next answer may be; at least one byte, for which a whole batch comes."""
        return max(self._limit - self._total, 1)

    def add(self, connection: Connection, size: int) -> None:
        """An answer of this size was read for a connection."""
        self.taken(connection)
        self._sizes[connection] = size
        self._total += size

    def taken(self, connection: Connection) -> None:
        """The peer has its answer, or is gone."""
        self._total -= self._sizes.pop(connection, 0)
