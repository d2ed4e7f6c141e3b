"""`ProducerStates`: sequences, epochs and transactions of the producers of one partition.

`check` and `check_marker` decide and change nothing; `apply` and `apply_marker` change and decide
nothing, and are the same for a live append and for a replay. They are called when an entry is added
to the journal, before it is durable, so the next batch is checked against every batch before it.

**Why there is no verification guard.** KIP-890 makes the partition leader ask the coordinator whether
the transaction is open before a batch may begin it in the partition; Kafka needs a guard object,
because the transaction can end between the answer and the append. Here the coordinator is in the same
process and a handler runs to its end without anything between: it asks, checks and appends in one
step, so the answer can't grow old. What remains of Kafka's verification entry is the lowest sequence
that was sent away to come again (`postpone`): without it a later batch of the same producer, already
in flight, would be taken for the first one, and the earlier could never be written (KAFKA-14920).

**Rules** are numbered as in Kafka's order: duplicate, transaction, epoch, sequence, kind. A refused
batch gets the first code that applies; clients react differently to each, so the order is part of the
protocol (KAFKA-19690).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from dualwrite.broker.clock import Now
from dualwrite.broker.producers.aborted import AbortedTxn, AbortedTxns
from dualwrite.broker.producers.unstable import Unstable
from dualwrite.broker.producers.verdicts import (
    ACCEPT,
    Accept,
    Duplicate,
    Origin,
    Refuse,
    Standing,
    Verdict,
)
from dualwrite.wire.batch_header import CONTROL, TRANSACTIONAL, BatchHeader
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.records import EndMarker

CACHED_BATCHES: Final = 5  # as many requests as a producer may have in flight
SEQUENCE_MAX: Final = 0x7FFFFFFF
EPOCH_MAX: Final = 32767
EXPIRATION_MS: Final = 86_400_000


class CachedBatch(NamedTuple):
    """What is remembered of an appended batch, to know it again when it is sent again."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerState:
    """What the partition knows of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_offset",
        "last_steady_ms",
        "last_timestamp",
    )

    def __init__(self) -> None:
        self.epoch = -1
        self.batches: list[CachedBatch] = []
        self.coordinator_epoch = -1
        self.first_offset: int | None = None  # of the open transaction
        self.last_timestamp = -1
        self.last_steady_ms = 0


class ProducerView(NamedTuple):
    """One producer as DescribeProducers shows it; -1 where there is nothing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class LastRecord(NamedTuple):
    """What the log cleaner must keep of a producer: this batch, or without one its last marker."""

    last_offset: int | None
    epoch: int


class _Postponed(NamedTuple):
    epoch: int
    lowest_sequence: int
    tv2: bool
    steady_ms: int


