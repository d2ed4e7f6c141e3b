"""The transaction coordinator: one method per request, each giving a `Decision`.

Deciding changes nothing; `replay` is the only mutator, the same for a record just decided and for one
read back from `__transaction_state`. Requests run to completion and a decision becomes durable as a
whole, so Kafka's "pending state" has no counterpart: the only thing a request can collide with is a
decided transaction that waits for an offline partition (CONCURRENT_TRANSACTIONS).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.transactions import transitions
from dualwrite.broker.transactions.decision import DONE, Decision, Marker, refuse
from dualwrite.broker.transactions.listing import Listing, select
from dualwrite.broker.transactions.owners import Owners
from dualwrite.broker.transactions.producer_ids import ProducerIdSource
from dualwrite.broker.transactions.records import tombstone
from dualwrite.broker.transactions.state import (
    COMPLETED_STATES,
    EPOCH_MAX,
    EXPIRABLE_STATES,
    NO_PAIR,
    NO_PARTITIONS,
    PREPARED_STATES,
    TWO_PHASE_TIMEOUT_MS,
    Cause,
    Pair,
    PartitionRef,
    Transaction,
    TxnState,
    check_transition,
)
from dualwrite.broker.transactions.timers import Timers
from dualwrite.broker.transactions.transitions import Ending
from dualwrite.wire.error_codes import ErrorCode

_SCAN_LIMIT: Final = 1000


class Availability(Enum):
    """Whether a marker can be written to a partition."""

    ONLINE = "online"
    OFFLINE = "offline"  # its log is damaged; it may come back
    GONE = "gone"  # deleted: no marker is owed any more


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What the coordinator must know of the broker's settings, under Kafka's names."""

    two_phase_enabled: bool = True
    transaction_version: int = 2
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    epoch_max: int = EPOCH_MAX
    ids_per_owner_max: int = 2**31 - 1
    two_phase_per_owner_max: int = 2**31 - 1


