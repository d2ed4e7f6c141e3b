"""Bugs to plant. Each must be caught by the simulator: a checker that finds nothing proves nothing.

A mutant patches the broker's classes for the time of one history. `seed` is a history that catches it.
"""

from collections.abc import Callable
from typing import Any

from dualwrite.broker import internal_topics
from dualwrite.broker.cluster import Cluster
from dualwrite.broker.groups.offsets import Offsets
from dualwrite.broker.internal_topics import InternalTopics
from dualwrite.broker.node import Node
from dualwrite.broker.producers import states
from dualwrite.broker.producers.aborted import AbortedTxns
from dualwrite.broker.producers.states import ProducerStates
from dualwrite.broker.producers.unstable import Unstable
from dualwrite.broker.storage.memory_disk import MemoryFile
from dualwrite.broker.storage.storage import Storage
from dualwrite.broker.transactions import coordinator
from dualwrite.broker.transactions.coordinator import Coordinator
from dualwrite.broker.transactions.decision import DONE
from dualwrite.broker.transactions.owners import Owners
from dualwrite.broker.transactions.pattern import Pattern
from dualwrite.broker.transactions.records import encode_value
from dualwrite.broker.transactions.state import (
    COMPLETED_STATES,
    Cause,
    Outcome,
    Pair,
    Transaction,
    TxnState,
)
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.simulation.planted import Mutant, registering
from tests.simulation.reader_mutants import READER_MUTANTS

WALL_START_MS = 1_700_000_000_000

MUTANTS: dict[str, Mutant] = {**READER_MUTANTS}
mutant = registering(MUTANTS)


# Durability: a reply or a read before what it rests on is on disk


def _answers_early(patch: Any, *keys: int) -> None:
    parked = Node.answer

    def answer(node: Node, call: Any, response: Any) -> None:
        if call.key in keys:
            call.connection.deliver(call, response)
        else:
            parked(node, call, response)

    patch.setattr(Node, "answer", answer)


@mutant(seed=3)
def produce_is_acknowledged_before_fsync(patch: Any) -> None:
    _answers_early(patch, ApiKey.PRODUCE)


@mutant(seed=64)
def end_txn_is_acknowledged_before_fsync(patch: Any) -> None:
    _answers_early(patch, ApiKey.END_TXN)


@mutant(seed=109)
def init_is_acknowledged_before_fsync(patch: Any) -> None:
    _answers_early(patch, ApiKey.INIT_PRODUCER_ID)


@mutant(seed=2952)
def offset_fetch_is_answered_before_fsync(patch: Any) -> None:
    _answers_early(patch, ApiKey.OFFSET_FETCH)


@mutant(seed=3532)
def txn_offset_commit_is_acknowledged_before_fsync(patch: Any) -> None:
    _answers_early(patch, ApiKey.TXN_OFFSET_COMMIT)


def _unwritten_answers_early(patch: Any, key: int) -> None:
    """Answers at once what added nothing itself: a duplicate, a retry, a read."""
    handle = Node.handle

    def handled(node: Node, call: Any) -> bool:
        position = node.storage.position
        is_done = handle(node, call)
        if call.key == key and is_done and node.storage.position == position:
            _, _, response = node._parked.pop()
            call.connection.deliver(call, response)
        return is_done

    patch.setattr(Node, "handle", handled)


@mutant(seed=347)
def duplicate_is_acknowledged_before_the_original_is_durable(patch: Any) -> None:
    _unwritten_answers_early(patch, ApiKey.PRODUCE)


@mutant(seed=220)
def repeated_end_txn_is_acknowledged_before_the_first_is_durable(patch: Any) -> None:
    _unwritten_answers_early(patch, ApiKey.END_TXN)


@mutant(seed=15)
def readers_see_what_is_not_durable(patch: Any) -> None:
    _answers_early(patch, ApiKey.FETCH)
    add = Storage.add

    def added(storage: Storage, entry: Any, now: Any) -> int:
        position = add(storage, entry, now)
        for log in storage.logs.values():
            log.high_watermark = log.end
        return position

    patch.setattr(Storage, "add", added)


