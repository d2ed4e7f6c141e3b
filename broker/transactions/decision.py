"""What a request to the transaction coordinator leads to: records to append, markers, a reply."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dualwrite.broker.transactions.state import (
    NO_PAIR,
    Cause,
    Outcome,
    Pair,
    PartitionRef,
    Transaction,
)
from dualwrite.wire.error_codes import ErrorCode


class Marker(NamedTuple):
    """One end-of-transaction marker, to be written to each of `partitions`.

    `transaction_version` chooses the log's epoch rule (KIP-1228). `coordinator_epoch` is -1 for the
    coordinator's own markers: the node knows its epoch.
    """

    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[PartitionRef]
    transaction_version: int
    coordinator_epoch: int = -1


_NO_ERRORS: Final[Mapping[PartitionRef, ErrorCode]] = MappingProxyType({})


class Decision(NamedTuple):
    """The answer to one request, with everything that must become durable before it is sent.

    Nothing has happened yet when a decision is returned: the node appends `records` in order, writes
    `markers`, and replays each record, all in one journal entry. It does so whatever `error` says: a
    transaction whose partition is offline is decided, and its client told to ask again. `producer` is
    the pair to reply with, `ongoing` the kept transaction's pair; both stay `NO_PAIR` on an error.
    """

    error: ErrorCode = ErrorCode.NONE
    records: tuple[Transaction, ...] = ()
    markers: tuple[Marker, ...] = ()
    producer: Pair = NO_PAIR
    ongoing: Pair = NO_PAIR
    last_finished: Pair = NO_PAIR
    last_outcome: Outcome = Outcome.NONE
    last_cause: Cause = Cause.NONE
    partition_errors: Mapping[PartitionRef, ErrorCode] = _NO_ERRORS

    def error_for(self, partition: PartitionRef) -> ErrorCode:
        """The code of one partition where a reply has one per partition."""
        return self.partition_errors.get(partition, self.error)


DONE: Final = Decision()
"""Success that changes nothing."""


def refuse(error: ErrorCode) -> Decision:
    """A decision that changes nothing and says why."""
    return Decision(error=error)