class ProducerStates:
    """The producers of one partition. The log that owns it is the only caller of its mutators."""

    __slots__ = ("_postponed", "_unstable", "aborted", "expiration_ms", "producers")

    def __init__(self, expiration_ms: int = EXPIRATION_MS) -> None:
        self.expiration_ms = expiration_ms
        self.producers: dict[int, ProducerState] = {}
        self.aborted = AbortedTxns()
        self._unstable = Unstable()
        self._postponed: dict[int, _Postponed] = {}

    # Questions

    def check(
        self,
        header: BatchHeader,
        *,
        origin: Origin = Origin.CLIENT,
        verified: bool = False,
        tv2: bool = False,
    ) -> Verdict:
        """Whether a data batch may be appended now.

        `verified`: the coordinator has said in this very step that the transaction is open and
        includes this partition. `tv2`: the request is of a version that adds partitions implicitly
        (Produce v12, TxnOffsetCommit v5). Both are looked at for transactional batches only.
        """
        producer_id = header.producer_id
        attributes = header.attributes
        if producer_id < 0:
            if attributes & (TRANSACTIONAL | CONTROL):
                return Refuse(ErrorCode.INVALID_RECORD, "batch needs a producer id for its kind")
            return ACCEPT
        if attributes & CONTROL:
            return Refuse(ErrorCode.INVALID_RECORD, "control batch among data")
        if header.producer_epoch < 0:
            return Refuse(ErrorCode.INVALID_RECORD, "batch has a producer id without an epoch")
        if header.base_sequence < 0 and origin is Origin.CLIENT:
            return Refuse(ErrorCode.INVALID_RECORD, "batch has a producer id without a sequence")

        state = self.producers.get(producer_id)
        if origin is Origin.CLIENT and state is not None:
            duplicate = _find_duplicate(state, header)
            if duplicate is not None:
                return duplicate
        starts = False
        if attributes & TRANSACTIONAL:
            starts = state is None or state.first_offset is None
            refusal = _check_transaction(state, header, verified, tv2)
            if refusal is not None:
                return refusal
        if state is not None and header.producer_epoch < state.epoch:
            return _fenced(header, state)
        if origin is Origin.CLIENT:
            refusal = self._check_sequence(state, header, starts and tv2)
            if refusal is not None:
                return refusal
        if not attributes & TRANSACTIONAL and state is not None and state.first_offset is not None:
            return Refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open since offset {state.first_offset}",
            )
        return ACCEPT

    def check_marker(self, marker: EndMarker, *, tv2: bool) -> Accept | Refuse:
        """Whether a transaction marker may be appended now.

        Under version 2 the marker carries the epoch after the transaction's own, so an equal epoch
        is a late marker (KAFKA-19446, KIP-1228), except where nothing is open any more: then it is
        the same marker again (KAFKA-19999), or where the epochs are used up (KAFKA-20090).
        """
        state = self.producers.get(marker.producer_id)
        if state is None:
            return ACCEPT
        if marker.producer_epoch < state.epoch or (
            tv2
            and marker.producer_epoch == state.epoch
            and state.first_offset is not None
            and state.epoch != EPOCH_MAX
        ):
            return Refuse(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, "
                f"the log has {state.epoch}",
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            return Refuse(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of producer {marker.producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, the log has {state.coordinator_epoch}",
            )
        return ACCEPT

    def standing(self, producer_id: int, epoch: int) -> Standing:
        """What to do before the coordinator is asked about a transactional batch.

        A fenced pair is refused without asking, so that it adds no partition to a transaction that
        isn't its own (KAFKA-18042).
        """
        state = self.producers.get(producer_id)
        if state is None or epoch > state.epoch:
            return Standing.UNKNOWN
        if epoch < state.epoch:
            return Standing.FENCED
        return Standing.UNKNOWN if state.first_offset is None else Standing.OPEN

    @property
    def first_unstable(self) -> int | None:
        """The first offset of the oldest open transaction.

        For what readers and the cleaner may touch, ask `last_stable`: a transaction that has ended
        counts as unstable there until its marker is durable.
        """
        return self._unstable.first_open

    def last_stable(self, high_watermark: int) -> int:
        """How far a read_committed consumer may read; `high_watermark` never goes back."""
        first = self._unstable.first(high_watermark)
        return high_watermark if first is None else min(first, high_watermark)

    def aborted_between(self, fetch_offset: int, upper: int) -> list[AbortedTxn]:
        """The aborted transactions for a fetch of [fetch_offset, upper)."""
        return self.aborted.between(fetch_offset, upper)

    def open_transactions(self) -> list[ProducerView]:
        """The producers with an open transaction, the oldest first."""
        return [_view(pid, self.producers[pid]) for pid in self._unstable.producers()]

    def active(self, now: Now) -> list[ProducerView]:
        """Every producer that has not expired, by id."""
        return [
            _view(pid, state)
            for pid, state in sorted(self.producers.items())
            if not self._is_expired(state, now)
        ]

    def last_records(self) -> dict[int, LastRecord]:
        """What the log cleaner must leave in place, so that a replay finds every producer again."""
        return {
            pid: LastRecord(state.batches[-1].last_offset if state.batches else None, state.epoch)
            for pid, state in self.producers.items()
        }

    # Changes

    def apply(self, header: BatchHeader, base_offset: int, last_offset: int, now: Now) -> None:
        """Take in an appended data batch; one without a producer id changes nothing."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        assert not header.attributes & CONTROL, "markers go to apply_marker"
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState()
        batches = state.batches
        if state.epoch != header.producer_epoch:
            state.epoch = header.producer_epoch
            batches.clear()
        first = header.base_sequence
        last = -1 if first < 0 else (first + header.last_offset_delta) & SEQUENCE_MAX
        batches.append(CachedBatch(first, last, base_offset, last_offset, header.max_timestamp))
        if len(batches) > CACHED_BATCHES:
            del batches[0]
        state.last_timestamp = header.max_timestamp
        state.last_steady_ms = now.steady_ms
        if header.attributes & TRANSACTIONAL and state.first_offset is None:
            state.first_offset = base_offset
            self._unstable.open(base_offset, producer_id)
        if self._postponed:
            self._postponed.pop(producer_id, None)

    def apply_marker(self, marker: EndMarker, offset: int, now: Now) -> AbortedTxn | None:
        """Take in an appended marker; gives the transaction if one was open and is now aborted."""
        producer_id = marker.producer_id
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState()
        if state.epoch != marker.producer_epoch:
            # KIP-890: the marker moves the epoch on, and sequences begin at 0 again.
            state.epoch = marker.producer_epoch
            state.batches.clear()
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp = now.wall_ms
        state.last_steady_ms = now.steady_ms
        postponed = self._postponed.get(producer_id)
        # A batch of the *next* transaction may have been sent away already (KAFKA-18575).
        if postponed and not (postponed.tv2 and postponed.epoch == marker.producer_epoch):
            del self._postponed[producer_id]
        first_offset, state.first_offset = state.first_offset, None
        if first_offset is None:
            return None
        self._unstable.end(first_offset, offset)
        if marker.commit:
            return None
        oldest_open = self._unstable.first_open
        last_stable = offset + 1 if oldest_open is None else oldest_open
        aborted = AbortedTxn(producer_id, first_offset, offset, last_stable)
        self.aborted.add(aborted)
        return aborted

    def postpone(self, header: BatchHeader, *, tv2: bool, now: Now) -> None:
        """Remember a batch that was told to come again, because the coordinator wasn't ready.

        Not replayed: after a restart the producer's retry finds its place by its sequence alone.
        """
        old = self._postponed.get(header.producer_id)
        if old is not None and old.epoch > header.producer_epoch:
            return
        lowest = header.base_sequence
        if old is not None and old.epoch == header.producer_epoch:
            lowest = min(lowest, old.lowest_sequence)
        self._postponed[header.producer_id] = _Postponed(
            header.producer_epoch, lowest, tv2, now.steady_ms
        )

    def expire(self, now: Now) -> int:
        """Forget producers without a sign of life for `expiration_ms`; says how many.

        Counted in running time, and never while a transaction is open: a prepared transaction waits
        for its outcome as long as it takes (KIP-939).
        """
        gone = [pid for pid, state in self.producers.items() if self._is_expired(state, now)]
        for producer_id in gone:
            del self.producers[producer_id]
        limit = now.steady_ms - self.expiration_ms
        for producer_id in [p for p, e in self._postponed.items() if e.steady_ms <= limit]:
            del self._postponed[producer_id]
        return len(gone)

    def load(
        self, producers: Iterable[tuple[int, ProducerState]], aborted: Iterable[AbortedTxn] = ()
    ) -> None:
        """Begin with what a snapshot holds; only before anything was applied."""
        assert not self.producers
        self.producers = dict(producers)
        self.aborted = AbortedTxns(aborted)
        for producer_id, state in self.producers.items():
            if state.first_offset is not None:
                self._unstable.open(state.first_offset, producer_id)

    # Rules

    def _is_expired(self, state: ProducerState, now: Now) -> bool:
        idle_ms = now.steady_ms - state.last_steady_ms
        return state.first_offset is None and idle_ms >= self.expiration_ms

    def _check_sequence(
        self, state: ProducerState | None, header: BatchHeader, starts_tv2: bool
    ) -> Refuse | None:
        sequence = header.base_sequence
        # KAFKA-18202: under version 2 a transaction begins with sequence 0 wherever nothing is known.
        if starts_tv2 and sequence != 0 and (state is None or not state.batches):
            return _out_of_order(header, 0)
        if self._postponed:
            postponed = self._postponed.get(header.producer_id)
            if postponed is not None and postponed.epoch == header.producer_epoch:
                lowest = postponed.lowest_sequence
                if sequence > lowest:
                    return _out_of_order(header, lowest)
        # KIP-360: whoever is unknown, maybe because its records were deleted, may begin anywhere.
        if state is None or state.epoch == -1:
            return None
        if header.producer_epoch != state.epoch:
            return None if sequence == 0 else _out_of_order(header, 0)
        last = state.batches[-1].last_sequence if state.batches else -1
        expected = (last + 1) & SEQUENCE_MAX
        return None if sequence == expected else _out_of_order(header, expected)


def _find_duplicate(state: ProducerState, header: BatchHeader) -> Duplicate | None:
    if header.producer_epoch != state.epoch:
        return None
    first = header.base_sequence
    for batch in reversed(state.batches):
        if batch.first_sequence == first:
            if batch.last_sequence != (first + header.last_offset_delta) & SEQUENCE_MAX:
                return None
            return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
    return None


def _check_transaction(
    state: ProducerState | None, header: BatchHeader, verified: bool, tv2: bool
) -> Refuse | None:
    if state is not None:
        if header.producer_epoch < state.epoch:
            # KAFKA-19690: before the coordinator's answer, because 48 is fatal and 47 is not.
            return _fenced(header, state)
        if state.first_offset is not None:
            if header.producer_epoch == state.epoch:
                return None
            # Consumers match aborted transactions by producer id alone, so the marker of the old
            # epoch must come before any record of the new one.
            code = ErrorCode.CONCURRENT_TRANSACTIONS if tv2 else ErrorCode.INVALID_TXN_STATE
            return Refuse(
                code,
                f"producer {header.producer_id} has a transaction of epoch {state.epoch} open, "
                f"the batch has epoch {header.producer_epoch}",
            )
    if not verified:
        return Refuse(
            ErrorCode.INVALID_TXN_STATE,
            f"the coordinator knows no transaction of producer {header.producer_id} "
            f"epoch {header.producer_epoch} with this partition",
        )
    return None


def _fenced(header: BatchHeader, state: ProducerState) -> Refuse:
    return Refuse(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"batch of producer {header.producer_id} has epoch {header.producer_epoch}, "
        f"the log has {state.epoch}",
    )


def _out_of_order(header: BatchHeader, expected: int) -> Refuse:
    return Refuse(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"batch of producer {header.producer_id} epoch {header.producer_epoch} begins with "
        f"sequence {header.base_sequence}, expected {expected}",
    )


def _view(producer_id: int, state: ProducerState) -> ProducerView:
    return ProducerView(
        producer_id,
        state.epoch,
        state.batches[-1].last_sequence if state.batches else -1,
        state.last_timestamp,
        state.coordinator_epoch,
        -1 if state.first_offset is None else state.first_offset,
    )