@mutant(seed=97)
def replies_leave_before_the_flush(patch: Any) -> None:
    flush = Node.flush

    def flushed(node: Node, now: Any) -> None:
        while node._parked:
            _, call, response = node._parked.popleft()
            call.connection.deliver(call, response)
        flush(node, now)

    patch.setattr(Node, "flush", flushed)


@mutant(seed=0)
def fsync_does_nothing(patch: Any) -> None:
    patch.setattr(MemoryFile, "fdatasync", lambda file: None)


@mutant(seed=0)
def producer_id_block_is_not_journalled(patch: Any) -> None:
    patch.setattr(Cluster, "reservation", lambda cluster: None)


@mutant(seed=3)
def end_txn_is_two_entries(patch: Any) -> None:
    """The records in one, the markers in the next, and a flush in between."""
    execute = Node.execute

    def executed(node: Node, decision: Any, now: Any, items: Any = ()) -> None:
        if not decision.markers:
            execute(node, decision, now, items)
            return
        execute(node, decision._replace(markers=()), now, items)
        node.storage.flush()
        execute(node, decision._replace(records=()), now)

    patch.setattr(Node, "execute", executed)


@mutant(seed=1)
def added_partitions_are_not_journalled(patch: Any) -> None:
    items = InternalTopics.transaction_items

    def kept(topics: InternalTopics, changes: Any, now: Any) -> Any:
        changes = [c for c in changes if c.state is not TxnState.ONGOING or c.is_kept]
        return items(topics, changes, now)

    patch.setattr(InternalTopics, "transaction_items", kept)


# What is written or loaded


def _forgets(patch: Any, **fields: Any) -> None:
    def encode(change: Transaction) -> bytes | None:
        return encode_value(change._replace(**fields))

    patch.setattr(internal_topics, "encode_value", encode)


@mutant(seed=1174)
def last_epoch_is_not_persisted(patch: Any) -> None:
    """KAFKA-20357."""
    _forgets(patch, last_producer_epoch=-1)


@mutant(seed=365)
def kept_pair_is_not_persisted(patch: Any) -> None:
    _forgets(patch, next_producer_id=-1, next_producer_epoch=-1)


@mutant(seed=0)
def outcome_is_not_persisted(patch: Any) -> None:
    _forgets(patch, last_outcome=Outcome.NONE)


@mutant(seed=0)
def partitions_are_not_persisted(patch: Any) -> None:
    _forgets(patch, partitions=frozenset())


@mutant(seed=0)
def transactions_are_not_loaded(patch: Any) -> None:
    patch.setattr(InternalTopics, "load_transactions", lambda *arguments: None)


# Two-phase commit


@mutant(seed=22)
def two_phase_transaction_expires(patch: Any) -> None:
    def deadline(transaction: Transaction) -> int | None:
        if transaction.state is not TxnState.ONGOING:
            return None
        return transaction.start_steady_ms + min(transaction.timeout_ms, 60_000)

    patch.setattr(Transaction, "deadline_steady_ms", property(deadline))


@mutant(seed=0)
def keep_prepared_is_ignored(patch: Any) -> None:
    init = Coordinator.init_producer_id

    def forced(self: Coordinator, name: Any, *, keep_prepared: bool = False, **fields: Any) -> Any:
        return init(self, name, **fields)

    patch.setattr(Coordinator, "init_producer_id", forced)


@mutant(seed=29)
def keep_prepared_moves_no_pair(patch: Any) -> None:
    """The design that KIP-939 rejected as "skip epoch bump"."""
    patch.setattr(
        Coordinator,
        "_keep",
        lambda self, before, *rest: DONE._replace(producer=before.pair, ongoing=before.pair),
    )


@mutant(seed=38)
def old_pair_ends_a_kept_transaction(patch: Any) -> None:
    end = Coordinator._end_v2

    def ended(self: Coordinator, before: Any, producer: Pair, commit: bool, now: Any) -> Any:
        if before.is_kept and producer == before.pair:
            producer = before.client_pair
        return end(self, before, producer, commit, now)

    patch.setattr(Coordinator, "_end_v2", ended)


