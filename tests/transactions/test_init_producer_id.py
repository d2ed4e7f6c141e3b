"""InitProducerId (protocol 2.5) where no transaction is kept."""

import pytest

from dualwrite.broker.transactions.state import (
    NO_PAIR,
    TWO_PHASE_TIMEOUT_MS,
    Cause,
    Outcome,
    Pair,
    TxnState,
)
from tests.transactions.harness import ABORT, COMMIT, P0, P1, Bench, after, code, ok


def test_idempotent_producer_gets_a_fresh_id_and_nothing_is_remembered():
    bench = Bench()

    first, second = bench.init(id=None, timeout_ms=-1), bench.init(id=None)

    assert (first.producer, second.producer) == (Pair(42, 0), Pair(43, 0))
    assert first.records == ()
    assert len(bench.coordinator) == 0


def test_checks_before_anything_is_stored():
    bench = Bench(two_phase_enabled=False, max_timeout_ms=900_000)

    assert code(bench.init(id="")) == 42
    assert code(bench.init(Pair(5, -1))) == 42
    assert code(bench.init(Pair(-1, 5))) == 42
    assert code(bench.init(two_phase=True)) == 53
    assert code(bench.init(timeout_ms=0)) == 50
    assert code(bench.init(timeout_ms=-1)) == 50
    assert code(bench.init(timeout_ms=900_001)) == 50
    assert code(bench.init(timeout_ms=900_000)) == 0


def test_two_phase_ignores_the_timeout_of_the_request():
    bench = Bench()

    ok(bench.init(two_phase=True, timeout_ms=0))

    assert bench.at().timeout_ms == TWO_PHASE_TIMEOUT_MS


def test_t9_the_sentinel_is_not_given_to_an_ordinary_producer():
    bench = Bench(max_timeout_ms=TWO_PHASE_TIMEOUT_MS)

    assert code(bench.init(timeout_ms=TWO_PHASE_TIMEOUT_MS)) == 50
    assert code(bench.init(timeout_ms=TWO_PHASE_TIMEOUT_MS - 1)) == 0


def test_no_producer_id_available():
    bench = Bench(None, 42)

    assert code(bench.init()) == 14
    assert bench.at() is None
    assert ok(bench.init()).producer == Pair(42, 0)


@pytest.mark.parametrize("end", [None, COMMIT, ABORT])
def test_bump_without_expected_pair(end):
    bench = Bench()
    pair = bench.init().producer
    if end is not None:
        bench.add(pair, tv2=False)
        bench.end(pair, end, tv2=False)

    decision = ok(bench.init(timeout_ms=5_000))

    assert decision.producer == after(pair)
    assert bench.at().state is TxnState.EMPTY
    assert bench.at().timeout_ms == 5_000
    assert bench.at().start_ms == -1


def test_bump_with_the_current_pair_and_its_retry():
    """KIP-360: a lost reply is answered again with the same pair, also after a restart."""
    bench = Bench()
    pair = bench.init().producer

    first = ok(bench.init(pair))
    bench.restart()
    again = ok(bench.init(pair))

    assert first.producer == again.producer == after(pair)
    assert again.records == ()


def test_expected_pair_of_an_unknown_id_is_accepted():
    bench = Bench()

    assert ok(bench.init(Pair(7, 3))).producer == Pair(42, 0)


@pytest.mark.parametrize("expected", [Pair(42, 0), Pair(42, 5), Pair(7, 2)])
def test_other_pairs_are_fenced(expected):
    bench = Bench()
    for _ in range(3):
        bench.init()
    assert bench.at().pair == Pair(42, 2)

    assert code(bench.init(expected)) == 90


def test_init_without_expected_pair_forgets_the_older_instance():
    bench = Bench()
    older = bench.init().producer
    bench.init()

    assert code(bench.init(older)) == 90


@pytest.mark.parametrize("expects", [True, False])
def test_rotation_when_the_epochs_are_used_up(expects):
    bench = Bench(85)
    pair = bench.seed(producer_id=42, producer_epoch=32_766, state=TxnState.EMPTY)

    decision = ok(bench.init(pair if expects else NO_PAIR))

    assert decision.producer == Pair(85, 0)
    assert bench.at().previous_producer_id == 42
    if expects:
        assert ok(bench.init(pair)).producer == Pair(85, 0)
    else:
        assert code(bench.init(pair)) == 90


