"""Which segments are old or too many, and whether the clock may be believed.

Retention goes by the wall clock, which may jump. A jump must not delete anything: after one, deletion
by age waits until the clock has gone on steadily for a while, so that a mistake can be put right first.
"""

import logging
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.segment import Segment

logger = logging.getLogger(__name__)

JUMP_FORWARD_MS: Final = 86_400_000
JUMP_BACK_MS: Final = 60_000
TRUST_AFTER_MS: Final = 86_400_000


class ClockGuard:
    """Compares the wall clock with the running time.

    `last` is the last instant known from before a restart. A stop of more than a day looks like a
    jump too; then deletion by age begins a day of running time later. `distrusted_at` is the running
    time at the last jump, which no restart may forget: none if the clock may be believed.
    """

    def __init__(self, last: Now, distrusted_at: int | None = None) -> None:
        self._last = last
        self.distrusted_at = distrusted_at

    def see(self, now: Now) -> None:
        """Look for a jump since the last instant."""
        if now.steady_ms < self._last.steady_ms:
            return  # it was seen by way of a later one
        last, self._last = self._last, now
        passed = now.steady_ms - last.steady_ms
        drift = now.wall_ms - last.wall_ms - passed
        if last.wall_ms > 0 and not -JUMP_BACK_MS <= drift <= JUMP_FORWARD_MS:
            logger.warning("wall clock jumped ms=%d: nothing is deleted by age for now", drift)
            self.distrusted_at = now.steady_ms

    def trusts(self, now: Now) -> bool:
        self.see(now)
        if self.distrusted_at is None:
            return True
        if now.steady_ms - self.distrusted_at < TRUST_AFTER_MS:
            return False
        self.distrusted_at = None
        return True


def new_start(log: Log, now: Now, *, by_age: bool) -> int | None:
    """Where the log should begin, or None to leave it as it is.

    Whole closed segments go, the oldest first, and none that holds a record whose outcome is open:
    a prepared transaction keeps its records for as long as it takes (T-7).
    """
    settings = log.settings
    if not settings.delete or log.offline is not None:
        return None
    limit = log.last_stable
    size = log.size
    start = None
    for segment in log.segments[:-1]:
        if segment.end_offset > limit:
            break
        is_old = (
            by_age
            and settings.retention_ms >= 0
            and now.wall_ms - _newest(segment) > settings.retention_ms
        )
        is_too_much = (
            settings.retention_bytes >= 0 and size - segment.size >= settings.retention_bytes
        )
        if not is_old and not is_too_much:
            break
        size -= segment.size
        start = segment.end_offset
    return start


def is_active_old(log: Log, now: Now) -> bool:
    """Whether the active segment should be closed, so that it can be deleted or compacted."""
    segment = log.active
    if not segment.size or log.offline is not None:
        return False
    if now.wall_ms - segment.created_ms >= log.settings.segment_ms:
        return True
    settings = log.settings
    return (
        settings.delete
        and settings.retention_ms >= 0
        and now.wall_ms - _newest(segment) > settings.retention_ms
        and segment.end_offset <= log.last_stable
    )


def _newest(segment: Segment) -> int:
    """The time of the newest record; records without a time count from their arrival."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
