"""Calls that wait for records: long-poll fetches, by partition and by deadline."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from dualwrite.broker.call import Call, Connection
from dualwrite.broker.clock import Now
from dualwrite.broker.storage.entry import PartitionKey

_STALE_MAX: Final = 64


@dataclass(slots=True, eq=False)
class Waiter:
    """One waiting call. `attempt(now, is_last)` gives its response, or None to go on waiting."""

    call: Call[Any]
    keys: frozenset[PartitionKey]
    deadline_ms: int
    attempt: Callable[[Now, bool], Any]
    is_done: bool = field(default=False, init=False)


class Waiting:
    """All waiting calls. Deadlines are in running time."""

    def __init__(self) -> None:
        self._by_key: dict[PartitionKey, dict[Waiter, None]] = {}
        self._by_connection: dict[Connection, Waiter] = {}
        self._deadlines: list[tuple[int, int, Waiter]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._by_connection)

    def add(self, waiter: Waiter) -> None:
        """Remember a call; a connection has one at most, since its later calls queue behind it."""
        self._by_connection[waiter.call.connection] = waiter
        for key in waiter.keys:
            self._by_key.setdefault(key, {})[waiter] = None
        heapq.heappush(self._deadlines, (waiter.deadline_ms, next(self._numbers), waiter))
        if len(self._deadlines) > 2 * len(self._by_connection) + _STALE_MAX:
            # Fetches that found data long before their deadline would pile up.
            self._deadlines = [item for item in self._deadlines if not item[2].is_done]
            heapq.heapify(self._deadlines)

    def touched(self, keys: Iterable[PartitionKey], now: Now) -> list[tuple[Call[Any], Any]]:
        """Try again what waits for one of `keys`; gives the calls that are answered."""
        waiters = {w: None for key in keys for w in self._by_key.get(key, ())}
        return self._answered(waiters, now, is_last=False)

    def overdue(self, now: Now) -> list[tuple[Call[Any], Any]]:
        """The calls whose time is up, with whatever there is."""
        late: dict[Waiter, None] = {}
        while self._deadlines and self._deadlines[0][0] <= now.steady_ms:
            waiter = heapq.heappop(self._deadlines)[2]
            if not waiter.is_done:
                late[waiter] = None
        return self._answered(late, now, is_last=True)

    def next_deadline_ms(self) -> int | None:
        """When `overdue` has something to do."""
        while self._deadlines and self._deadlines[0][2].is_done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def forget(self, connection: Connection) -> None:
        """Drop what waits on a connection that is gone."""
        waiter = self._by_connection.get(connection)
        if waiter is not None:
            self._remove(waiter)

    def _answered(
        self, waiters: Iterable[Waiter], now: Now, is_last: bool
    ) -> list[tuple[Call[Any], Any]]:
        answers = []
        for waiter in waiters:
            response = waiter.attempt(now, is_last)
            if response is not None:
                self._remove(waiter)
                answers.append((waiter.call, response))
        return answers

    def _remove(self, waiter: Waiter) -> None:
        waiter.is_done = True
        del self._by_connection[waiter.call.connection]
        for key in waiter.keys:
            waiters = self._by_key[key]
            del waiters[waiter]
            if not waiters:
                del self._by_key[key]
