"""What a dual write is made of: buffered messages, the transaction's parts, its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dualwrite.content import (
    Content,
    HeadersGiven,
    as_bytes,
    as_callback,
    as_headers,
    as_partition,
    as_timestamp,
)
from dualwrite.delivery import DeliveryCallback
from dualwrite.errors import InvalidTxnState
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import ConsumedOffset, by_topic
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_pool import Slot
from dualwrite.store import LocalTransaction
from dualwrite.tracing import Trace

DatabaseOutcome = Literal["committed", "rolled_back"]
KafkaOutcome = Literal["committed", "pending", "aborted", "none"]


class Rollback(Exception):
    """Raise it inside the block to undo both sides quietly: the block ends without an error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dual write ended. `kafka="pending"` is decided, and will be committed by itself.

    Without messages there is no Kafka transaction: `kafka` is "none" and `txn` is empty.
    """

    database: DatabaseOutcome
    kafka: KafkaOutcome
    txn: str = ""
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One buffered record."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    on_delivery: DeliveryCallback | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class ConsumedOffsets:
    """Offsets of a consumer that go into the Kafka transaction (KIP-447)."""

    offsets: Mapping[str, Sequence[ConsumedOffset]]
    """By topic."""
    group: GroupMetadata


class MessageBuffer:
    """Messages in the order of their `produce` calls, until the block ends.

    Nothing goes to Kafka before the database work is done: a transaction that is open in Kafka
    holds back every reader of its partitions.
    """

    def __init__(self) -> None:
        self.entries: list[Message | ConsumedOffsets] = []
        self._savepoints: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise TypeError("topic must be a text that is not empty")
        self.entries.append(
            Message(
                topic,
                None if value is None else as_bytes(value),
                None if key is None else as_bytes(key),
                as_partition(partition),
                as_callback(on_delivery),
                as_timestamp(timestamp),
                tuple(as_headers(headers)),
            )
        )

    def send_offsets(self, offsets: Any, group: GroupMetadata | bytes | str) -> None:
        self.entries.append(ConsumedOffsets(by_topic(offsets), GroupMetadata.of(group)))

    def savepoint_opened(self, name: str) -> None:
        self._savepoints.append((name, len(self.entries)))

    def savepoint_rolled_back(self, name: str) -> None:
        """Forget what was buffered since the savepoint; it stays open, as SQL has it."""
        while self._savepoints:
            opened, position = self._savepoints[-1]
            if opened == name:
                del self.entries[position:]
                return
            self._savepoints.pop()


@dataclass(slots=True)
class Unit:
    """One dual write from begin to end: what the write path works on."""

    slot: Slot
    local: LocalTransaction
    buffer: MessageBuffer = field(default_factory=MessageBuffer)
    state: PreparedTxnState = PreparedTxnState.NONE
    opened_at: float = 0.0
    """When the Kafka transaction began, by the monotonic clock."""
    asked_at: float = 0.0
    """When its commit was asked for without waiting for the answer."""
    is_sent: bool = False
    """COMMIT may have reached the database: from here on the outcome is the database's alone."""
    outcome: Outcome | None = None
    trace: Trace = field(default_factory=Trace)
    spoiled_by: BaseException | None = None
    """A joined block inside this one failed; its work cannot be told apart any more."""

    def ended(self, database: DatabaseOutcome, kafka: KafkaOutcome) -> Outcome:
        txn = str(self.state)
        self.outcome = Outcome(database, kafka, txn, self.slot.transactional_id)
        return self.outcome

    def require_outcome(self) -> Outcome:
        if self.outcome is None:
            raise InvalidTxnState("the transaction has not ended, or its outcome is not known")
        return self.outcome


class TransactionView:
    """What the user sees of a transaction, the same for threads and for an event loop."""

    def __init__(self) -> None:
        self._unit: Unit | None = None

    def _open_unit(self) -> Unit:
        if self._unit is None:
            raise InvalidTxnState("the transaction has not begun: use it as `with ... as tx`")
        return self._unit

    def _usable(self) -> Unit:
        unit = self._open_unit()
        if unit.is_sent or unit.outcome is not None:
            raise InvalidTxnState("the transaction has ended")
        return unit

    @property
    def session(self) -> Any:
        """SQLAlchemy's session (an `AsyncSession` in an event loop)."""
        return self._usable().local.resource("session")

    @property
    def connection(self) -> Any:
        """The connection: SQLAlchemy's, or the driver's own if that was given."""
        return self._usable().local.resource("connection")

    @property
    def batch(self) -> Any:
        """RocksDB's write batch."""
        return self._usable().local.resource("batch")

    @property
    def multi(self) -> Any:
        """ZooKeeper's multi."""
        return self._usable().local.resource("multi")

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> None:
        """Buffer a record; it is sent when the block ends, and visible once both sides committed."""
        unit = self._usable()
        headers = unit.trace.carry(headers)
        unit.buffer.produce(topic, value, key, partition, on_delivery, timestamp, headers)

    def send_offsets(self, offsets: Any, group_metadata: GroupMetadata | bytes | str) -> None:
        """Commit consumed offsets with the Kafka transaction (KIP-447).

        `offsets` is a list of `confluent_kafka.TopicPartition` or a dict from (topic, partition) to
        the next offset; `group_metadata` is what `Consumer.consumer_group_metadata()` gives.
        """
        self._usable().buffer.send_offsets(offsets, group_metadata)

    @property
    def slot(self) -> str:
        """The transactional id that this transaction uses."""
        return self._open_unit().slot.transactional_id

    @property
    def outcome(self) -> Outcome:
        """How it ended; `InvalidTxnState` before that, and when the outcome is not known."""
        return self._open_unit().require_outcome()

    def spoil(self, error: BaseException) -> None:
        """A joined block failed: what it did cannot be undone alone, so everything will be."""
        self._open_unit().spoiled_by = error


class Block(TransactionView):
    """A dual write that ends with a block; a block inside another one joins it."""

    def __init__(self, writer: object, handle: object | None) -> None:
        super().__init__()
        self._writer = writer
        self._handle = handle

    def check_joins(self, writer: object, handle: object | None) -> None:
        """Refuse a block inside this one that is not of the same transaction."""
        if writer is not self._writer:
            raise InvalidTxnState("a dual write of another writer is open: one COMMIT ends one")
        if handle is not None and handle is not self._handle:
            raise InvalidTxnState("a dual write with another session or connection is open")
