"""The transactional ids that an instance holds, each with its producer.

A slot is *ready* when its last transaction is known to be finished. Whatever ends otherwise (an
unknown COMMIT, a Kafka commit without an answer, an abort that failed) leaves it *not ready*, and
recovery of the slot is the one way back. So the pessimistic state is the default, and an
interruption at any point leaves a slot that recovery will look at.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from dualwrite.errors import Fenced, InvalidTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.steps import Steps
from dualwrite.store import Claim, StoreRow

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Slot:
    """One transactional id, leased by this instance."""

    transactional_id: str
    claim: Claim
    is_kept: bool = True
    """False for a slot taken over from a dead instance: it is recovered and released."""
    is_claimed: bool = True
    """The claim is fresh: recovery may start from it."""
    leaves_resume_mode: bool = False
    """Resume mode's recovery has begun here and is not through, although the mode is another one."""
    is_ready: bool = False
    is_lost: bool = False
    """A newer claim was seen: the slot is somebody else's."""
    producer: TwoPhaseProducer | None = None
    producer_fence: int = 0
    """Fence of the claim for which the producer was made."""
    used_at: float = 0.0
    is_settled: bool = False
    """All that it remembers is known to be finished, so that Kafka may have forgotten the id."""

    @property
    def fence(self) -> int:
        return self.claim.fence

    def busy(self) -> TwoPhaseProducer:
        """Take it out of the ready state for a transaction."""
        assert self.is_ready
        if self.producer is None:
            raise InvalidTxnState("the writer was closed while the transaction was open")
        self.is_ready = self.is_claimed = self.is_settled = False
        return self.producer

    def start_over(self) -> None:
        """Have a ready slot recovered before its next use."""
        self.is_ready = self.is_claimed = False
        self.is_settled = True

    def under_fence(self, steps: Steps[T]) -> Steps[T]:
        """Ask the store for what it does for the newest claim only; its `Fenced` is final."""
        try:
            return (yield from steps)
        except Fenced:
            self.is_lost = True
            raise


@dataclass(slots=True)
class SlotPool:
    """Every slot that this instance holds, by id; knows no waiting."""

    _slots: dict[str, Slot] = field(default_factory=dict)
    _in_use: set[str] = field(default_factory=set)
    _lending: threading.Lock = field(default_factory=threading.Lock)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def held(self) -> list[str]:
        return list(self._slots)

    @property
    def kept(self) -> int:
        return sum(1 for slot in list(self._slots.values()) if slot.is_kept)

    def add(self, slot: Slot) -> None:
        self._slots[slot.transactional_id] = slot

    def drop(self, slot: Slot) -> None:
        if self._slots.get(slot.transactional_id) is slot:
            del self._slots[slot.transactional_id]
        self._in_use.discard(slot.transactional_id)

    def lend(self, slot: Slot) -> bool:
        """Take a slot into use; False if it was lost while it was idle."""
        with self._lending:
            if slot.is_lost:
                return False
            self._in_use.add(slot.transactional_id)
            return True

    def lose_overtaken(self, rows: Iterable[StoreRow]) -> None:
        """Give up idle slots that somebody has claimed, as peers may when a lease has run out.

        Nobody would look for what they leave open if they die and their slot counts as ours. Who uses
        a slot sees for himself that it is lost.
        """
        with self._lending:
            for row in rows:
                slot = self._slots.get(row.transactional_id)
                is_idle = row.transactional_id not in self._in_use
                if slot is not None and is_idle and row.fence > slot.fence:
                    slot.is_lost, slot.is_ready = True, False

    def take_back(self, slot: Slot) -> None:
        self._in_use.discard(slot.transactional_id)

    def in_trouble(self) -> list[Slot]:
        """Slots that nobody uses and that only recovery can make ready."""
        return [
            slot
            for slot in list(self._slots.values())
            if not slot.is_ready and slot.transactional_id not in self._in_use
        ]
