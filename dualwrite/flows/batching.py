"""Records of one partition on their way: an open batch, batches that wait, batches in flight.

A batch gets its sequence when it is sealed and keeps its bytes until it is acknowledged: a retry
sends exactly what was sent before, whatever the caller has done to its buffers since, and the
broker can tell a repetition from a new batch (KIP-98).
"""

from collections import deque
from typing import NamedTuple

from dualwrite.delivery import DeliveryCallback
from dualwrite.wire.records import BatchBuilder, Headers

_SEQUENCE_MASK = 0x7FFFFFFF


class Receipt(NamedTuple):
    """A record whose delivery somebody wants to hear of."""

    place: int
    callback: DeliveryCallback
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int


class Batch:
    """Sealed records with their place in the partition's order."""

    __slots__ = ("count", "data", "deadline_ms", "number", "queue", "receipts", "retries")

    def __init__(
        self,
        queue: "PartitionQueue",
        number: int,
        data: bytes,
        count: int,
        deadline_ms: float,
        receipts: list[Receipt],
    ) -> None:
        self.queue = queue
        self.number = number
        self.data = data
        self.count = count
        self.deadline_ms = deadline_ms
        self.receipts = receipts
        self.retries = 0


class PartitionQueue:
    """Everything that is under way to one partition, in order."""

    __slots__ = (
        "builder",
        "in_flight",
        "is_added",
        "next_number",
        "next_sequence",
        "not_before_ms",
        "opened_ms",
        "partition",
        "receipts",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = BatchBuilder()
        self.receipts: list[Receipt] = []
        self.opened_ms: float = 0
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.next_number = 0
        self.next_sequence = 0
        self.not_before_ms: float = 0
        self.is_added = False
        """The coordinator knows that the partition takes part (needed before KIP-890)."""

    @property
    def is_idle(self) -> bool:
        return not (self.builder.count or self.waiting or self.in_flight)

    def seal(
        self, producer_id: int, epoch: int, compression: int, delivery_timeout_ms: float
    ) -> Batch:
        """Close the open batch and put it behind those that wait."""
        builder = self.builder
        data = builder.build(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self.next_sequence,
            is_transactional=True,
            compression=compression,
        )
        batch = Batch(
            self,
            self.next_number,
            data,
            builder.count,
            self.opened_ms + delivery_timeout_ms,
            self.receipts,
        )
        self.next_number += 1
        self.next_sequence = (self.next_sequence + builder.count) & _SEQUENCE_MASK
        self.waiting.append(batch)
        self.builder = BatchBuilder()
        self.receipts = []
        return batch

    def take(self) -> Batch:
        """The next batch to send, which is in flight from now on."""
        batch = self.waiting.popleft()
        self.in_flight.append(batch)
        return batch

    def put_back(self, batch: Batch, not_before_ms: float) -> None:
        """A batch must be sent again, before all that follow it."""
        self.in_flight.remove(batch)
        batch.retries += 1
        place = 0
        while place < len(self.waiting) and self.waiting[place].number < batch.number:
            place += 1
        self.waiting.insert(place, batch)
        self.not_before_ms = max(self.not_before_ms, not_before_ms)

    def is_first(self, batch: Batch) -> bool:
        """No earlier batch of the partition is still without an answer."""
        numbers = [other.number for other in (*self.waiting, *self.in_flight)]
        return batch.number <= min(numbers)

    def restart_sequences(self) -> None:
        """A new epoch counts from zero."""
        self.next_sequence = 0
        self.is_added = False
