"""Runs a command of ours with a wall clock that a test can move while it runs.

    python -m tests.faults.jumping_clock FILE broker --listen ...

FILE holds how many seconds the wall clock is ahead. The broker asks `time` alone for the time of day,
so replacing two functions moves it, for itself only; the monotonic clock goes on as it is.
"""

import os
import sys
import time
from pathlib import Path

HOUR, DAY, YEAR = 3600, 86_400, 365 * 86_400
JUMPS = {
    "an hour on": HOUR,
    "an hour back": -HOUR,
    "a day on": DAY + 60,
    "a day back": -DAY - 60,
    "ten years on": 10 * YEAR,
    "to 1970": -int(time.time()) + 1,
}
CHORES = (
    "log.retention.check.interval.ms",
    "log.cleaner.backoff.ms",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    "producer.id.expiration.check.interval.ms",
    "offsets.retention.check.interval.ms",
)
"""Whatever the broker does now and then because time has passed."""

_real_ns = time.time_ns


def install(path: str) -> None:
    control = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def time_ns() -> int:
        return _real_ns() + int(os.pread(control, 32, 0) or 0) * 1_000_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


class Clock:
    """The wall clock of a broker that was started by `broker_command`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        # Padded, so that a shorter number leaves nothing of a longer one behind.
        with open(self.path, "r+b" if self.path.exists() else "w+b") as control:
            control.write(b"%-32d" % seconds)


def broker_command(clock: Clock) -> list[str]:
    """What starts a broker with this clock."""
    return [sys.executable, "-m", "tests.faults.jumping_clock", str(clock.path), "broker"]


if __name__ == "__main__":
    install(sys.argv[1])

    from dualwrite.cli import main

    sys.argv = ["dualwrite", *sys.argv[2:]]
    main()
