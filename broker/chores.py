"""Work that comes back: each chore runs when its interval has passed, in running time."""

from collections.abc import Callable
from dataclasses import dataclass

from dualwrite.broker.clock import Now


@dataclass(slots=True)
class Chore:
    """`run(now)` every `interval_ms`; True means that there is more to do at once."""

    interval_ms: int
    run: Callable[[Now], bool]
    due_ms: int


class Chores:
    """All chores of a node."""

    def __init__(self) -> None:
        self._chores: list[Chore] = []
        self._next_ms: int | None = None  # asked for after every request

    def add(self, interval_ms: int, run: Callable[[Now], bool], now: Now) -> None:
        self._chores.append(Chore(interval_ms, run, now.steady_ms + interval_ms))
        self._next_ms = None

    def run_due(self, now: Now) -> None:
        self._next_ms = None
        for chore in self._chores:
            if chore.due_ms <= now.steady_ms:
                # First, so that one that fails comes back at its own pace.
                chore.due_ms = now.steady_ms + chore.interval_ms
                if chore.run(now):
                    # Clients get a turn in between, however much there is to do.
                    chore.due_ms = now.steady_ms + 1

    def next_ms(self) -> int:
        if self._next_ms is None:
            self._next_ms = min(chore.due_ms for chore in self._chores)
        return self._next_ms
