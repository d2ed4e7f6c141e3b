"""A transaction is decided although a partition is offline, and completes when it is back or deleted."""

import pytest

from dualwrite.broker.transactions.coordinator import Availability
from dualwrite.broker.transactions.state import Cause, Pair, PartitionRef, TxnState
from tests.transactions.harness import ABORT, COMMIT, P0, P1, Bench, after, code, ok

P2 = PartitionRef("payments", 0)


@pytest.fixture
def bench():
    bench = Bench()
    pair = bench.init().producer
    ok(bench.add(pair, P0, P1, P2))
    bench.availability[P1] = bench.availability[P2] = Availability.OFFLINE
    return bench


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize("tv2", [True, False])
def test_outcome_is_decided_and_the_rest_follows(bench, commit, tv2):
    pair = bench.at().pair

    decision = bench.end(pair, commit, tv2=tv2)

    assert code(decision) == 51
    (prepared,) = decision.records
    assert prepared.state is (TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT)
    assert prepared.partitions == {P1, P2}
    assert [m.partitions for m in decision.markers] == [{P0}]
    assert bench.complete() == []

    bench.restart()
    bench.availability[P1] = Availability.ONLINE
    (step,) = bench.complete()
    assert step.records[0].state is prepared.state
    assert [(m.partitions, m.commit, m.producer_epoch) for m in step.markers] == [
        ({P1}, commit, prepared.producer_epoch)
    ]
    assert code(bench.end(pair, commit, tv2=tv2)) in (51, 90)

    bench.restart()
    bench.availability[P2] = Availability.ONLINE
    (step,) = bench.complete()
    assert [m.partitions for m in step.markers] == [{P2}]
    assert bench.at().state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT)
    assert bench.complete() == []

    retry = ok(bench.end(pair, commit, tv2=tv2))
    assert retry.records == ()
    if tv2:
        assert retry.producer == after(pair)


def test_deleted_partition_is_owed_no_marker(bench):
    pair = bench.at().pair
    bench.end(pair)

    bench.availability[P1] = bench.availability[P2] = Availability.GONE
    (step,) = bench.complete()

    assert step.markers == ()
    assert bench.at().state is TxnState.COMPLETE_COMMIT


def test_deleted_partition_at_the_end_itself():
    bench = Bench()
    pair = bench.init().producer
    ok(bench.add(pair, P0, P1))
    bench.availability[P1] = Availability.GONE

    decision = ok(bench.end(pair))

    assert [m.partitions for m in decision.markers] == [{P0}]
    assert bench.at().state is TxnState.COMPLETE_COMMIT


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("two_phase", [True, False])
def test_every_other_request_waits(bench, keep, two_phase):
    """ydb #52731: never an empty success while the last transaction still completes."""
    pair = bench.at().pair
    bench.end(pair)
    before = bench.at()

    assert code(bench.init(keep=keep, two_phase=two_phase)) == 51
    assert code(bench.init(pair, keep=keep)) == 51
    assert code(bench.end(after(pair), ABORT)) == 51
    assert code(bench.end(pair, ABORT)) == 51
    assert code(bench.add(after(pair), P0)) == 51
    bench.advance(10**12)
    assert bench.timeouts() == []
    assert bench.expire().records == ()
    assert bench.at() == before


def test_init_over_ongoing_starts_the_abort_and_succeeds_later(bench):
    pair = bench.at().pair

    assert code(bench.init()) == 51
    assert bench.at().state is TxnState.PREPARE_ABORT
    assert code(bench.init()) == 51
    bench.availability.clear()
    bench.complete()

    decision = ok(bench.init())
    assert decision.producer == after(pair, 2)
    assert (decision.last_finished, decision.last_cause) == (pair, Cause.FENCED)


def test_fenced_instance_is_not_revived_by_its_late_abort(bench):
    pair = bench.at().pair
    bench.init()
    bench.availability.clear()
    bench.complete()

    assert code(bench.end(pair, ABORT)) == 90


def test_instance_that_named_its_pair_gets_its_answer_after_completion(bench):
    pair = bench.at().pair
    assert code(bench.init(pair)) == 51
    bench.availability.clear()
    bench.complete()

    assert ok(bench.init(pair)).producer == after(pair)


@pytest.mark.parametrize("epoch_max", [2, 3])
def test_kept_and_rotated_transaction_completes_in_steps(epoch_max):
    bench = Bench(epoch_max=epoch_max)
    pair = bench.begin(epoch=epoch_max - 2)
    for _ in range(epoch_max):
        client = bench.init(keep=True).producer
    bench.availability[P0] = Availability.OFFLINE
    assert code(bench.end(client)) == 51
    bench.restart()
    bench.availability.clear()

    (step,) = bench.complete()

    assert [(m.producer_id, m.producer_epoch) for m in step.markers] == [after(pair)]
    assert ok(bench.end(client)).producer == bench.at().pair


def test_timeout_abort_with_an_offline_partition(bench):
    bench.advance(60_001)

    (decision,) = bench.timeouts()

    assert bench.at().state is TxnState.PREPARE_ABORT
    assert [m.partitions for m in decision.markers] == [{P0}]
    assert bench.timeouts() == []


def test_the_producer_id_counts_as_open_until_the_last_marker(bench):
    """T-17: an admin's marker must not get in between."""
    assert bench.coordinator.is_open(42)
    bench.end(Pair(42, 0))
    assert bench.coordinator.is_open(42)
    bench.availability.clear()
    bench.complete()
    assert not bench.coordinator.is_open(42)
