"""AddPartitionsToTxn, AddOffsetsToTxn and verification (protocol 2.6, 2.7, 2.17)."""

import pytest

from dualwrite.broker.transactions.coordinator import Availability
from dualwrite.broker.transactions.state import Pair, PartitionRef, TxnState
from dualwrite.wire.error_codes import ErrorCode
from tests.transactions.harness import ABORT, COMMIT, P0, P1, Bench, after, code, ok

OFFSETS = PartitionRef("__consumer_offsets", 7)


@pytest.mark.parametrize("tv2", [True, False])
def test_first_partition_begins_a_transaction(tv2):
    bench = Bench()
    pair = bench.init().producer

    decision = ok(bench.add(pair, P0, tv2=tv2))

    (record,) = decision.records
    assert record.state is TxnState.ONGOING
    assert record.start_ms == bench.wall_ms
    assert record.start_steady_ms == bench.steady_ms
    assert record.client_transaction_version == (2 if tv2 else 0)


@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_first_partition_after_a_finished_transaction(end):
    bench = Bench()
    pair = bench.end(bench.begin(), end).producer
    bench.advance(10)

    ok(bench.add(pair, P1))

    assert bench.at().partitions == {P1}
    assert bench.at().start_ms == bench.wall_ms


def test_further_partitions_keep_the_start():
    bench = Bench()
    pair = bench.begin()
    start = bench.at().start_ms
    bench.advance(10)

    ok(bench.add(pair, P1))

    assert bench.at().partitions == {P0, P1}
    assert bench.at().start_ms == start


def test_nothing_is_written_for_partitions_that_are_in_already():
    bench = Bench()
    pair = bench.begin()
    ok(bench.add(pair, P1))

    assert bench.add(pair, P0, P1).records == ()
    assert bench.add(pair, P1).records == ()


def test_add_offsets_adds_the_groups_partition():
    bench = Bench()
    pair = bench.init().producer

    bench.execute(bench.coordinator.add_offsets("tx-1", pair, OFFSETS, now=bench.now))

    assert bench.at().partitions == {OFFSETS}
    assert ok(bench.end(pair)).markers[0].partitions == {OFFSETS}


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort"])
@pytest.mark.parametrize("tv2", [True, False])
def test_wrong_pairs_in_every_state(state, tv2):
    bench = Bench()
    pair = bench.init().producer
    if state != "Empty":
        bench.add(pair)
    if state.startswith("Complete"):
        pair = bench.end(pair, state.endswith("Commit")).producer
    before = bench.at()

    for ask in (bench.verify, lambda *a: bench.add(*a, tv2=tv2)):
        assert code(ask(Pair(999, 0), P1)) == 49
        assert code(ask(after(pair), P1)) == 90
        assert code(ask(after(pair, -1), P1)) == 90
    assert bench.at() == before


@pytest.mark.parametrize("id", ["", None])
def test_no_id(id):
    bench = Bench()

    assert code(bench.add(Pair(1, 0), id=id)) == 42
    assert code(bench.verify(Pair(1, 0), id=id)) == 42


def test_unknown_id():
    bench = Bench()

    assert code(bench.add(Pair(1, 0), id="nobody")) == 49
    assert code(bench.verify(Pair(1, 0), id="nobody")) == 49


def test_while_a_decided_transaction_completes():
    """KAFKA-18660: adding answers 51 before it looks at the pair, verifying behind it."""
    bench = Bench()
    pair = bench.begin()
    bench.availability[P0] = Availability.OFFLINE
    bench.end(pair)

    for wrong in (pair, after(pair), Pair(999, 0)):
        assert code(bench.add(wrong, P1)) == 51
    assert code(bench.verify(Pair(999, 0))) == 49
    assert code(bench.verify(pair)) == 90
    assert code(bench.verify(after(pair))) == 51


def test_verify_tells_each_partition():
    bench = Bench()
    pair = bench.begin()

    decision = bench.verify(pair, P0, P1)

    assert decision.error_for(P0) is ErrorCode.NONE
    assert decision.error_for(P1) is ErrorCode.TRANSACTION_ABORTABLE
    assert bench.verify(pair, P0).partition_errors == {}


@pytest.mark.parametrize("end", [None, COMMIT, ABORT])
def test_verify_without_a_transaction(end):
    """KAFKA-14402: a late produce finds no transaction to write into."""
    bench = Bench()
    pair = bench.init().producer
    if end is not None:
        bench.add(pair)
        pair = bench.end(pair, end).producer

    assert bench.verify(pair, P0).error_for(P0) is ErrorCode.TRANSACTION_ABORTABLE
