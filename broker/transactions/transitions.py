"""The next `Transaction` of an id, for each thing that can happen to it.

These functions decide nothing about rights or order; `Coordinator` has checked that already. Each gives
one record of `__transaction_state`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dualwrite.broker.clock import Now
from dualwrite.broker.transactions.state import (
    NO_PAIR,
    NO_PARTITIONS,
    TWO_PHASE_TIMEOUT_MS,
    Cause,
    Outcome,
    Pair,
    PartitionRef,
    Transaction,
    TxnState,
)


class Ending(NamedTuple):
    """How a transaction is to end: `after` is the client's pair once it has.

    `retry` is the pair that may ask for this ending again and get the same answer, if any.
    """

    commit: bool
    cause: Cause
    transaction_version: int
    marker_epoch: int
    after: Pair
    retry: Pair


def initialise(
    before: Transaction | None,
    transactional_id: str,
    after: Pair,
    timeout_ms: int,
    expected: Pair,
    now: Now,
    owner: str = "",
) -> Transaction:
    """InitProducerId with nothing ongoing: a new pair, ready for a first transaction.

    Whoever gave `expected` may repeat the request. How the last transaction ended stays known: its
    owner may come back only now.
    """
    fresh = Transaction(
        transactional_id=transactional_id,
        producer_id=after.producer_id,
        producer_epoch=after.producer_epoch,
        timeout_ms=timeout_ms,
        state=TxnState.EMPTY,
        update_ms=now.wall_ms,
        update_steady_ms=now.steady_ms,
        previous_producer_id=after.producer_id,
        owner=before.owner if before is not None and before.owner else owner,
    )
    if before is None:
        return fresh
    return fresh._replace(
        previous_producer_id=(before if expected == NO_PAIR else expected).producer_id,
        last_producer_epoch=expected.producer_epoch,
        client_transaction_version=before.client_transaction_version,
        last_finished_producer_id=before.last_finished_producer_id,
        last_finished_producer_epoch=before.last_finished_producer_epoch,
        last_outcome=before.last_outcome,
        last_cause=before.last_cause,
    )


def keep(
    before: Transaction, after: Pair, expected: Pair, *, enable_2pc: bool, now: Now
) -> Transaction:
    """InitProducerId with keepPreparedTxn over an ongoing transaction (KIP-939).

    Only the client's pair moves. The timeout never gets shorter here: the transaction's age would make
    it fire at once. Whoever gave `expected`, the client's pair until now, may repeat the request.
    """
    return before._replace(
        timeout_ms=TWO_PHASE_TIMEOUT_MS if enable_2pc else before.timeout_ms,
        previous_producer_id=before.client_pair.producer_id,
        last_producer_epoch=expected.producer_epoch,
        next_producer_id=after.producer_id,
        next_producer_epoch=after.producer_epoch,
        update_ms=now.wall_ms,
        update_steady_ms=now.steady_ms,
    )


def begin(
    before: Transaction,
    partitions: Iterable[PartitionRef],
    *,
    transaction_version: int,
    now: Now,
) -> Transaction:
    """Add partitions; begins a transaction where none is ongoing."""
    starts = before.state is not TxnState.ONGOING
    return before._replace(
        state=TxnState.ONGOING,
        partitions=before.partitions.union(partitions),
        start_ms=now.wall_ms if starts else before.start_ms,
        start_steady_ms=now.steady_ms if starts else before.start_steady_ms,
        # Whoever uses a pair has received it: an older one is no retry any more but a zombie's.
        last_producer_epoch=-1 if starts else before.last_producer_epoch,
        client_transaction_version=transaction_version,
        update_ms=now.wall_ms,
        update_steady_ms=now.steady_ms,
    )


def prepare(
    before: Transaction, ending: Ending, partitions: frozenset[PartitionRef], now: Now
) -> Transaction:
    """The outcome is decided. `partitions` are those whose markers are not in the same entry.

    From Empty or Complete this is version 2's empty abort: it moves the pair and finishes nothing.
    """
    ends = before.state is TxnState.ONGOING
    rotates = ending.after.producer_id != before.producer_id
    outcome = Outcome.COMMIT if ending.commit else Outcome.ABORT
    return before._replace(
        state=TxnState.PREPARE_COMMIT if ending.commit else TxnState.PREPARE_ABORT,
        producer_epoch=ending.marker_epoch,
        partitions=partitions,
        start_ms=before.start_ms if ends else now.wall_ms,
        start_steady_ms=before.start_steady_ms if ends else now.steady_ms,
        previous_producer_id=before.client_pair.producer_id,
        last_producer_epoch=ending.retry.producer_epoch,
        # A plain overflow stores only the next id, as Kafka does: its epoch is 0.
        next_producer_id=ending.after.producer_id if rotates or before.is_kept else -1,
        next_producer_epoch=ending.after.producer_epoch if before.is_kept else -1,
        client_transaction_version=ending.transaction_version,
        update_ms=now.wall_ms,
        update_steady_ms=now.steady_ms,
        last_finished_producer_id=(
            before.producer_id if ends else before.last_finished_producer_id
        ),
        last_finished_producer_epoch=(
            before.producer_epoch if ends else before.last_finished_producer_epoch
        ),
        last_outcome=outcome if ends else before.last_outcome,
        last_cause=ending.cause if ends else before.last_cause,
    )


def shrink(before: Transaction, partitions: frozenset[PartitionRef], now: Now) -> Transaction:
    """A decided transaction with fewer partitions left to write a marker to."""
    return before._replace(
        partitions=partitions, update_ms=now.wall_ms, update_steady_ms=now.steady_ms
    )


def complete(before: Transaction, now: Now) -> Transaction:
    """Every marker is written: the client's pair becomes the only one."""
    after = before.client_pair
    is_commit = before.state is TxnState.PREPARE_COMMIT
    return before._replace(
        state=TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT,
        producer_id=after.producer_id,
        producer_epoch=after.producer_epoch,
        next_producer_id=-1,
        next_producer_epoch=-1,
        partitions=NO_PARTITIONS,
        update_ms=now.wall_ms,
        update_steady_ms=now.steady_ms,
    )
