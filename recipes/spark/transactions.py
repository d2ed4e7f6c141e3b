"""A sink's transactions at the broker: a task writes one, the coordinator finds and ends them."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dualwrite.admin import TransactionAdmin
from dualwrite.content import Row
from dualwrite.errors import ConfigurationError, DualWriteError, HeuristicAbort
from dualwrite.outcome import Finding, examine
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.recipes.spark.ledger import Participant
from dualwrite.recipes.spark.names import SLOTS_PER_PARTITION_MAX, slot_id, slot_pattern

ONGOING = "Ongoing"


class TaskTransaction(Protocol):
    """The transaction of one task."""

    @property
    def busy(self) -> int:
        """Slots that were passed over because an abandoned transaction holds them."""
        ...

    def send(self, topic: str, rows: Iterable[Row], partition: int) -> int: ...

    def send_encoded(self, topic: str, partition: int, encoded: bytes, count: int) -> None:
        """Send one batch whose records are encoded already."""
        ...

    def partition_count(self, topic: str) -> int: ...

    def prepare(self) -> Participant | None:
        """Make every record durable and leave the outcome to the coordinator; None if empty."""
        ...

    def close(self) -> None:
        """Abort if not prepared. A prepared transaction is not touched any more."""
        ...


class Found(Protocol):
    """An id as the coordinator found it."""

    @property
    def transactional_id(self) -> str: ...
    @property
    def ongoing(self) -> PreparedTxnState:
        """The open transaction, or the empty state."""
        ...

    def commit(self, state: PreparedTxnState) -> None:
        """Commit `state`; no harm if that was done before, `HeuristicAbort` if it was aborted.

        Another transaction that is ongoing is left as it is.
        """
        ...

    def abort(self) -> None:
        """Abort what is ongoing; `Fenced` if somebody took the id over in the meantime."""
        ...

    def close(self) -> None: ...


class Transactions(Protocol):
    """What the sink needs from Kafka."""

    def begin(self, partition: int, attempt_number: int) -> TaskTransaction: ...
    def open_ids(self) -> list[str]: ...
    def inspect(self, transactional_id: str) -> Found: ...


def open_ids(sink: str, config: Mapping[str, Any]) -> list[str]:
    with TransactionAdmin(config) as admin:
        listed = admin.list_transactions(states=[ONGOING], id_pattern=slot_pattern(sink))
    return [one.transactional_id for one in listed]


class TwoPhaseTransactions:
    """Slots `spark.<sink>.<partition>.<k>`, prepared and completed by KIP-939.

    Nobody initialises a slot without keepPreparedTxn, so an attempt that Spark has given up on can
    at worst fence a live one, never end what another has prepared.
    """

    def __init__(self, sink: str, config: Mapping[str, Any]) -> None:
        self._sink = sink
        self._config = config

    def begin(self, partition: int, attempt_number: int) -> TaskTransaction:
        """Begin in the first slot that is not busy, starting at the task's own attempt number."""
        for busy in range(SLOTS_PER_PARTITION_MAX):
            k = (attempt_number + busy) % SLOTS_PER_PARTITION_MAX
            transactional_id = slot_id(self._sink, partition, k)
            producer = self._take_over(transactional_id)
            if not producer.prepared_txn_state.has_transaction:
                producer.begin_transaction()
                return PreparedByTask(producer, transactional_id, busy)
            producer.close()
        raise DualWriteError(
            f"all {SLOTS_PER_PARTITION_MAX} slots of partition {partition} of sink {self._sink}"
            " hold open transactions: run `dualwrite spark recover`"
        )

    def open_ids(self) -> list[str]:
        return open_ids(self._sink, self._config)

    def inspect(self, transactional_id: str) -> Found:
        return TakenOver(self._take_over(transactional_id), transactional_id, self._config)

    def _take_over(self, transactional_id: str) -> TwoPhaseProducer:
        producer = TwoPhaseProducer(
            {
                **self._config,
                "transactional.id": transactional_id,
                "transaction.two.phase.commit.enable": True,
            }
        )
        try:
            producer.init_transactions(keep_prepared_txn=True)
        except ConfigurationError as error:
            producer.close()
            raise type(error)(
                f"{error}. The sink needs two-phase commit (KIP-939); for brokers without it there"
                " is dualwrite.mode=resume, whose limit is the transaction timeout"
            ) from error
        except BaseException:
            producer.close()
            raise
        return producer


class PreparedByTask:
    """A task's transaction in a slot of its own."""

    def __init__(self, producer: TwoPhaseProducer, transactional_id: str, busy: int) -> None:
        self._producer = producer
        self._id = transactional_id
        self.busy = busy

    def send(self, topic: str, rows: Iterable[Row], partition: int) -> int:
        return self._producer.produce_batch(topic, rows, partition)

    def send_encoded(self, topic: str, partition: int, encoded: bytes, count: int) -> None:
        self._producer.produce_encoded(topic, partition, encoded, count)

    def partition_count(self, topic: str) -> int:
        return self._producer.partition_count(topic)

    def prepare(self) -> Participant | None:
        state = self._producer.prepare_transaction()
        if not state.has_transaction:
            return None
        return Participant(self._id, state, self._producer.transaction_version)

    def close(self) -> None:
        self._producer.close()


class TakenOver:
    """An id whose older owners are fenced from now on; its open transaction is as it was."""

    def __init__(
        self, producer: TwoPhaseProducer, transactional_id: str, config: Mapping[str, Any]
    ) -> None:
        self._producer = producer
        self.transactional_id = transactional_id
        self._config = config
        self.ongoing = producer.prepared_txn_state

    def commit(self, state: PreparedTxnState) -> None:
        if self.ongoing == state:
            self._producer.commit_transaction()
        else:
            self._require_committed(state)

    def _require_committed(self, state: PreparedTxnState) -> None:
        """Ask how `state` ended: to KIP-939 a transaction that is not open is a success.

        Only the bundled broker remembers, and only an id's last transaction.
        """
        with TransactionAdmin(self._config) as admin:
            described = admin.describe_transactions([self.transactional_id])[self.transactional_id]
        finished = described.last_finished if described else None
        if examine(state, self.ongoing, finished) is Finding.HEURISTIC_ABORT:
            raise HeuristicAbort(f"{self.transactional_id} {state} was aborted")

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close()
