"""Runs a command of ours with a wall clock that a test can move while it runs.

    python -m tests.faults.jumping_clock FILE broker --listen ...

FILE holds how many seconds the wall clock is ahead. The broker asks `time` alone for the time of day,
so replacing two functions moves it, for itself only; the monotonic clock goes on as it is.
"""

import os
import sys
import time

_real_ns = time.time_ns


def install(path: str) -> None:
    control = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def time_ns() -> int:
        return _real_ns() + int(os.pread(control, 32, 0) or 0) * 1_000_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    install(sys.argv[1])

    from dualwrite.cli import main

    sys.argv = ["dualwrite", *sys.argv[2:]]
    main()
