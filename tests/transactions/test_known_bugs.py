"""Traps T-1 to T-19 and Kafka's fixed bugs (protocol 7), as far as the coordinator decides them.

Tested next to what they are about: T-5, T-6, T-9 (test_init_producer_id), T-4, T-12 (test_kept_matrix,
test_worked_examples), T-14 (test_records), T-17 (test_offline_partitions), KAFKA-20090 (test_time),
KAFKA-18660 (test_partitions_of_a_transaction), KAFKA-20310 and KAFKA-20357 (test_end_txn_table).
"""

import pytest

from dualwrite.broker.transactions.state import (
    TWO_PHASE_TIMEOUT_MS,
    Cause,
    IllegalTransition,
    Outcome,
    Pair,
    TxnState,
)
from tests.transactions.harness import ABORT, COMMIT, ID, P0, P1, Bench, after, code, ok


def test_t1_each_transaction_of_version_2_has_its_own_pair():
    bench = Bench()
    pair = bench.init(two_phase=True).producer
    pairs = []
    for _ in range(10):
        ok(bench.add(pair))
        pairs.append(bench.at().pair)
        pair = ok(bench.end(pair)).producer

    assert len(set(pairs)) == 10


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_t2_aborting_an_empty_transaction_moves_the_pair(commit):
    """An empty transaction can't be committed; its abort leaves no pair behind that is used again."""
    bench = Bench()
    pair = bench.init(two_phase=True).producer

    assert code(bench.end(pair, COMMIT)) == 48
    assert ok(bench.end(pair, ABORT)).producer == after(pair)


def test_t3_an_unprepared_two_phase_transaction_is_immortal_too():
    bench = Bench()
    bench.begin(two_phase=True)
    bench.advance(TWO_PHASE_TIMEOUT_MS * 2)

    assert bench.timeouts() == []


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize("keeps", [0, 1, 3])
def test_t11_kafka_17754_delayed_end_txn_never_touches_a_later_transaction(commit, keeps):
    """Acceptance 8(10): a duplicate of EndTxn arrives when the next transaction has begun."""
    bench = Bench()
    client = bench.begin()
    for _ in range(keeps):
        client = bench.init(keep=True).producer
    pair = bench.end(client, commit).producer
    ok(bench.add(pair))
    before = bench.at()

    assert code(bench.end(client, commit)) == 90
    assert code(bench.end(client, not commit)) == 90
    assert bench.at() == before


def test_t11_delayed_end_txn_after_a_forced_abort():
    bench = Bench()
    bench.begin(two_phase=True)
    recovered = bench.init(keep=True).producer
    pair = bench.init().producer
    ok(bench.add(pair))

    assert code(bench.end(recovered)) == 90
    assert bench.at().state is TxnState.ONGOING


def test_t13_a_reader_without_kept_transactions_sees_an_ordinary_ongoing_one():
    bench = Bench()
    pair = bench.begin(two_phase=True)
    bench.init(keep=True)

    record = bench.at()

    assert record.pair == pair
    assert record.state is TxnState.ONGOING
    assert record.timeout_ms == TWO_PHASE_TIMEOUT_MS


def test_t18_a_repeated_commit_gets_its_success():
    bench = Bench()
    pair = bench.begin(two_phase=True)
    first = ok(bench.end(pair))
    for _ in range(3):
        bench.restart()
        assert ok(bench.end(pair)).producer == first.producer


def test_t18_a_commit_whose_answer_was_lost_is_known_after_recovery():
    """Nothing is ongoing any more, and the last finished pair says that it was committed."""
    bench = Bench()
    pair = bench.begin(two_phase=True)
    bench.end(pair)

    recovered = ok(bench.init(keep=True, two_phase=True))

    assert recovered.ongoing == (-1, -1)
    assert (recovered.last_finished, recovered.last_outcome) == (pair, Outcome.COMMIT)