def test_used_up_epochs_with_another_expected_epoch_are_fenced():
    """Kafka's trunk raises an internal error here."""
    bench = Bench()
    bench.seed(producer_id=42, producer_epoch=32_766, state=TxnState.EMPTY)

    assert code(bench.init(Pair(42, 7))) == 90


@pytest.mark.parametrize(("version", "two_phase"), [(0, False), (2, False), (2, True)])
def test_over_an_ongoing_transaction_it_aborts_and_answers_in_one_decision(version, two_phase):
    bench = Bench(transaction_version=version)
    pair = bench.begin(epoch=5, two_phase=two_phase, tv2=version == 2)

    decision = ok(bench.init())

    assert [r.state for r in decision.records] == [
        TxnState.PREPARE_ABORT,
        TxnState.COMPLETE_ABORT,
        TxnState.EMPTY,
    ]
    (marker,) = decision.markers
    assert (marker.producer_epoch, marker.commit, marker.transaction_version) == (6, False, version)
    assert decision.producer == Pair(42, 7)  # E+2, as after Kafka's 51 and the retry
    assert decision.last_finished == pair
    assert decision.last_outcome is Outcome.ABORT
    assert decision.last_cause is (Cause.FORCED if two_phase else Cause.FENCED)


def test_over_its_own_ongoing_transaction_with_its_pair():
    bench = Bench()
    pair = bench.begin()

    first = ok(bench.init(pair))
    again = ok(bench.init(pair))

    assert first.producer == again.producer == after(pair, 2)
    assert again.records == ()


@pytest.mark.parametrize("epoch_max", [2, 3])
def test_retry_of_an_init_that_aborted_and_rotated(epoch_max):
    """KAFKA-20090: the fence rotates the producer id, and the retry is still known."""
    bench = Bench(epoch_max=epoch_max)
    pair = bench.begin(epoch=epoch_max - 2)

    first = ok(bench.init(pair))

    assert first.producer.producer_epoch < epoch_max
    assert ok(bench.init(pair)).producer == first.producer


def test_t5_stale_init_does_not_abort_a_live_transaction():
    bench = Bench()
    stale = bench.init().producer
    live = bench.begin(epoch=1)
    before = bench.at()

    assert code(bench.init(stale)) == 90
    assert code(bench.init(stale, keep=True)) == 90
    assert bench.at() == before
    assert code(bench.end(live)) == 0


def test_a_pair_behind_an_open_transaction_is_a_zombie_not_a_retry():
    bench = Bench()
    first = bench.begin()
    second = bench.end(first).producer
    ok(bench.add(second))

    assert code(bench.init(first)) == 90
    assert bench.at().state is TxnState.ONGOING


def test_how_the_last_transaction_ended_outlives_further_inits():
    """T-6: an owner that comes back learns that its prepared transaction was aborted by force."""
    bench = Bench()
    pair = bench.begin(two_phase=True)
    bench.init()
    bench.restart()

    decision = ok(bench.init(two_phase=True, keep=True))

    assert decision.ongoing == NO_PAIR
    assert decision.last_finished == pair
    assert (decision.last_outcome, decision.last_cause) == (Outcome.ABORT, Cause.FORCED)


@pytest.mark.parametrize("two_phase", [True, False])
def test_would_overrule_tells_a_forced_abort(two_phase):
    bench = Bench()
    assert not bench.coordinator.would_overrule("tx-1")
    bench.init(two_phase=two_phase)
    assert not bench.coordinator.would_overrule("tx-1")
    bench.begin(epoch=1, two_phase=two_phase)
    assert bench.coordinator.would_overrule("tx-1") is two_phase
    bench.init(keep=True)
    assert bench.coordinator.would_overrule("tx-1")


def test_partitions_are_cleared():
    bench = Bench()
    pair = bench.init().producer
    ok(bench.add(pair, P0, P1))

    bench.init()

    assert bench.at().partitions == frozenset()
