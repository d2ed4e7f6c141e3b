"""Runs a command of ours with a wall clock that a test can move while it runs.

    python -m tests.faults.jumping_clock FILE broker --listen ...

FILE holds how many seconds the wall clock is ahead. The broker asks `time` alone for the time of day,
so replacing two functions moves it, for itself only; the monotonic clock goes on as it is. How often
each chore has run is counted in FILE.rounds: that nothing has happened proves something only then.
"""

import itertools
import operator
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.dualwrite.waiting import wait_until

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

# What these settings make the broker run.
NODE_CHORES = (
    "_retain",
    "storage_step",
    "_abort_timed_out",
    "_expire_ids",
    "_expire_producers",
)
GROUP_CHORES = ("_expire",)
WIDTH = 12

_real_ns = time.time_ns


def install(path: str) -> None:
    control = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def time_ns() -> int:
        return _real_ns() + int(os.pread(control, 32, 0) or 0) * 1_000_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def count_rounds(path: str) -> None:
    """Have every chore's rounds counted in a file, each in a place of its own."""
    from dualwrite.broker.groups.coordinator import GroupCoordinator
    from dualwrite.broker.node import Node

    counter = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def counted(run: Callable[..., Any], place: int) -> Callable[..., Any]:
        rounds = itertools.count(1)
        os.pwrite(counter, b"%-*d" % (WIDTH, 0), place * WIDTH)

        def count(*args: Any) -> Any:
            result = run(*args)
            os.pwrite(counter, b"%-*d" % (WIDTH, next(rounds)), place * WIDTH)
            return result

        return count

    chores: list[tuple[type, str]] = [(Node, name) for name in NODE_CHORES]
    chores += [(GroupCoordinator, name) for name in GROUP_CHORES]
    for place, (owner, name) in enumerate(chores):
        setattr(owner, name, counted(getattr(owner, name), place))


class Clock:
    """The wall clock of a broker that was started by `broker_command`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    @property
    def rounds(self) -> list[int]:
        """How often each chore of the broker has run since it started."""
        return [int(number) for number in _rounds(self.path).read_text().split()]

    def let_chores_run(self) -> None:
        """Return when every chore has run from its beginning to its end."""
        wanted = [number + 2 for number in self.rounds]
        assert len(wanted) == len(CHORES)
        wait_until(lambda: all(map(operator.ge, self.rounds, wanted)))

    def set(self, seconds: int) -> None:
        # Padded, so that a shorter number leaves nothing of a longer one behind.
        with open(self.path, "r+b" if self.path.exists() else "w+b") as control:
            control.write(b"%-32d" % seconds)


def _rounds(path: Path) -> Path:
    return path.with_name(path.name + ".rounds")


def broker_command(clock: Clock) -> list[str]:
    """What starts a broker with this clock."""
    return [sys.executable, "-m", "tests.faults.jumping_clock", str(clock.path), "broker"]


if __name__ == "__main__":
    install(sys.argv[1])
    count_rounds(str(_rounds(Path(sys.argv[1]))))

    from dualwrite.cli import main

    sys.argv = ["dualwrite", *sys.argv[2:]]
    main()
