"""What becomes of an open Kafka transaction: a pure function of two memories.

The store remembers the pair that its last local commit decided. Kafka knows the pair that is open,
if any, and the bundled broker also the pair that the id finished last. `decide` compares the first
two and ends what is open. `examine` looks at what is finished already: with nothing open, KIP-939
makes completion a success that does nothing, and a forced end would go unnoticed.
"""

import enum
from typing import Literal, Protocol

from dualwrite.prepared import PreparedTxnState

Decision = Literal["commit", "abort", "nothing"]


def decide(remembered: PreparedTxnState, ongoing: PreparedTxnState) -> Decision:
    """Tell how the transaction that Kafka has open must end.

    Equal pairs mean that the local transaction which remembered it was committed. Whatever else is
    open was never decided. The pair is unique per transaction, as KIP-890 bumps the epoch at each end.
    """
    if not ongoing.has_transaction:
        return "nothing"
    return "commit" if ongoing == remembered else "abort"


class FinishedTxn(Protocol):
    """The transaction that an id finished last, as the bundled broker remembers it."""

    @property
    def pair(self) -> PreparedTxnState: ...
    @property
    def outcome(self) -> str: ...


class Finding(enum.Enum):
    """How what is finished fits what the store remembers."""

    AGREES = "agrees"
    HEURISTIC_ABORT = "heuristic abort"
    """The database committed, Kafka was made to abort: the messages are gone."""
    DATABASE_BEHIND = "database behind"
    """Kafka committed what the database does not remember: a restored database, a failover that
    lost commits, or another program that uses the id."""
    NEW_DATABASE = "new database"
    """Kafka knows the id from earlier, the database has never used it."""
    FORGOTTEN = "forgotten"
    """Kafka does not know what the database remembers: the id expired, or Kafka lost its data."""


def examine(
    remembered: PreparedTxnState,
    ongoing: PreparedTxnState,
    finished: FinishedTxn | None,
) -> Finding:
    """Compare what is finished in Kafka with what the store remembers."""
    if ongoing == remembered:
        # What is remembered is still open (whatever finished before it was overwritten rightly),
        # or neither side has anything to remember.
        agrees = ongoing.has_transaction or finished is None or finished.outcome == "abort"
        return Finding.AGREES if agrees else Finding.NEW_DATABASE
    if finished is None:
        # Nothing is open and nothing was ever finished, or another transaction is open, before
        # which this id has finished none.
        return Finding.FORGOTTEN if remembered.has_transaction else Finding.AGREES
    if finished.pair == remembered:
        return Finding.AGREES if finished.outcome == "commit" else Finding.HEURISTIC_ABORT
    if finished.outcome == "abort":
        return Finding.AGREES
    if not remembered.has_transaction:
        return Finding.NEW_DATABASE
    return Finding.DATABASE_BEHIND


class Fate(enum.Enum):
    """What became of a decided transaction on a broker without KIP-939."""

    OPEN = "open"
    """It is still open and must be committed by its exact pair."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """The broker timed it out: the messages must be sent again."""
    DOUBT = "doubt"
    """Nothing proves either; sending again could duplicate, so it is an alarm."""


def fate(remembered: PreparedTxnState, state: str, pair: PreparedTxnState) -> Fate:
    """Tell from the coordinator's view what became of a remembered transaction whose copy is kept.

    Each id belongs to one claim, and its owner begins a transaction only after the end of the last
    one was acknowledged: a later pair proves that the remembered one was committed. A timeout moves
    the epoch on by one at most.
    """
    is_same_producer = pair.producer_id == remembered.producer_id
    ahead = pair.epoch - remembered.epoch if is_same_producer else 0
    if ahead < 0:
        return Fate.DOUBT
    if state in ("CompleteCommit", "PrepareCommit"):
        # The producer id changes when its epochs are used up (KIP-890).
        return Fate.COMMITTED
    if not is_same_producer:
        return Fate.DOUBT
    if state == "Ongoing":
        return Fate.OPEN if ahead == 0 else Fate.COMMITTED
    if state in ("CompleteAbort", "PrepareAbort"):
        return Fate.ABORTED if ahead <= 1 else Fate.COMMITTED
    return Fate.DOUBT