@mutant(seed=38)
def older_recovery_ends_a_kept_transaction(patch: Any) -> None:
    end = Coordinator._end_v2

    def ended(self: Coordinator, before: Any, producer: Pair, commit: bool, now: Any) -> Any:
        if before.is_kept and producer[0] == before.client_pair[0]:
            producer = before.client_pair
        return end(self, before, producer, commit, now)

    patch.setattr(Coordinator, "_end_v2", ended)


@mutant(seed=29)
def old_pair_writes_into_a_kept_transaction(patch: Any) -> None:
    check = Coordinator._check_writer

    def checked(known: Transaction, producer: Pair) -> ErrorCode:
        if known.is_kept and producer == known.pair:
            return ErrorCode.NONE
        return check(known, producer)

    patch.setattr(Coordinator, "_check_writer", staticmethod(checked))


# Pairs and fencing


@mutant(seed=1)
def end_txn_does_not_move_the_pair(patch: Any) -> None:
    end = Coordinator._end

    def ended(self: Coordinator, before: Any, ending: Any, now: Any) -> Any:
        if before.state is TxnState.ONGOING and not before.is_kept:
            ending = ending._replace(after=before.pair, marker_epoch=before.producer_epoch)
        return end(self, before, ending, now)

    patch.setattr(Coordinator, "_end", ended)


@mutant(seed=8)
def init_does_not_move_the_pair(patch: Any) -> None:
    bump = Coordinator._bump
    initialise = Coordinator._initialise

    def initialised(self: Coordinator, before: Any, *rest: Any, **fields: Any) -> Any:
        self._bump = lambda pair: pair  # type: ignore[method-assign]
        try:
            return initialise(self, before, *rest, **fields)
        finally:
            self._bump = lambda pair: bump(self, pair)  # type: ignore[method-assign]

    patch.setattr(Coordinator, "_initialise", initialised)


@mutant(seed=37)
def delayed_end_txn_ends_the_next_transaction(patch: Any) -> None:
    """KAFKA-17754."""
    end = Coordinator._end_v2

    def ended(self: Coordinator, before: Any, producer: Pair, commit: bool, now: Any) -> Any:
        if before.state is TxnState.ONGOING and producer[1] == before.client_pair[1] - 1:
            producer = before.client_pair
        return end(self, before, producer, commit, now)

    patch.setattr(Coordinator, "_end_v2", ended)


@mutant(seed=0)
def overflow_keeps_the_producer_id(patch: Any) -> None:
    def bump(self: Coordinator, pair: Pair) -> Pair:
        if pair.producer_epoch >= self.settings.epoch_max - 1:
            return Pair(pair.producer_id, 0)
        return Pair(pair.producer_id, pair.producer_epoch + 1)

    patch.setattr(Coordinator, "_bump", bump)


@mutant(seed=63)
def timeout_counts_the_wall_clock(patch: Any) -> None:
    abort = Coordinator.abort_timed_out

    def aborted(self: Coordinator, now: Any, limit: int = 1000) -> Any:
        return abort(self, now._replace(steady_ms=now.wall_ms - WALL_START_MS), limit)

    patch.setattr(Coordinator, "abort_timed_out", aborted)


@mutant(seed=0)
def added_partition_is_forgotten(patch: Any) -> None:
    add = Coordinator.add_partitions

    def added(self: Coordinator, name: Any, producer: Pair, partitions: Any, **fields: Any) -> Any:
        decision = add(self, name, producer, partitions, **fields)
        known = self.get(name)
        is_further = known is not None and known.state is TxnState.ONGOING
        return DONE if decision.records and is_further else decision

    patch.setattr(Coordinator, "add_partitions", added)


