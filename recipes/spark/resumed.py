"""Transactions on brokers without KIP-939, which are used only when asked for (mode `resume`).

Each task attempt has an id of its own, which nobody initialises again. "Prepared" is here: every
record is acknowledged and the transaction is left open. The coordinator ends exactly the recorded
pair by a raw EndTxn. The limit: the broker aborts what is open for longer than
`transaction.timeout.ms`. A decided transaction is lost if nobody ends it in time; that is found and
said, it cannot be prevented.
"""

import functools
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from dualwrite.admin import TransactionAdmin
from dualwrite.content import Row
from dualwrite.errors import Fenced, HeuristicAbort, KafkaError
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.recipes.spark.ledger import Participant
from dualwrite.recipes.spark.names import slot_id
from dualwrite.recipes.spark.transactions import ONGOING, Found, TaskTransaction, open_ids
from dualwrite.wire.error_codes import ErrorCode

RESUME_TIMEOUT_MS = 900_000
"""Kafka's default for `transaction.max.timeout.ms`: the longest that a broker grants unasked."""

log = logging.getLogger("dualwrite.spark")


@functools.cache
def warn_of_limit(sink: str, timeout_ms: Any) -> None:
    """Say once per process what this mode cannot do."""
    log.warning(
        "sink %s is in resume mode: a decided batch that is not finished within %s ms is lost",
        sink,
        timeout_ms,
    )


class ResumedTransactions:
    """An id per task attempt, ended from outside by its exact pair (KIP-98)."""

    def __init__(self, sink: str, config: Mapping[str, Any]) -> None:
        self._sink = sink
        self._config = config
        warn_of_limit(sink, config.get("transaction.timeout.ms", RESUME_TIMEOUT_MS))

    def begin(self, partition: int, attempt_number: int) -> TaskTransaction:
        # Chance makes the id new: initialising an id that somebody used would abort its
        # transaction, which may be decided. Digits only, so that it reads as a slot.
        transactional_id = slot_id(self._sink, partition, secrets.randbits(60))
        producer = TwoPhaseProducer(
            {
                "transaction.timeout.ms": RESUME_TIMEOUT_MS,
                **self._config,
                "transactional.id": transactional_id,
            }
        )
        try:
            producer.init_transactions()
            producer.begin_transaction()
        except BaseException:
            producer.close()
            raise
        return LeftOpenByTask(producer, transactional_id)

    def open_ids(self) -> list[str]:
        return open_ids(self._sink, self._config)

    def inspect(self, transactional_id: str) -> Found:
        return SeenFromOutside(transactional_id, self._config)


class LeftOpenByTask:
    """A task's transaction that stays open when the task ends."""

    busy = 0

    def __init__(self, producer: TwoPhaseProducer, transactional_id: str) -> None:
        self._producer = producer
        self._id = transactional_id
        self._is_prepared = False

    def send(self, topic: str, rows: Iterable[Row], partition: int) -> int:
        return self._producer.produce_batch(topic, rows, partition)

    def send_encoded(self, topic: str, partition: int, encoded: bytes, count: int) -> None:
        self._producer.produce_encoded(topic, partition, encoded, count)

    def partition_count(self, topic: str) -> int:
        return self._producer.partition_count(topic)

    def prepare(self) -> Participant | None:
        state = self._producer.flush_transaction()
        self._is_prepared = state.has_transaction
        if not state.has_transaction:
            return None
        return Participant(self._id, state, self._producer.transaction_version)

    def close(self) -> None:
        self._producer.close(leave_open=self._is_prepared)


class SeenFromOutside:
    """An id as DescribeTransactions shows it; ended by a raw EndTxn with the pair that was seen."""

    def __init__(self, transactional_id: str, config: Mapping[str, Any]) -> None:
        self._admin = TransactionAdmin(config)
        self.transactional_id = transactional_id
        self._seen = self._admin.describe_transactions([transactional_id])[transactional_id]
        is_open = self._seen is not None and self._seen.state == ONGOING
        self.ongoing = self._seen.pair if is_open and self._seen else PreparedTxnState.NONE

    def commit(self, state: PreparedTxnState) -> None:
        if self.ongoing == state:
            self._end(commit=True)
        elif self._seen is None or self._seen.state not in ("PrepareCommit", "CompleteCommit"):
            # The id belongs to this one transaction, so anything but a commit is a loss.
            raise HeuristicAbort(f"{self.transactional_id} {state} was not committed")

    def abort(self) -> None:
        self._end(commit=False)

    def close(self) -> None:
        self._admin.close()

    def _end(self, *, commit: bool) -> None:
        pair = self.ongoing
        try:
            self._admin.end_txn(self.transactional_id, pair.producer_id, pair.epoch, commit)
        except KafkaError as error:
            if error.code in (
                ErrorCode.INVALID_PRODUCER_EPOCH,
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_TXN_STATE,
            ):
                raise Fenced(f"{self.transactional_id} was ended by somebody else") from error
            raise
