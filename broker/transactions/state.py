"""What the transaction coordinator knows about one transactional id.

A `Transaction` is one value of `__transaction_state`: the coordinator never edits one, it decides on the
next one and replays it. KIP-939 gives an id two pairs while a prepared transaction is kept: the pair of
the ongoing transaction, which its markers will carry, and the client's pair, which moves with every
recovery so that only the newest instance can end the transaction. KIP-890 moves the pair with every
transaction, so that a delayed request never lands in a later one.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

TWO_PHASE_TIMEOUT_MS: Final = 2_147_483_647
"""The stored timeout of a two-phase transaction: it never times out (KIP-939 as Kafka coded it)."""

EPOCH_MAX: Final = 32_767
"""The largest epoch a marker may carry; clients get at most one less."""


class Pair(NamedTuple):
    """A producer id and its epoch: the name of one transaction under transaction version 2."""

    producer_id: int
    producer_epoch: int


NO_PAIR: Final = Pair(-1, -1)


class PartitionRef(NamedTuple):
    """A partition by its topic's name, as `__transaction_state` stores it."""

    topic: str
    partition: int


NO_PARTITIONS: Final[frozenset[PartitionRef]] = frozenset()


class TxnState(IntEnum):
    """The state of a transactional id, by the number that is persisted."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def wire_name(self) -> str:
        """The name that DescribeTransactions and ListTransactions show."""
        return WIRE_NAMES[self]


WIRE_NAMES: Final[Mapping[TxnState, str]] = {
    TxnState.EMPTY: "Empty",
    TxnState.ONGOING: "Ongoing",
    TxnState.PREPARE_COMMIT: "PrepareCommit",
    TxnState.PREPARE_ABORT: "PrepareAbort",
    TxnState.COMPLETE_COMMIT: "CompleteCommit",
    TxnState.COMPLETE_ABORT: "CompleteAbort",
    TxnState.DEAD: "Dead",
    TxnState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

PREPARED_STATES: Final = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
COMPLETED_STATES: Final = frozenset({TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
EXPIRABLE_STATES: Final = COMPLETED_STATES | {TxnState.EMPTY}

# Kafka's table, and two loops of ours: a decided transaction that waits for an offline partition is
# written again with fewer partitions as they come back. An abort may start from Empty or Complete
# because transaction version 2 lets a client abort an empty transaction to move its epoch.
LEGAL_PREVIOUS: Final[Mapping[TxnState, frozenset[TxnState]]] = {
    TxnState.EMPTY: EXPIRABLE_STATES,
    TxnState.ONGOING: EXPIRABLE_STATES | {TxnState.ONGOING},
    TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT}),
    TxnState.PREPARE_ABORT: EXPIRABLE_STATES | {TxnState.ONGOING, TxnState.PREPARE_ABORT},
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    TxnState.DEAD: EXPIRABLE_STATES,
    TxnState.PREPARE_EPOCH_FENCE: frozenset(),
}


class Outcome(StrEnum):
    """How a transaction ended."""

    NONE = ""
    COMMIT = "commit"
    ABORT = "abort"


class Cause(StrEnum):
    """Who ended a transaction.

    CLIENT: EndTxn. TIMEOUT: the coordinator's scan. FENCED: InitProducerId of another instance over an
    ordinary transaction. FORCED: InitProducerId without keepPreparedTxn over a two-phase or kept
    transaction, which may overrule a decision that its database has already taken.
    """

    NONE = ""
    CLIENT = "client"
    TIMEOUT = "timeout"
    FENCED = "fenced"
    FORCED = "forced"


class IllegalTransition(RuntimeError):
    """A record does not follow from the state before it: the log or the coordinator is wrong."""


class Transaction(NamedTuple):
    """One transactional id at one moment; also one record of `__transaction_state`.

    A tuple, because every transaction makes three of them, each with most of the one before.

    `producer_id` and `producer_epoch` always describe the ongoing transaction, so that a reader that
    knows nothing of kept transactions can still finish one. `start_ms` and `update_ms` are wall time for
    people; their steady twins drive timeouts and expiry. `last_finished_*` outlives InitProducerId: an
    owner that comes back learns how its prepared transaction ended while it was away. A `DEAD` one is a
    tombstone. `owner` is the principal that made the id; limits count for it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TxnState
    update_ms: int
    update_steady_ms: int = -1
    partitions: frozenset[PartitionRef] = NO_PARTITIONS
    start_ms: int = -1
    start_steady_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    next_producer_epoch: int = -1
    last_producer_epoch: int = -1
    client_transaction_version: int = 0
    last_finished_producer_id: int = -1
    last_finished_producer_epoch: int = -1
    last_outcome: Outcome = Outcome.NONE
    last_cause: Cause = Cause.NONE
    owner: str = ""

    @property
    def pair(self) -> Pair:
        """The pair of the current or ongoing transaction; its markers are written with this id."""
        return Pair(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """True while a recovering client holds the transaction open under a newer pair."""
        # Not by the next producer id: that is also set while a plain overflow completes.
        return self.next_producer_epoch != -1 and self.state is TxnState.ONGOING

    @property
    def client_pair(self) -> Pair:
        """The only pair with which a client may still speak for this id."""
        if self.next_producer_id == -1:
            return Pair(self.producer_id, self.producer_epoch)
        return Pair(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def ongoing_pair(self) -> Pair:
        """The kept transaction's pair, or `NO_PAIR` when none is kept."""
        return self.pair if self.is_kept else NO_PAIR

    @property
    def remembered_pair(self) -> Pair:
        """The client's pair before the last bump: a request that carries it is a retry."""
        if self.last_producer_epoch == -1:
            return NO_PAIR
        return Pair(self.previous_producer_id, self.last_producer_epoch)

    @property
    def last_finished(self) -> Pair:
        """The pair under which the last finished transaction ran, as its client stored it."""
        return Pair(self.last_finished_producer_id, self.last_finished_producer_epoch)

    @property
    def is_two_phase(self) -> bool:
        """True if only its client or an operator may end the transaction."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def deadline_steady_ms(self) -> int | None:
        """When the timeout scan may abort it; None while it never may."""
        if self.state is not TxnState.ONGOING or self.is_two_phase:
            return None
        return self.start_steady_ms + self.timeout_ms


def check_transition(before: Transaction | None, after: Transaction) -> None:
    """Raise `IllegalTransition` unless `after` may follow `before`.

    Clocks are left out on purpose: wall time may step back, and no correct broker dies of that.
    """
    if before is None:
        return
    if before.state not in LEGAL_PREVIOUS[after.state]:
        _refuse(before, after, "state")
    if after.state is TxnState.ONGOING:
        if after.producer_id != before.producer_id or after.producer_epoch != before.producer_epoch:
            _refuse(before, after, "pair of an ongoing transaction")
        if not after.partitions >= before.partitions:
            _refuse(before, after, "partitions of an ongoing transaction")
        if not _is_same_or_next(before.client_pair, after.client_pair):
            _refuse(before, after, "client's pair of an ongoing transaction")
    elif after.state in PREPARED_STATES:
        if after.producer_id != before.producer_id:
            _refuse(before, after, "producer id of a decided transaction")
        if not before.producer_epoch <= after.producer_epoch <= before.producer_epoch + 1:
            _refuse(before, after, "epoch of a decided transaction")
        if not after.partitions <= before.partitions:
            _refuse(before, after, "partitions of a decided transaction")
    elif after.state in COMPLETED_STATES:
        if after.pair != before.client_pair:
            _refuse(before, after, "pair after completion")
        if after.partitions:
            _refuse(before, after, "partitions after completion")
    elif after.state is TxnState.EMPTY and not _is_same_or_next(before.pair, after.pair):
        _refuse(before, after, "pair after InitProducerId")


def _is_same_or_next(before: Pair, after: Pair) -> bool:
    """The same producer id at its epoch or the one behind it, or another id from its beginning."""
    if after.producer_id != before.producer_id:
        return after.producer_epoch == 0
    return before.producer_epoch <= after.producer_epoch <= before.producer_epoch + 1


def _refuse(before: Transaction, after: Transaction, what: str) -> None:
    raise IllegalTransition(
        f"{what}: {after.transactional_id} from {before.state.wire_name} {before.pair} "
        f"next {before.client_pair} to {after.state.wire_name} {after.pair}"
    )
