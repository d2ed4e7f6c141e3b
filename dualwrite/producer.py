"""`TwoPhaseProducer`: a transactional producer whose transactions can be prepared (KIP-939).

    producer.init_transactions(keep_prepared_txn=True)
    producer.complete_transaction(state_from_the_database)     # whatever a crash left open
    producer.begin_transaction()
    producer.produce("orders", key=b"1", value=b"..")
    state = producer.prepare_transaction()                     # every record is durable
    ... write str(state) to the database together with the data, commit the database ...
    producer.complete_transaction(state)

Timeouts are seconds; None stands for `max.block.ms`. After a `KafkaTimeout` the same call may be
made again, and no other one in its place. Calls may come from several threads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dualwrite.config import parse_config
from dualwrite.delivery import DeliveryCallback
from dualwrite.group_metadata import GroupMetadata
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.records import Headers

Completion = Literal["committed", "aborted", "none"]
Content = str | bytes | bytearray | memoryview | None
HeadersGiven = Mapping[str, Any] | Sequence[tuple[str, Any]] | None
Row = tuple[bytes | None, bytes | None, Headers | None, int]


class TwoPhaseProducer:
    """A producer with transactions that survive the process between prepare and complete."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check the configuration (librdkafka's keys); no connection is made yet."""
        self._config = parse_config(config, transactional=True)

    def init_transactions(
        self, keep_prepared_txn: bool = False, timeout: float | None = None
    ) -> None:
        """Take over the transactional id; every older producer with this id is fenced from now on.

        A transaction that the id left open is aborted, or kept with `keep_prepared_txn`: then the
        producer is in prepared state, `prepared_txn_state` names what is open, and only commit,
        abort, complete and close are allowed.

        Raises `UnsupportedByBroker` if the broker lacks what two-phase commit needs (code 35
        included), `ConfigurationError` if a right is missing (53), `KafkaTimeout`.
        """
        raise NotImplementedError("the producer is not built yet")

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent before the first record."""
        raise NotImplementedError("the producer is not built yet")

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
        """Put a record into the transaction; it is sent with others, at the latest by prepare.

        The first record for a topic waits for the topic's metadata. `BufferError` says that the
        queue is full: call `poll()` and try again.
        """
        raise NotImplementedError("the producer is not built yet")

    def produce_batch(self, topic: str, rows: Iterable[Row], partition: int = -1) -> int:
        """Put many records (key, value, headers, timestamp in ms or 0) into the transaction.

        Cheaper per record than `produce`, without callbacks; waits while the queue is full.
        Returns how many there were.
        """
        raise NotImplementedError("the producer is not built yet")

    def send_offsets_to_transaction(
        self,
        offsets: Any,
        group_metadata: GroupMetadata | bytes | str,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's offsets with the transaction (KIP-447).

        `offsets` is a list of `confluent_kafka.TopicPartition` (or anything with `topic`,
        `partition` and `offset`), or a dict from (topic, partition) to the offset.
        """
        raise NotImplementedError("the producer is not built yet")

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until everything is durable in Kafka and leave the outcome open.

        Preparing an empty transaction ends it and gives the empty state. Needs
        `transaction.two.phase.commit.enable` (else `InvalidTxnState`). Raises what stood in the
        way of a record, `AbortableError` mostly; the transaction must then be aborted.
        """
        raise NotImplementedError("the producer is not built yet")

    def complete_transaction(
        self, state: PreparedTxnState | str, timeout: float | None = None
    ) -> Completion:
        """Commit what is prepared if it is `state`, else abort it; nothing prepared is "none".

        Raises `HeuristicAbort` if the broker remembers that `state` was aborted by force or by
        timeout.
        """
        raise NotImplementedError("the producer is not built yet")

    def flush_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until every record is acknowledged and return the pair of the open transaction.

        Unlike prepare it leaves the transaction open to more records, and works without two-phase
        commit: it is what recovery by a raw EndTxn builds on. An empty transaction gives the empty state.
        """
        raise NotImplementedError("the producer is not built yet")

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit what is open or prepared. A timeout leaves the outcome unknown: call it again."""
        raise NotImplementedError("the producer is not built yet")

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort what is open or prepared; records that wait to be sent are dropped."""
        raise NotImplementedError("the producer is not built yet")

    def bump_epoch(self, timeout: float | None = None) -> None:
        """Take a new epoch between transactions, so that pairs differ without Transactions V2."""
        raise NotImplementedError("the producer is not built yet")

    def flush(self, timeout: float | None = None) -> int:
        """Send what is buffered and wait for the answers; returns how many records are left."""
        raise NotImplementedError("the producer is not built yet")

    def poll(self, timeout: float = 0) -> int:
        """Do network work, run delivery callbacks and return how many were run."""
        raise NotImplementedError("the producer is not built yet")

    def close(self, timeout: float | None = None) -> None:
        """Abort an open transaction and close the connections. A prepared one is left as it is."""

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """What is prepared and not completed; the empty state if nothing is."""
        raise NotImplementedError("the producer is not built yet")

    @property
    def producer_pair(self) -> PreparedTxnState:
        """Producer id and epoch that the broker gave to this producer."""
        raise NotImplementedError("the producer is not built yet")

    @property
    def transaction_version(self) -> int:
        """2 if every transaction has its own pair (KIP-890), else 1; known after init."""
        raise NotImplementedError("the producer is not built yet")

    def __len__(self) -> int:
        """Records and callbacks that wait, as confluent-kafka counts them."""
        raise NotImplementedError("the producer is not built yet")

    def __enter__(self) -> "TwoPhaseProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
