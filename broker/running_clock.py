"""The clock that the running broker looks at; everything below the server gets `Now` as an argument."""

import time

from dualwrite.broker.clock import Now


class RunningClock:
    """Running time goes on from `steady_ms`, where the journal ended, by the monotonic clock."""

    def __init__(self, steady_ms: int) -> None:
        self._offset_ns = steady_ms * 1_000_000 - time.monotonic_ns()

    def now(self) -> Now:
        return Now(
            time.time_ns() // 1_000_000, (time.monotonic_ns() + self._offset_ns) // 1_000_000
        )