class Coordinator:
    """All transactional ids of the broker."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        producer_ids: ProducerIdSource,
        availability: Callable[[PartitionRef], Availability],
    ) -> None:
        self.settings = settings
        self._producer_ids = producer_ids
        self._availability = availability
        self._by_id: dict[str, Transaction] = {}
        self._open: dict[int, str] = {}  # producer id of an ongoing or decided transaction -> id
        self._decided: dict[str, None] = {}  # in order: those that wait for a partition
        self._timeouts = Timers()
        self._expiries = Timers()
        self._owners = Owners()

    def __len__(self) -> int:
        return len(self._by_id)

    # Questions

    def get(self, transactional_id: str) -> Transaction | None:
        """The id as DescribeTransactions shows it; its pair is the ongoing transaction's."""
        return self._by_id.get(transactional_id)

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
        now: Now,
    ) -> Listing:
        """ListTransactions; the filters are joined by "and", empty ones match everything."""
        return select(self._by_id.values(), states, producer_ids, duration_ms, pattern, now)

    def is_open(self, producer_id: int) -> bool:
        """Whether a producer id has a transaction here that only the coordinator may end.

        An admin's marker would tear it apart (WriteTxnMarkers answers INVALID_TXN_STATE).
        """
        return producer_id in self._open

    def would_overrule(self, transactional_id: str) -> bool:
        """Whether InitProducerId without keepPreparedTxn would abort a two-phase or kept transaction.

        The caller asks for the right to two-phase commit then: somebody's database may have decided.
        """
        transaction = self._by_id.get(transactional_id)
        return (
            transaction is not None
            and transaction.state is TxnState.ONGOING
            and (transaction.is_two_phase or transaction.is_kept)
        )

    def longest_open_ms(self, now: Now) -> int:
        """KIP-939's metric active-transaction-open-time-max; 0 while nothing is open."""
        starts = [
            transaction.start_steady_ms
            for transactional_id in self._open.values()
            if (transaction := self._by_id[transactional_id]).state is TxnState.ONGOING
        ]
        return max(0, now.steady_ms - min(starts)) if starts else 0

    def open_transactions(self) -> Iterator[Transaction]:
        """Those that are ongoing or decided but not complete."""
        return (self._by_id[transactional_id] for transactional_id in self._open.values())

    def open_count(self) -> int:
        """How many transactions are ongoing or decided but not complete."""
        return len(self._open)

    # InitProducerId

    def init_producer_id(
        self,
        transactional_id: str | None,
        *,
        timeout_ms: int,
        expected: Pair = NO_PAIR,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
        owner: str = "",
        now: Now,
    ) -> Decision:
        """A pair for a starting producer; aborts what is ongoing unless it is to be kept.

        `expected` is the pair of a producer that goes on (KIP-360). It is compared before anything is
        aborted, so that a zombie can't end its successor's transaction.
        """
        if (expected.producer_id == -1) != (expected.producer_epoch == -1):
            return refuse(ErrorCode.INVALID_REQUEST)
        if transactional_id is None:
            fresh = self._producer_ids.take()
            if fresh is None:
                return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return Decision(producer=Pair(fresh, 0))
        error = self._check_init(transactional_id, timeout_ms, enable_2pc, keep_prepared)
        if error is not ErrorCode.NONE:
            return refuse(error)
        effective_ms = TWO_PHASE_TIMEOUT_MS if enable_2pc else timeout_ms
        before = self._by_id.get(transactional_id)
        if before is None:
            if owner and self._owners.ids(owner) >= self.settings.ids_per_owner_max:
                return refuse(ErrorCode.POLICY_VIOLATION)
            return self._initialise(None, transactional_id, expected, effective_ms, now, owner)
        if before.state in PREPARED_STATES:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected not in (NO_PAIR, before.client_pair):
            # Only the answer to the same request may be repeated; in an ongoing transaction that is
            # a kept one's. Everything else comes from a zombie.
            is_retry = expected == before.remembered_pair and (
                before.state is not TxnState.ONGOING or (before.is_kept and keep_prepared)
            )
            return self._pair_of(before) if is_retry else refuse(ErrorCode.PRODUCER_FENCED)
        if before.state is not TxnState.ONGOING:
            return self._initialise(before, transactional_id, expected, effective_ms, now, owner)
        if keep_prepared:
            return self._keep(before, expected, enable_2pc, now)
        return self._overrule(before, expected, effective_ms, now)

    def _check_init(
        self, transactional_id: str, timeout_ms: int, enable_2pc: bool, keep_prepared: bool
    ) -> ErrorCode:
        settings = self.settings
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if enable_2pc and not settings.two_phase_enabled:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if (enable_2pc or keep_prepared) and settings.transaction_version < 2:
            # Without a bump per transaction a pair names no single transaction (KIP-890).
            return ErrorCode.UNSUPPORTED_VERSION
        # The largest number stands for two-phase commit and isn't given to anybody who asks.
        largest = min(settings.max_timeout_ms, TWO_PHASE_TIMEOUT_MS - 1)
        if not enable_2pc and not 0 < timeout_ms <= largest:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _initialise(
        self,
        before: Transaction | None,
        transactional_id: str,
        expected: Pair,
        timeout_ms: int,
        now: Now,
        owner: str = "",
        earlier: Decision = DONE,
    ) -> Decision:
        """A new pair after the records of `earlier`, which has ended what was ongoing."""
        after = self._fresh() if before is None else self._bump(before.pair)
        if after is None:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        record = transitions.initialise(
            before, transactional_id, after, timeout_ms, expected, now, owner
        )
        return self._pair_of(record, (*earlier.records, record), earlier.markers)

    def _keep(self, before: Transaction, expected: Pair, enable_2pc: bool, now: Now) -> Decision:
        if enable_2pc and not before.is_two_phase and self._has_too_many_open(before.owner):
            return refuse(ErrorCode.POLICY_VIOLATION)
        after = self._bump(before.client_pair)
        if after is None:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        record = transitions.keep(before, after, expected, enable_2pc=enable_2pc, now=now)
        return self._pair_of(record, (record,))

    def _overrule(self, before: Transaction, expected: Pair, timeout_ms: int, now: Now) -> Decision:
        """Abort what is ongoing and answer with a new pair, all in one entry."""
        is_forced = before.is_two_phase or before.is_kept
        cause = Cause.FORCED if is_forced else Cause.FENCED
        ended = self._abort(before, cause, expected, now)
        if ended.error is not ErrorCode.NONE:
            return ended
        return self._initialise(
            ended.records[-1], before.transactional_id, expected, timeout_ms, now, earlier=ended
        )

    def _pair_of(
        self,
        transaction: Transaction,
        records: tuple[Transaction, ...] = (),
        markers: tuple[Marker, ...] = (),
    ) -> Decision:
        return Decision(
            records=records,
            markers=markers,
            producer=transaction.client_pair,
            ongoing=transaction.ongoing_pair,
            last_finished=transaction.last_finished,
            last_outcome=transaction.last_outcome,
            last_cause=transaction.last_cause,
        )

    # AddPartitionsToTxn, AddOffsetsToTxn, Produce, TxnOffsetCommit

    def add_partitions(
        self,
        transactional_id: str | None,
        producer: Pair,
        partitions: Iterable[PartitionRef],
        *,
        tv2: bool,
        now: Now,
    ) -> Decision:
        """Make partitions part of the producer's transaction, which begins if none is ongoing.

        `tv2`: implicitly, by Produce v12 or TxnOffsetCommit v5, or by AddPartitionsToTxn v4. Ask for
        every transactional write, also where the partition has the transaction open already: once it
        is kept for recovery its old pair must not write any more.
        """
        if not transactional_id:
            return refuse(ErrorCode.INVALID_REQUEST)
        before = self._by_id.get(transactional_id)
        if before is None:
            return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if before.state in PREPARED_STATES:
            # Before the pair: after an overflow the client already has the next one (KAFKA-18660).
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = self._check_writer(before, producer)
        if error is not ErrorCode.NONE:
            return refuse(error)
        wanted = frozenset(partitions)
        if before.state is TxnState.ONGOING:
            if wanted <= before.partitions:
                return DONE
        elif before.is_two_phase and self._has_too_many_open(before.owner):
            # Aborting gets the client going again, and the limit is there no more when others end.
            return refuse(ErrorCode.TRANSACTION_ABORTABLE)
        if tv2 and not self._remembers_version_2:
            return refuse(ErrorCode.UNSUPPORTED_VERSION)
        record = transitions.begin(before, wanted, transaction_version=2 if tv2 else 0, now=now)
        return Decision(records=(record,))

    def add_offsets(
        self,
        transactional_id: str | None,
        producer: Pair,
        offsets_partition: PartitionRef,
        *,
        now: Now,
    ) -> Decision:
        """AddOffsetsToTxn: the group's partition of `__consumer_offsets` joins the transaction."""
        return self.add_partitions(
            transactional_id, producer, (offsets_partition,), tv2=False, now=now
        )

    def verify(
        self,
        transactional_id: str | None,
        producer: Pair,
        partitions: Iterable[PartitionRef],
    ) -> Decision:
        """Whether partitions are part of the producer's ongoing transaction (KIP-890, version 1)."""
        if not transactional_id:
            return refuse(ErrorCode.INVALID_REQUEST)
        known = self._by_id.get(transactional_id)
        if known is None:
            return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        error = self._check_writer(known, producer)
        if error is not ErrorCode.NONE:
            return refuse(error)
        if known.state in PREPARED_STATES:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        outside = [partition for partition in partitions if partition not in known.partitions]
        if not outside:
            return DONE
        return Decision(partition_errors=dict.fromkeys(outside, ErrorCode.TRANSACTION_ABORTABLE))

    def _has_too_many_open(self, owner: str) -> bool:
        limit = self.settings.two_phase_per_owner_max
        return bool(owner) and self._owners.open_two_phase(owner) >= limit

    @staticmethod
    def _check_writer(known: Transaction, producer: Pair) -> ErrorCode:
        if known.is_kept and producer == known.pair:
            return ErrorCode.PRODUCER_FENCED
        error = _check_pair(known.client_pair, producer)
        if error is ErrorCode.NONE and known.is_kept:
            return ErrorCode.INVALID_TXN_STATE  # a kept transaction can only be completed
        return error

    # EndTxn

    def end_txn(
        self,
        transactional_id: str | None,
        producer: Pair,
        *,
        commit: bool,
        tv2: bool,
        now: Now,
    ) -> Decision:
        """Commit or abort; `tv2` for EndTxn v5, whose reply carries the next pair.

        With a partition offline the outcome is decided and the reply is CONCURRENT_TRANSACTIONS: the
        client asks again and gets its success when the last marker is written.
        """
        if not transactional_id or min(producer) < 0:
            return refuse(ErrorCode.INVALID_REQUEST)
        before = self._by_id.get(transactional_id)
        if before is None:
            return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if tv2:
            return self._end_v2(before, producer, commit, now)
        return self._end_v1(before, producer, commit, now)

    def _end_v1(self, before: Transaction, producer: Pair, commit: bool, now: Now) -> Decision:
        if before.is_kept and producer != before.client_pair:
            return refuse(ErrorCode.PRODUCER_FENCED)
        error = _check_pair(before.client_pair, producer)
        if error is not ErrorCode.NONE:
            return refuse(error)
        if before.state in PREPARED_STATES:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state is TxnState.ONGOING:
            if before.is_kept or before.is_two_phase:
                # The pair would stay the same and name the next transaction too.
                return refuse(ErrorCode.INVALID_TXN_STATE)
            ending = Ending(commit, Cause.CLIENT, 0, before.producer_epoch, before.pair, NO_PAIR)
            return self._end(before, ending, now)
        if before.state is _completed(commit):
            return DONE
        return refuse(ErrorCode.INVALID_TXN_STATE)

    def _end_v2(self, before: Transaction, producer: Pair, commit: bool, now: Now) -> Decision:
        if before.state in PREPARED_STATES:
            # Before the pair (KAFKA-18464): three producer ids may be in play.
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state in COMPLETED_STATES and producer == before.remembered_pair:
            if before.state is not _completed(commit):
                return refuse(ErrorCode.INVALID_TXN_STATE)
            return self._pair_of(before)
        error = _check_pair(before.client_pair, producer)
        if error is not ErrorCode.NONE:
            return refuse(error)
        if commit and before.state is not TxnState.ONGOING:
            return refuse(ErrorCode.INVALID_TXN_STATE)
        if not self._remembers_version_2:
            return refuse(ErrorCode.UNSUPPORTED_VERSION)
        after = self._bump(producer)
        if after is None:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        ending = Ending(
            commit, Cause.CLIENT, 2, self._marker_epoch(before), after, before.client_pair
        )
        return self._end(before, ending, now)

    def _abort(self, before: Transaction, cause: Cause, expected: Pair, now: Now) -> Decision:
        """The coordinator's own abort. It moves the pair, under version 1 too.

        A client whose transaction timed out may still ask for its abort; one that was fenced may not,
        so only `expected`, the pair of the instance that asked, counts as a retry.
        """
        after = self._bump(before.client_pair)
        if after is None:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        version = 2 if self.settings.transaction_version >= 2 else 0
        retry = expected if version else NO_PAIR
        return self._end(
            before, Ending(False, cause, version, self._marker_epoch(before), after, retry), now
        )

    def _end(self, before: Transaction, ending: Ending, now: Now) -> Decision:
        """PrepareX, the markers and CompleteX; PrepareX alone while a partition is offline."""
        online, offline = self._reachable(before.partitions)
        prepared = transitions.prepare(before, ending, offline or online, now)
        markers = _markers(prepared, online)
        if offline:
            return Decision(
                error=ErrorCode.CONCURRENT_TRANSACTIONS, records=(prepared,), markers=markers
            )
        completed = transitions.complete(prepared, now)
        return self._pair_of(completed, (prepared, completed), markers)

    # What nobody asks for

    def abort_timed_out(self, now: Now, limit: int = _SCAN_LIMIT) -> list[Decision]:
        """Aborts of ordinary transactions that are too old; two-phase ones never are.

        Execute all of them before the next request is served.
        """
        decisions = []
        for transactional_id in self._timeouts.due(now.steady_ms, limit):
            transaction = self._by_id.get(transactional_id)
            deadline = None if transaction is None else transaction.deadline_steady_ms
            if transaction is None or deadline is None:
                continue
            if deadline >= now.steady_ms:
                self._timeouts.arm(transactional_id, deadline + 1)
                continue
            self._timeouts.arm(transactional_id, now.steady_ms + 1)
            decision = self._abort(transaction, Cause.TIMEOUT, transaction.client_pair, now)
            if decision.records:
                decisions.append(decision)
        return decisions

    def expire_ids(self, now: Now, limit: int = _SCAN_LIMIT) -> Decision:
        """Tombstones for ids that nobody has used for a long time and that have nothing open.

        Looks at no more than `limit` ids; call again while the decision has records.
        """
        tombstones = []
        for transactional_id in self._expiries.due(now.steady_ms, limit):
            transaction = self._by_id.get(transactional_id)
            if transaction is None:
                continue
            deadline = self._expiry(transaction)
            if deadline > now.steady_ms:
                self._expiries.arm(transactional_id, deadline)
                continue
            if transaction.state not in EXPIRABLE_STATES:
                # Whatever ends it will also renew its life.
                self._expiries.arm(transactional_id, now.steady_ms + self.settings.id_expiration_ms)
                continue
            self._expiries.arm(transactional_id, now.steady_ms + 1)
            tombstones.append(tombstone(transactional_id, now.wall_ms))
        return Decision(records=tuple(tombstones))

    def complete_decided(self, now: Now) -> list[Decision]:
        """Go on with decided transactions whose offline partitions are back or deleted.

        To be called after loading, when a partition comes back and when a topic is deleted.
        """
        decisions = []
        for transactional_id in self._decided:
            before = self._by_id[transactional_id]
            online, offline = self._reachable(before.partitions)
            if offline == before.partitions:
                continue
            markers = _markers(before, online)
            if offline:
                record = transitions.shrink(before, offline, now)
            else:
                record = transitions.complete(before, now)
            decisions.append(Decision(records=(record,), markers=markers))
        return decisions

    def next_timeout_ms(self) -> int | None:
        """Running time at which `abort_timed_out` may have something to do."""
        return self._timeouts.next_ms()

    # The only mutator

    def replay(self, record: Transaction) -> None:
        """Make `record` the state of its id; raises `IllegalTransition` if it can't follow."""
        transactional_id = record.transactional_id
        before = self._by_id.get(transactional_id)
        check_transition(before, record)
        self._owners.moved(before, record)
        if before is not None and before.producer_id in self._open:
            del self._open[before.producer_id]
        if record.state is TxnState.DEAD:
            self._by_id.pop(transactional_id, None)
            return
        self._by_id[transactional_id] = record
        if record.state in PREPARED_STATES:
            self._open[record.producer_id] = transactional_id
            self._decided[transactional_id] = None
            return
        self._decided.pop(transactional_id, None)
        if record.state is TxnState.ONGOING:
            self._open[record.producer_id] = transactional_id
            deadline = record.deadline_steady_ms
            if deadline is not None:
                self._timeouts.arm(transactional_id, deadline + 1)
        if before is None:
            self._expiries.arm(transactional_id, self._expiry(record))

    # Small things

    @property
    def _remembers_version_2(self) -> bool:
        # At level 0 Kafka's records have no tags, so it refuses what would need some. Ours have, but
        # a client that doesn't look at the level would come to know it elsewhere.
        return self.settings.transaction_version > 0

    def _reachable(
        self, partitions: frozenset[PartitionRef]
    ) -> tuple[frozenset[PartitionRef], frozenset[PartitionRef]]:
        """Those that take a marker now, and those that may later."""
        if all(self._availability(p) is Availability.ONLINE for p in partitions):
            return partitions, NO_PARTITIONS
        found = {partition: self._availability(partition) for partition in partitions}
        return (
            frozenset(p for p, how in found.items() if how is Availability.ONLINE),
            frozenset(p for p, how in found.items() if how is Availability.OFFLINE),
        )

    def _expiry(self, transaction: Transaction) -> int:
        return transaction.update_steady_ms + self.settings.id_expiration_ms

    def _marker_epoch(self, transaction: Transaction) -> int:
        # KAFKA-20090: the largest epoch, found in old state, is not bumped.
        return min(transaction.producer_epoch + 1, self.settings.epoch_max)

    def _bump(self, pair: Pair) -> Pair | None:
        """The pair after this one; a fresh producer id when its epochs are used up."""
        if pair.producer_epoch >= self.settings.epoch_max - 1:
            return self._fresh()
        return Pair(pair.producer_id, pair.producer_epoch + 1)

    def _fresh(self) -> Pair | None:
        producer_id = self._producer_ids.take()
        return None if producer_id is None else Pair(producer_id, 0)


def _completed(commit: bool) -> TxnState:
    return TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT


def _check_pair(known: Pair, claimed: Pair) -> ErrorCode:
    if claimed.producer_id != known.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if claimed.producer_epoch != known.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _markers(prepared: Transaction, partitions: frozenset[PartitionRef]) -> tuple[Marker, ...]:
    if not partitions:
        return ()
    marker = Marker(
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        commit=prepared.state is TxnState.PREPARE_COMMIT,
        partitions=partitions,
        transaction_version=prepared.client_transaction_version,
    )
    return (marker,)