@mutant(seed=16)
def expected_pair_is_not_compared(patch: Any) -> None:
    """T-5: a zombie's InitProducerId ends its successor's transaction."""
    init = Coordinator.init_producer_id

    def unasked(self: Coordinator, name: Any, *, expected: Pair, **fields: Any) -> Any:
        return init(self, name, **fields)

    patch.setattr(Coordinator, "init_producer_id", unasked)


@mutant(seed=118)
def version_1_writes_are_not_verified(patch: Any) -> None:
    """KAFKA-14402."""
    patch.setattr(Coordinator, "verify", lambda *arguments: DONE)


# Markers


def _changes_markers(patch: Any, change: Callable[[Any], Any]) -> None:
    markers = coordinator._markers
    patch.setattr(
        coordinator, "_markers", lambda *arguments: tuple(map(change, markers(*arguments)))
    )


@mutant(seed=32)
def marker_has_a_lower_epoch(patch: Any) -> None:
    _changes_markers(patch, lambda m: m._replace(producer_epoch=max(0, m.producer_epoch - 1)))


@mutant(seed=1)
def marker_has_a_higher_epoch(patch: Any) -> None:
    _changes_markers(patch, lambda m: m._replace(producer_epoch=m.producer_epoch + 1))


@mutant(seed=0)
def marker_forgets_a_partition(patch: Any) -> None:
    _changes_markers(patch, lambda m: m._replace(partitions=frozenset(sorted(m.partitions)[1:])))


@mutant(seed=0)
def abort_writes_commit_markers(patch: Any) -> None:
    _changes_markers(patch, lambda m: m._replace(commit=True))


@mutant(seed=0)
def commit_writes_abort_markers(patch: Any) -> None:
    _changes_markers(patch, lambda m: m._replace(commit=False))


@mutant(seed=1)
def fencing_writes_no_markers(patch: Any) -> None:
    overrule = Coordinator._overrule
    patch.setattr(
        Coordinator,
        "_overrule",
        lambda *arguments: overrule(*arguments)._replace(markers=()),
    )


# The log


@mutant(seed=0)
def readers_pass_an_open_transaction(patch: Any) -> None:
    patch.setattr(ProducerStates, "last_stable", lambda self, high_watermark: high_watermark)


@mutant(seed=521)
def readers_pass_an_end_that_is_not_durable(patch: Any) -> None:
    _answers_early(patch, ApiKey.FETCH)
    patch.setattr(Unstable, "first", lambda self, high_watermark: self.first_open)


@mutant(seed=0)
def aborted_transactions_are_not_listed(patch: Any) -> None:
    patch.setattr(AbortedTxns, "between", lambda self, fetch_offset, upper: [])


@mutant(seed=19)
def open_transactions_are_lost_at_a_checkpoint(patch: Any) -> None:
    load = ProducerStates.load

    def loaded(self: ProducerStates, producers: Any, aborted: Any = ()) -> None:
        known = list(producers)
        for _, state in known:
            state.first_offset = None
        load(self, known, aborted)

    patch.setattr(ProducerStates, "load", loaded)


@mutant(seed=12)
def duplicates_are_appended(patch: Any) -> None:
    patch.setattr(states, "_find_duplicate", lambda state, header: None)
    patch.setattr(ProducerStates, "_check_sequence", lambda *arguments: None)


@mutant(seed=12)
def duplicate_is_taken_for_a_gap(patch: Any) -> None:
    patch.setattr(states, "_find_duplicate", lambda state, header: None)


# Offsets in transactions


@mutant(seed=4)
def pending_offsets_are_visible(patch: Any) -> None:
    replay = Offsets.replay

    def replayed(self: Offsets, group: str, place: Any, value: Any, writer: Any) -> None:
        replay(self, group, place, value, None)

    patch.setattr(Offsets, "replay", replayed)


@mutant(seed=4)
def aborted_offsets_are_committed(patch: Any) -> None:
    end = Offsets.replay_marker
    patch.setattr(Offsets, "replay_marker", lambda self, writer, commit: end(self, writer, True))


@mutant(seed=1)
def committed_offsets_are_dropped(patch: Any) -> None:
    end = Offsets.replay_marker
    patch.setattr(Offsets, "replay_marker", lambda self, writer, commit: end(self, writer, False))


