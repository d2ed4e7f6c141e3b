"""Worked examples A, B and C of protocol 2.14, and the start-epoch scenarios of 1.4."""

import pytest

from dualwrite.broker.transactions.state import NO_PAIR, Pair, TxnState
from tests.transactions.harness import COMMIT, P0, Bench, code, ok

EPOCH_LAST = 32_766  # the largest that a client gets


def ongoing(bench, producer_id, epoch):
    return bench.seed(
        producer_id=producer_id,
        producer_epoch=epoch,
        state=TxnState.ONGOING,
        partitions=frozenset({P0}),
        start_steady_ms=bench.steady_ms,
        client_transaction_version=2,
    )


def test_example_a_no_overflow():
    bench = Bench()
    ongoing(bench, 42, 100)

    first = ok(bench.init(keep=True))
    second = ok(bench.init(keep=True))
    assert (first.producer, second.producer) == (Pair(42, 101), Pair(42, 102))
    assert first.ongoing == second.ongoing == Pair(42, 100)

    decision = ok(bench.end(Pair(42, 102)))
    prepared, completed = decision.records
    assert prepared.state is TxnState.PREPARE_COMMIT
    assert prepared.pair == Pair(42, 101)
    assert prepared.previous_producer_id == 42
    assert (prepared.next_producer_id, prepared.next_producer_epoch) == (42, 103)
    assert decision.producer == Pair(42, 103)
    assert [(m.producer_id, m.producer_epoch) for m in decision.markers] == [(42, 101)]
    assert completed.pair == Pair(42, 103)
    assert (completed.next_producer_id, completed.next_producer_epoch) == NO_PAIR

    retry = ok(bench.end(Pair(42, 102)))
    assert (retry.producer, retry.records) == (Pair(42, 103), ())
    assert code(bench.end(Pair(42, 101))) == 90
    assert code(bench.end(Pair(42, 100))) == 90


def test_example_b_overflow_of_both_pairs():
    bench = Bench(73, 85)
    ongoing(bench, 42, EPOCH_LAST)

    first = ok(bench.init(keep=True))
    assert first.producer == Pair(73, 0)
    assert first.ongoing == Pair(42, EPOCH_LAST)
    while bench.at().client_pair.producer_epoch < EPOCH_LAST:
        ok(bench.init(keep=True))
    assert bench.at().client_pair == Pair(73, EPOCH_LAST)
    assert bench.at().pair == Pair(42, EPOCH_LAST)

    decision = ok(bench.end(Pair(73, EPOCH_LAST)))
    prepared, completed = decision.records
    assert prepared.pair == Pair(42, 32_767)
    assert prepared.previous_producer_id == 73
    assert (prepared.next_producer_id, prepared.next_producer_epoch) == (85, 0)
    assert decision.producer == completed.pair == Pair(85, 0)
    assert completed.previous_producer_id == 73
    assert [(m.producer_id, m.producer_epoch) for m in decision.markers] == [(42, 32_767)]
    retry = ok(bench.end(Pair(73, EPOCH_LAST)))
    assert (retry.producer, retry.records) == (Pair(85, 0), ())


def test_example_c_plain_overflow():
    bench = Bench(85)
    pair = ongoing(bench, 42, EPOCH_LAST)

    decision = ok(bench.end(pair))
    prepared, completed = decision.records
    assert prepared.pair == Pair(42, 32_767)
    assert (prepared.next_producer_id, prepared.next_producer_epoch) == (85, -1)
    assert decision.producer == completed.pair == Pair(85, 0)
    assert completed.previous_producer_id == 42
    retry = ok(bench.end(pair))
    assert (retry.producer, retry.records) == (Pair(85, 0), ())


@pytest.mark.parametrize(
    ("start", "kept", "final"),
    [
        (32_765, Pair(43, 0), Pair(43, 1)),
        (32_764, Pair(42, EPOCH_LAST), Pair(43, 0)),
    ],
    ids=["rotates at keepPreparedTxn", "rotates at EndTxn"],
)
def test_start_epoch_scenarios(start, kept, final):
    bench = Bench(43)
    bench.seed(producer_id=42, producer_epoch=start, state=TxnState.EMPTY)
    pair = ok(bench.init()).producer
    assert pair == Pair(42, start + 1)
    ok(bench.add(pair))

    recovered = ok(bench.init(keep=True))
    assert recovered.producer == kept
    assert recovered.ongoing == pair
    assert ok(bench.end(kept)).producer == final
    # Three steps from the start, whether they wrapped at 32766 or not.
    steps = final.producer_epoch + 32_767 - start
    assert steps == 3


@pytest.mark.parametrize("epoch_max", [2, 3, 5, 32_767])
def test_many_transactions_with_recoveries_at_every_epoch_maximum(epoch_max):
    """T-12, KAFKA-18660, KAFKA-19367: no pair is ever given out twice, none is out of range."""
    bench = Bench(epoch_max=epoch_max)
    seen = set()
    for round_number in range(40):
        pair = ok(bench.init()).producer
        for _ in range(round_number % 4):
            assert pair not in seen
            seen.add(pair)
            assert 0 <= pair.producer_epoch < epoch_max
            ok(bench.add(pair))
            client = pair
            for _ in range(round_number % 3):
                client = ok(bench.init(keep=True)).producer
                assert client not in seen
                assert bench.at().pair == pair
            bench.restart()
            pair = ok(bench.end(client, COMMIT)).producer
            assert ok(bench.end(client, COMMIT)).producer == pair
    for marker in bench.markers:
        assert Pair(marker.producer_id, marker.producer_epoch - 1) in seen