def test_t19_an_ordinary_init_aborts_prepared_data_and_leaves_a_trace():
    bench = Bench()
    pair = bench.begin(two_phase=True)

    decision = ok(bench.init(two_phase=True))

    assert (decision.last_finished, decision.last_cause) == (pair, Cause.FORCED)


def test_kafka_18401_commit_of_an_empty_transaction_is_refused_without_harm():
    bench = Bench()
    pair = bench.init().producer

    assert code(bench.end(pair)) == 48
    assert code(bench.add(pair)) == 0


def test_kafka_18464_empty_abort_right_after_a_commit_does_not_fence_itself():
    bench = Bench()
    pair = bench.end(bench.begin()).producer

    aborted = ok(bench.end(pair, ABORT))

    assert code(bench.add(aborted.producer)) == 0


@pytest.mark.parametrize("epoch_max", [2, 3, 5])
def test_kafka_18660_pair_after_an_overflow_is_usable_at_once(epoch_max):
    bench = Bench(epoch_max=epoch_max)
    pair = bench.init().producer
    for _ in range(3 * epoch_max):
        ok(bench.add(pair))
        pair = ok(bench.end(pair)).producer
        assert bench.at().pair == pair


def test_kafka_19367_fencing_bumps_once():
    bench = Bench(42, 85)
    bench.seed(
        producer_id=42,
        producer_epoch=32_766,
        state=TxnState.ONGOING,
        partitions=frozenset({P0}),
        start_steady_ms=bench.steady_ms,
    )
    bench.ids.ids = [85]

    decision = ok(bench.init())

    assert [m.producer_epoch for m in decision.markers] == [32_767]
    assert decision.producer == Pair(85, 1)


def test_kafka_9666_a_failed_fence_leaves_nothing_behind():
    """A decision that is never executed has changed nothing."""
    bench = Bench()
    bench.begin()
    before = bench.at()
    for _ in range(5):
        bench.coordinator.init_producer_id(ID, timeout_ms=1_000, now=bench.now)

    assert bench.at() == before
    assert ok(bench.init()).producer == Pair(42, 2)


def test_jepsen_version_1_keeps_its_pair_and_stays_vulnerable():
    """KAFKA-17754 for clients of version 1: the pair can't tell two transactions apart."""
    bench = Bench()
    pair = bench.begin(tv2=False)
    ok(bench.end(pair, tv2=False))
    ok(bench.add(pair, P1, tv2=False))

    assert code(bench.end(pair, tv2=False)) == 0


def test_mixed_versions_a_zombie_of_version_2_is_not_told_success():
    """Its pair is one below a version 1 owner's, which looks like a retry by numbers alone."""
    bench = Bench()
    zombie = bench.init().producer
    owner = bench.init().producer
    ok(bench.add(owner, tv2=False))
    ok(bench.end(owner, tv2=False))

    assert code(bench.end(zombie)) == 90


@pytest.mark.parametrize(
    "change",
    [
        {"state": TxnState.COMPLETE_COMMIT},
        {"state": TxnState.EMPTY, "producer_epoch": 1},
        {"producer_epoch": 1},
        {"producer_id": 7},
        {"partitions": frozenset()},
        {"state": TxnState.DEAD},
        {"state": TxnState.PREPARE_EPOCH_FENCE},
        {"state": TxnState.PREPARE_COMMIT, "producer_epoch": 2},
        {"state": TxnState.PREPARE_COMMIT, "producer_id": 7},
        {"state": TxnState.PREPARE_COMMIT, "partitions": frozenset({P1})},
        {"next_producer_id": 42, "next_producer_epoch": 5},
    ],
    ids=str,
)
def test_illegal_records_are_refused_at_replay(change):
    bench = Bench()
    bench.begin()
    before = bench.at()

    with pytest.raises(IllegalTransition):
        bench.coordinator.replay(before._replace(**change))
    assert bench.at() == before