@mutant(seed=1)
def offsets_marker_is_not_replayed_at_a_start(patch: Any) -> None:
    load = InternalTopics.load_groups

    def loaded(topics: InternalTopics, storage: Any, groups: Any, now: Any) -> None:
        real = groups.replay_marker
        groups.replay_marker = lambda *arguments: None
        load(topics, storage, groups, now)
        groups.replay_marker = real

    patch.setattr(InternalTopics, "load_groups", loaded)


# What only a client that errs can show


@mutant(seed=16)
def kept_transaction_takes_more_writes(patch: Any) -> None:
    check = Coordinator._check_writer

    def checked(known: Transaction, producer: Pair) -> ErrorCode:
        error = check(known, producer)
        return ErrorCode.NONE if error is ErrorCode.INVALID_TXN_STATE else error

    patch.setattr(Coordinator, "_check_writer", staticmethod(checked))


@mutant(seed=15)
def two_phase_transaction_is_ended_by_version_1(patch: Any) -> None:
    end = Coordinator._end_v1

    def ended(self: Coordinator, before: Transaction, *rest: Any) -> Any:
        is_ongoing = before.state is TxnState.ONGOING and not before.is_kept
        return end(self, before._replace(timeout_ms=1) if is_ongoing else before, *rest)

    patch.setattr(Coordinator, "_end_v1", ended)


@mutant(seed=2)
def commit_of_nothing_succeeds(patch: Any) -> None:
    end = Coordinator._end_v2

    def ended(
        self: Coordinator, before: Transaction, producer: Pair, commit: bool, now: Any
    ) -> Any:
        is_open = before.state is TxnState.ONGOING
        return end(self, before, producer, commit and is_open, now)

    patch.setattr(Coordinator, "_end_v2", ended)


@mutant(seed=2)
def retried_end_gets_whatever_it_asks_for(patch: Any) -> None:
    end = Coordinator._end_v2

    def ended(
        self: Coordinator, before: Transaction, producer: Pair, commit: bool, now: Any
    ) -> Any:
        if before.state in COMPLETED_STATES and producer == before.remembered_pair:
            commit = before.state is TxnState.COMPLETE_COMMIT
        return end(self, before, producer, commit, now)

    patch.setattr(Coordinator, "_end_v2", ended)


@mutant(seed=2)
def nobody_has_too_many_open(patch: Any) -> None:
    patch.setattr(Coordinator, "_has_too_many_open", lambda self, owner: False)


@mutant(seed=2)
def ids_of_a_principal_are_not_counted(patch: Any) -> None:
    patch.setattr(Owners, "ids", lambda self, owner: 0)


@mutant(seed=2)
def timeout_is_remembered_as_a_fencing(patch: Any) -> None:
    abort = Coordinator._abort
    patch.setattr(
        Coordinator,
        "_abort",
        lambda self, before, cause, *rest: abort(self, before, Cause.FENCED, *rest),
    )


@mutant(seed=2)
def admin_ends_an_open_transaction(patch: Any) -> None:
    patch.setattr(Coordinator, "is_open", lambda self, producer_id: False)


@mutant(seed=16)
def metrics_leave_out_open_transactions(patch: Any) -> None:
    patch.setattr(Coordinator, "open_transactions", lambda self: iter(()))


@mutant(seed=310)
def pattern_need_not_match_to_the_end(patch: Any) -> None:
    match = Pattern.fullmatch
    patch.setattr(
        Pattern,
        "fullmatch",
        lambda self, text: any(match(self, text[:end]) for end in range(len(text) + 1)),
    )


@mutant(seed=30)
def two_phase_commit_does_without_version_2(patch: Any) -> None:
    check = Coordinator._check_init

    def checked(self: Coordinator, *arguments: Any) -> ErrorCode:
        error = check(self, *arguments)
        return ErrorCode.NONE if error is ErrorCode.UNSUPPORTED_VERSION else error

    patch.setattr(Coordinator, "_check_init", checked)
