"""The rules of one partition for sequences, epochs and transactions."""

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import (
    AbortedTxn,
    Accept,
    Duplicate,
    Origin,
    ProducerStates,
    Refuse,
    Standing,
)
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.records import BatchHeader, EndMarker, build_batch, control_batch

NOW = Now(1_700_000_000_000, 0)
SEQUENCE_MAX = 2**31 - 1


def header(sequence=0, *, count=1, producer=7, epoch=0, transactional=False):
    return BatchHeader.parse(
        build_batch(
            [(b"k", b"v", None, NOW.wall_ms)] * count,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )


class Partition:
    """Producer states together with the offsets that a log would give out."""

    def __init__(self):
        self.states = ProducerStates()
        self.end = 0

    def append(self, batch, now=NOW, **how):
        """The verdict; an accepted batch is applied."""
        verdict = self.states.check(batch, **{"verified": True, **how})
        if isinstance(verdict, Accept):
            last = self.end + batch.last_offset_delta
            self.states.apply(batch, self.end, last, now)
            self.end = last + 1
        return verdict

    def mark(self, *, commit=True, producer=7, epoch=0, coordinator=0, tv2=False, now=NOW):
        marker = EndMarker(commit, producer, epoch, coordinator)
        verdict = self.states.check_marker(marker, tv2=tv2)
        if isinstance(verdict, Accept):
            self.states.apply_marker(marker, self.end, now)
            self.end += 1
        return verdict


@pytest.fixture
def partition():
    return Partition()


def code(verdict):
    assert isinstance(verdict, Refuse), verdict
    return verdict.code


# Sequences


def test_sequences_must_follow_each_other(partition):
    assert isinstance(partition.append(header(0, count=3)), Accept)
    assert isinstance(partition.append(header(3)), Accept)
    assert code(partition.append(header(5))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(header(4)), Accept)


def test_an_unknown_producer_may_begin_anywhere(partition):
    assert isinstance(partition.append(header(41)), Accept)
    assert isinstance(partition.append(header(42)), Accept)


def test_sequences_wrap_around(partition):
    partition.append(header(SEQUENCE_MAX - 1, count=2))
    assert isinstance(partition.append(header(0)), Accept)
    assert isinstance(partition.append(header(1)), Accept)


def test_a_batch_across_the_wrap_is_known_again(partition):
    partition.append(header(SEQUENCE_MAX, count=3))
    assert partition.append(header(SEQUENCE_MAX, count=3)) == Duplicate(0, 2, NOW.wall_ms)
    assert isinstance(partition.append(header(2)), Accept)


def test_five_batches_are_known_again_and_no_more(partition):
    for sequence in range(0, 12, 2):
        partition.append(header(sequence, count=2))
    for sequence in range(2, 12, 2):
        expected = Duplicate(sequence, sequence + 1, NOW.wall_ms)
        assert partition.append(header(sequence, count=2)) == expected
    assert code(partition.append(header(0, count=2))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.end == 12


def test_only_the_very_same_batch_is_a_duplicate(partition):
    partition.append(header(0, count=3))
    assert code(partition.append(header(0, count=2))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(partition.append(header(1, count=2))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_begins_with_zero(partition):
    partition.append(header(0))
    assert code(partition.append(header(1, epoch=1))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(header(0, epoch=1)), Accept)


def test_an_old_epoch_is_fenced_before_its_sequence_is_looked_at(partition):
    partition.append(header(0, epoch=2))
    assert code(partition.append(header(9, epoch=1))) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_duplicate_of_an_old_epoch_is_fenced(partition):
    partition.append(header(0, epoch=1))
    partition.append(header(0, epoch=2))
    assert code(partition.append(header(0, epoch=1))) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_format_comes_first(partition):
    control = BatchHeader.parse(
        control_batch(
            commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
    )
    assert code(partition.append(control)) == ErrorCode.INVALID_RECORD
    assert code(partition.append(header(-1))) == ErrorCode.INVALID_RECORD
    assert code(partition.append(header(0, epoch=-1))) == ErrorCode.INVALID_RECORD
    assert code(partition.append(header(0, producer=-1, transactional=True))) == (
        ErrorCode.INVALID_RECORD
    )
    assert isinstance(partition.append(header(-1, producer=-1, epoch=-1)), Accept)


def test_a_coordinator_has_no_sequences(partition):
    batch = header(-1, transactional=True)
    for _ in range(2):
        assert isinstance(partition.append(batch, origin=Origin.COORDINATOR), Accept)


# Transactions


def test_a_transaction_needs_the_coordinators_word(partition):
    batch = header(0, transactional=True)
    assert code(partition.append(batch, verified=False)) == ErrorCode.INVALID_TXN_STATE
    assert isinstance(partition.append(batch), Accept)
    following = header(1, transactional=True)
    assert isinstance(partition.append(following, verified=False), Accept)


def test_a_fenced_epoch_is_told_so_and_not_that_its_transaction_is_unknown(partition):
    """KAFKA-19690: 48 is fatal for the client, 47 is not."""
    partition.append(header(0, epoch=3, transactional=True))
    partition.mark(epoch=3)
    late = header(0, epoch=2, transactional=True)
    assert code(partition.append(late, verified=False)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_version_2_transactions_begin_with_sequence_zero(partition):
    """KAFKA-18202."""
    late = header(5, transactional=True)
    assert code(partition.append(late, tv2=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(header(0, transactional=True), tv2=True), Accept)


def test_version_2_restarts_sequences_after_each_marker(partition):
    for epoch in range(3):
        assert isinstance(
            partition.append(header(0, epoch=epoch, transactional=True), tv2=True), Accept
        )
        assert isinstance(
            partition.append(header(1, epoch=epoch, transactional=True), tv2=True), Accept
        )
        assert isinstance(partition.mark(epoch=epoch + 1, tv2=True), Accept)


def test_version_1_goes_on_with_its_sequences(partition):
    partition.append(header(0, transactional=True))
    partition.mark(epoch=0)
    assert isinstance(partition.append(header(1, transactional=True)), Accept)


def test_plain_batches_wait_for_the_end_of_the_transaction(partition):
    partition.append(header(0, transactional=True))
    assert code(partition.append(header(1))) == ErrorCode.INVALID_TXN_STATE
    partition.mark()
    assert isinstance(partition.append(header(1)), Accept)


@pytest.mark.parametrize(
    ("tv2", "expected"),
    [(True, ErrorCode.CONCURRENT_TRANSACTIONS), (False, ErrorCode.INVALID_TXN_STATE)],
)
def test_r9_the_old_epochs_marker_comes_before_data_of_the_new(partition, tv2, expected):
    """Consumers match aborted transactions by producer id alone."""
    partition.append(header(0, epoch=1, transactional=True))
    newer = header(0, epoch=2, transactional=True)
    assert code(partition.append(newer, tv2=tv2)) == expected
    partition.mark(commit=False, epoch=2, tv2=True)
    assert isinstance(partition.append(newer, tv2=tv2), Accept)
    (aborted,) = partition.states.aborted
    assert (aborted.first_offset, aborted.last_offset) == (0, 1)


def test_a_postponed_batch_holds_later_ones_back(partition):
    """KAFKA-14920: a later batch in flight must not take the place of the first."""
    first, second = header(10, transactional=True), header(11, transactional=True)
    partition.states.postpone(first, tv2=False, now=NOW)
    assert code(partition.append(second)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(first), Accept)
    assert isinstance(partition.append(second), Accept)


def test_a_marker_keeps_what_the_next_transaction_has_postponed(partition):
    """KAFKA-18575."""
    partition.append(header(0, epoch=0, transactional=True))
    waiting = header(0, epoch=1, transactional=True)
    later = header(1, epoch=1, transactional=True)
    partition.states.postpone(waiting, tv2=True, now=NOW)
    partition.mark(epoch=1, tv2=True)
    assert code(partition.append(later, tv2=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(partition.append(waiting, tv2=True), Accept)


# Markers


def test_version_1_markers_may_have_the_transactions_epoch(partition):
    partition.append(header(0, epoch=4, transactional=True))
    assert code(partition.mark(epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert isinstance(partition.mark(epoch=4), Accept)


def test_version_2_markers_must_have_a_later_epoch(partition):
    """KAFKA-19446, KIP-1228."""
    partition.append(header(0, epoch=4, transactional=True))
    assert code(partition.mark(epoch=4, tv2=True)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert isinstance(partition.mark(epoch=5, tv2=True), Accept)


def test_the_same_marker_again_is_written_again(partition):
    """KAFKA-19999."""
    partition.append(header(0, epoch=4, transactional=True))
    partition.mark(epoch=5, tv2=True)
    assert isinstance(partition.mark(epoch=5, tv2=True), Accept)
    assert len(partition.states.aborted) == 0


def test_the_last_epoch_can_be_ended(partition):
    """KAFKA-20090."""
    partition.append(header(0, epoch=32767, transactional=True))
    assert isinstance(partition.mark(epoch=32767, tv2=True), Accept)


def test_an_old_coordinator_is_fenced(partition):
    partition.append(header(0, transactional=True))
    partition.mark(coordinator=5)
    verdict = partition.mark(coordinator=4)
    assert code(verdict) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_moves_the_epoch_and_forgets_the_batches(partition):
    partition.append(header(0, epoch=4, transactional=True))
    partition.mark(epoch=5, tv2=True)
    state = partition.states.producers[7]
    assert (state.epoch, state.batches, state.first_offset) == (5, [], None)


def test_standing(partition):
    states = partition.states
    assert states.standing(7, 4) is Standing.UNKNOWN
    partition.append(header(0, epoch=4, transactional=True))
    assert states.standing(7, 4) is Standing.OPEN
    assert states.standing(7, 3) is Standing.FENCED
    assert states.standing(7, 5) is Standing.UNKNOWN
    partition.mark(epoch=5, tv2=True)
    assert states.standing(7, 5) is Standing.UNKNOWN


# Stable offsets and aborted transactions


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(partition):
    states = partition.states
    partition.append(header(0, producer=1))
    partition.append(header(0, producer=2, transactional=True))
    partition.append(header(0, producer=3, transactional=True))
    assert states.last_stable(partition.end) == 1
    partition.mark(producer=2)
    assert states.last_stable(partition.end) == 2
    partition.mark(producer=3)
    assert states.last_stable(partition.end) == partition.end == 5


def test_a_marker_counts_only_when_it_is_durable(partition):
    partition.append(header(0, transactional=True))
    partition.mark()
    assert partition.states.first_unstable is None
    assert partition.states.last_stable(1) == 0
    assert partition.states.last_stable(2) == 2


def test_aborted_transactions_for_a_range(partition):
    for producer in (1, 2, 3):
        partition.append(header(0, producer=producer, transactional=True))  # 0, 1, 2
    partition.mark(producer=2, commit=False)  # 3
    partition.mark(producer=1, commit=False)  # 4
    partition.mark(producer=3)  # 5
    partition.append(header(0, producer=4, transactional=True))  # 6
    partition.mark(producer=4, commit=False)  # 7
    states = partition.states

    assert list(states.aborted) == [
        AbortedTxn(2, 1, 3, 0),
        AbortedTxn(1, 0, 4, 2),
        AbortedTxn(4, 6, 7, 8),
    ]
    assert [a.producer_id for a in states.aborted_between(0, 8)] == [2, 1, 4]
    assert [a.producer_id for a in states.aborted_between(0, 1)] == [1]
    assert [a.producer_id for a in states.aborted_between(4, 6)] == [1]
    assert [a.producer_id for a in states.aborted_between(5, 7)] == [4]
    assert states.aborted_between(8, 9) == []


def test_views(partition):
    partition.append(header(0, producer=9))
    partition.append(header(0, count=2, producer=3, epoch=1, transactional=True))
    assert [view.producer_id for view in partition.states.active(NOW)] == [3, 9]
    (view,) = partition.states.open_transactions()
    assert (view.producer_id, view.producer_epoch, view.last_sequence) == (3, 1, 1)
    assert view.txn_first_offset == 1


# Expiry


def test_an_idle_producer_expires_in_running_time(partition):
    partition.append(header(0))
    day = 86_400_000
    assert partition.states.expire(Now(NOW.wall_ms + 10 * day, day - 1)) == 0
    assert partition.states.expire(Now(NOW.wall_ms - day, day)) == 1
    assert isinstance(partition.append(header(17)), Accept)


def test_an_open_transaction_never_expires(partition):
    partition.append(header(0, transactional=True))
    assert partition.states.expire(Now(NOW.wall_ms, 10**15)) == 0
    partition.mark(now=Now(NOW.wall_ms, 10**15))
    assert partition.states.expire(Now(NOW.wall_ms, 10**15 + 86_400_000)) == 1
