"""Table 2.10 of the protocol: EndTxn in every state, for both versions, both results, every pair.

PrepareX is persisted here only while a marker is still owed, which is Kafka's "pending": every request
gets CONCURRENT_TRANSACTIONS then.
"""

import pytest

from dualwrite.broker.transactions.coordinator import Availability
from dualwrite.broker.transactions.state import NO_PAIR, Cause, Outcome, Pair, TxnState
from tests.transactions.harness import ABORT, COMMIT, P0, Bench, after, code, ok

STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


def in_state(name, *, tv2):
    """A bench in this state and the client's pair; one further epoch lies behind it."""
    bench = Bench()
    first = bench.init().producer
    if name == "Empty":
        pair = bench.init().producer
        assert bench.at().state is TxnState.EMPTY
        return bench, pair
    pair = first
    ok(bench.add(pair, tv2=tv2))
    if name == "Ongoing":
        if tv2:
            pair = ok(bench.end(pair)).producer
            ok(bench.add(pair))
        return bench, pair
    commit = name.endswith("Commit")
    if name.startswith("Prepare"):
        bench.availability[P0] = Availability.OFFLINE
        assert code(bench.end(pair, commit, tv2=tv2)) == 51
    else:
        ok(bench.end(pair, commit, tv2=tv2))
    assert bench.at().state.wire_name == name
    return bench, bench.at().client_pair


V2_CELLS = {
    # state: (commit retry, commit current, abort retry, abort current)
    "Empty": (90, 48, 90, "bump"),
    "Ongoing": (90, "bump", 90, "bump"),
    "PrepareCommit": (51, 51, 51, 51),
    "PrepareAbort": (51, 51, 51, 51),
    "CompleteCommit": ("stored", 48, 48, "bump"),
    "CompleteAbort": (48, 48, "stored", "bump"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("column", range(4), ids=["commit-retry", "commit", "abort-retry", "abort"])
def test_table_2_10_version_2(state, column):
    bench, current = in_state(state, tv2=True)
    expected = V2_CELLS[state][column]
    commit = column < 2
    pair = after(current, -1) if column in (0, 2) else current

    decision = bench.end(pair, commit)

    if expected == "bump":
        assert code(decision) == 0
        assert decision.producer == after(current)
        assert bench.at().pair == after(current)
        assert bench.at().state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT)
    elif expected == "stored":
        assert code(decision) == 0
        assert decision.producer == current
        assert decision.records == ()
    else:
        assert code(decision) == expected
        assert decision.records == ()


V1_CELLS = {
    "Empty": (48, 48),
    "Ongoing": ("ends", "ends"),
    "PrepareCommit": (51, 51),
    "PrepareAbort": (51, 51),
    "CompleteCommit": (0, 48),
    "CompleteAbort": (48, 0),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("commit", [COMMIT, ABORT], ids=["commit", "abort"])
def test_table_2_10_version_1(state, commit):
    bench, current = in_state(state, tv2=False)
    expected = V1_CELLS[state][0 if commit else 1]

    decision = bench.end(current, commit, tv2=False)

    if expected == "ends":
        assert code(decision) == 0
        assert bench.at().state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT)
        assert bench.at().pair == current
        assert bench.at().client_transaction_version == 0
        assert [(m.producer_epoch, m.transaction_version) for m in bench.markers] == [
            (current.producer_epoch, 0)
        ]
    else:
        assert code(decision) == expected
        assert decision.records == ()


@pytest.mark.parametrize("tv2", [True, False])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_wrong_pairs_change_nothing_in_any_state(state, tv2, commit):
    bench, current = in_state(state, tv2=tv2)
    before = bench.at()
    # Version 2 answers 51 before it looks at the pair (KAFKA-18464), version 1 behind it.
    eager = tv2 and state.startswith("Prepare")

    assert code(bench.end(Pair(999, 0), commit, tv2=tv2)) == (51 if eager else 49)
    assert code(bench.end(after(current), commit, tv2=tv2)) == (51 if eager else 90)
    assert code(bench.end(after(current, -2), commit, tv2=tv2)) in (51, 90, 42)
    assert bench.at() == before


def test_unknown_id_and_malformed_requests():
    bench = Bench()
    pair = bench.init().producer

    assert code(bench.end(pair, id="nobody")) == 49
    assert code(bench.end(pair, id="")) == 42
    assert code(bench.end(pair, id=None)) == 42


@pytest.mark.parametrize("tv2", [True, False])
def test_negative_pair_is_no_retry(tv2):
    """Epoch -1 with stored epoch 0 would satisfy "stored == request + 1"."""
    bench = Bench()
    pair = bench.init().producer

    assert code(bench.end(Pair(pair.producer_id, -1), ABORT, tv2=tv2)) == 42
    assert code(bench.end(NO_PAIR, ABORT, tv2=tv2)) == 42


def test_end_txn_is_one_decision_with_both_records_and_all_markers():
    bench = Bench()
    pair = bench.begin()

    decision = bench.end(pair)

    assert [r.state for r in decision.records] == [
        TxnState.PREPARE_COMMIT,
        TxnState.COMPLETE_COMMIT,
    ]
    assert decision.records[0].partitions == {P0}
    assert decision.records[0].producer_epoch == 1
    assert decision.records[1].partitions == frozenset()
    (marker,) = decision.markers
    assert (marker.producer_id, marker.producer_epoch, marker.commit) == (42, 1, True)
    assert marker.partitions == {P0}
    assert marker.transaction_version == 2


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_last_finished_names_the_pair_that_the_client_knew(commit):
    bench = Bench()
    pair = bench.begin()

    bench.end(pair, commit)

    assert bench.at().last_finished == pair
    assert bench.at().last_outcome is (Outcome.COMMIT if commit else Outcome.ABORT)
    assert bench.at().last_cause is Cause.CLIENT


def test_empty_abort_moves_the_pair_and_finishes_nothing():
    bench = Bench()
    pair = bench.begin()
    current = bench.end(pair).producer

    decision = bench.end(current, ABORT)

    assert decision.markers == ()
    assert decision.producer == after(current)
    assert (bench.at().last_finished, bench.at().last_outcome) == (pair, Outcome.COMMIT)


@pytest.mark.parametrize("tv2", [True, False])
def test_commit_after_adding_partitions_without_producing(tv2):
    """ydb #51053: an added partition without data commits, with a marker."""
    bench = Bench()
    pair = bench.begin(tv2=tv2)

    assert code(bench.end(pair, tv2=tv2)) == 0
    assert bench.markers[0].partitions == {P0}


def test_end_txn_survives_a_restart_and_its_retry_gets_the_same_pair():
    """KAFKA-20310, KAFKA-20357: all that a retry is known by is in the log."""
    bench = Bench()
    pair = bench.begin()
    first = bench.end(pair).producer

    bench.restart()

    assert bench.end(pair).producer == first
    assert code(bench.end(pair, ABORT)) == 48


def test_no_producer_id_left_at_the_overflow_changes_nothing():
    bench = Bench(42, None, 85, epoch_max=2)
    pair = bench.begin(epoch=1)
    before = bench.at()

    assert code(bench.end(pair)) == 14
    assert bench.at() == before
    assert ok(bench.end(pair)).producer == Pair(85, 0)


def test_two_phase_transaction_is_not_ended_by_version_1():
    """T-1: the pair would stay the same and name the next transaction too."""
    bench = Bench()
    pair = bench.begin(two_phase=True)

    assert code(bench.end(pair, COMMIT, tv2=False)) == 48
    assert code(bench.end(pair, ABORT, tv2=False)) == 48
    assert bench.at().state is TxnState.ONGOING
