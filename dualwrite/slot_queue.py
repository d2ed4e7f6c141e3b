"""Where a blocking writer's slots wait for their next transaction."""

import threading
from collections import deque
from contextlib import suppress

from dualwrite.slot_pool import Slot
from dualwrite.transaction import Unit


class SlotQueue:
    """Ready slots, and units whose Kafka commit was asked for but not answered yet.

    Whoever needs a slot takes a ready one, the last that was used, or else the oldest unit, whose
    answer has most likely come: taking it in costs less than waking a thread for every commit.
    """

    def __init__(self) -> None:
        self._ready: list[Slot] = []
        self._ending: deque[Unit] = deque()
        self._filled = threading.Semaphore(0)
        self.has_ending = threading.Event()
        """Somebody should come for the units if nobody takes them."""

    def put(self, slot: Slot) -> None:
        self._ready.append(slot)
        self._filled.release()

    def put_ending(self, unit: Unit) -> None:
        self._ending.append(unit)
        self._filled.release()
        if not self.has_ending.is_set():
            self.has_ending.set()

    def take(self, seconds: float) -> Slot | Unit | None:
        """A ready slot or a unit to finish; None if neither came in time."""
        if not self._filled.acquire(timeout=seconds):
            return None
        while True:  # there is one for everybody who got here, in the one place or in the other
            with suppress(IndexError):
                return self._ready.pop()
            with suppress(IndexError):
                return self._ending.popleft()

    def take_ending(self) -> Unit | None:
        """The oldest unit to finish, if there is one."""
        if not self._filled.acquire(blocking=False):
            return None
        try:
            return self._ending.popleft()
        except IndexError:
            self._filled.release()
            return None
