"""Waiting for a condition, which is the only kind of waiting that a test may do."""

import time

DEADLINE_SECONDS = 30


def wait_until(condition, deadline_seconds=DEADLINE_SECONDS):
    """Return once `condition()` is true; fail after a time that no healthy run needs."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
