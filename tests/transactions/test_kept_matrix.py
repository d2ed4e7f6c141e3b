"""Matrix 2.14 of the protocol: every request against a kept (dual-pair) transaction."""

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

ONGOING = Pair(42, 0)


@pytest.fixture(params=["same producer id", "rotated producer id"])
def kept(request):
    """A kept transaction of (42, 0); the client holds (42, 2), or (43, 0) after a rotation."""
    if request.param == "same producer id":
        bench = Bench()
        bench.begin(two_phase=True)
        bench.init(keep=True, two_phase=True)
        client = bench.init(keep=True, two_phase=True).producer
        assert client == Pair(42, 2)
    else:
        bench = Bench(epoch_max=2)
        bench.begin(two_phase=True)
        bench.init(keep=True, two_phase=True)
        client = bench.init(keep=True, two_phase=True).producer
        assert client == Pair(43, 0)
    assert bench.at().is_kept
    return bench, client


def test_init_keep_without_expected_pair_bumps_and_returns_the_ongoing_pair(kept):
    bench, client = kept

    decision = ok(bench.init(keep=True))

    assert decision.producer == after(client)
    assert decision.ongoing == ONGOING
    assert bench.at().pair == ONGOING
    assert bench.at().state is TxnState.ONGOING
    assert bench.markers == []


def test_init_keep_with_the_clients_pair_bumps_and_may_be_repeated(kept):
    bench, client = kept

    first = ok(bench.init(client, keep=True))
    again = ok(bench.init(client, keep=True))

    assert first.producer == again.producer == after(client)
    assert first.ongoing == again.ongoing == ONGOING
    assert again.records == ()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("other", [ONGOING, Pair(42, 1), Pair(999, 0), Pair(42, 7)])
def test_init_with_any_other_pair_is_fenced_without_side_effect(kept, keep, other):
    """T-5: the pair is compared before anything is aborted."""
    bench, _ = kept
    before = bench.at()

    assert code(bench.init(other, keep=keep)) == 90
    assert bench.at() == before


@pytest.mark.parametrize("expects", [True, False])
def test_init_without_keep_aborts_by_force_and_answers_at_once(kept, expects):
    bench, client = kept

    decision = ok(bench.init(client if expects else NO_PAIR))

    assert [r.state for r in decision.records] == [
        TxnState.PREPARE_ABORT,
        TxnState.COMPLETE_ABORT,
        TxnState.EMPTY,
    ]
    assert [(m.producer_id, m.producer_epoch, m.commit) for m in decision.markers] == [
        (42, 1, False)
    ]
    assert decision.ongoing == NO_PAIR
    assert decision.last_finished == ONGOING
    assert (decision.last_outcome, decision.last_cause) == (Outcome.ABORT, Cause.FORCED)
    assert code(bench.end(client)) in (49, 90)  # what the fenced instance still has


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_end_txn_v5_with_the_clients_pair_ends_it_and_bumps_again(kept, commit):
    bench, client = kept

    decision = ok(bench.end(client, commit))

    assert bench.at().pair == decision.producer
    assert decision.producer not in (client, ONGOING)
    assert not bench.at().is_kept
    assert [(m.producer_id, m.producer_epoch, m.commit) for m in decision.markers] == [
        (42, 1, commit)
    ]
    assert bench.at().last_finished == ONGOING
    again = ok(bench.end(client, commit))
    assert (again.producer, again.records) == (decision.producer, ())


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_end_txn_v5_with_the_ongoing_or_another_pair(kept, commit):
    bench, client = kept
    before = bench.at()

    assert code(bench.end(ONGOING, commit)) == (90 if client.producer_id == 42 else 49)
    assert code(bench.end(Pair(999, 0), commit)) == 49
    assert code(bench.end(after(client), commit)) == 90
    assert bench.at() == before


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_end_txn_v0_to_v4(kept, commit):
    bench, client = kept
    before = bench.at()

    assert code(bench.end(client, commit, tv2=False)) == 48
    assert code(bench.end(ONGOING, commit, tv2=False)) == 90
    assert code(bench.end(Pair(999, 3), commit, tv2=False)) == 90
    assert bench.at() == before


@pytest.mark.parametrize("tv2", [True, False])
@pytest.mark.parametrize("partition", [P0, P1], ids=["already added", "new"])
def test_adding_partitions(kept, tv2, partition):
    """T-4: a zombie writes nothing into a kept transaction, nor does the recovering client."""
    bench, client = kept
    before = bench.at()

    assert code(bench.add(client, partition, tv2=tv2)) == 48
    assert code(bench.add(ONGOING, partition, tv2=tv2)) == 90
    assert code(bench.add(Pair(999, 0), partition, tv2=tv2)) == 49
    assert code(bench.add(after(client), partition, tv2=tv2)) == 90
    assert bench.at() == before


def test_verifying_partitions(kept):
    bench, client = kept

    assert code(bench.verify(client)) == 48
    assert code(bench.verify(ONGOING)) == 90
    assert code(bench.verify(Pair(999, 0))) == 49
    assert code(bench.verify(after(client))) == 90


def test_timeout_scan_skips_two_phase(kept):
    bench, _ = kept
    bench.advance(10 * 365 * 86_400_000)

    assert bench.timeouts() == []
    assert bench.at().is_kept


def test_timeout_scan_aborts_an_ordinary_kept_transaction():
    bench = Bench()
    pair = bench.begin()
    client = bench.init(keep=True).producer
    bench.advance(60_001)

    (decision,) = bench.timeouts()

    assert [(m.producer_id, m.producer_epoch) for m in decision.markers] == [(42, 1)]
    assert bench.at().pair == after(client)
    assert bench.at().last_finished == pair
    assert bench.at().last_cause is Cause.TIMEOUT


def test_id_never_expires(kept):
    bench, _ = kept
    bench.advance(10 * 365 * 86_400_000)

    assert bench.expire().records == ()
    bench.advance(10 * 365 * 86_400_000)
    assert bench.expire().records == ()
    assert bench.at() is not None


def test_everything_survives_a_restart(kept):
    bench, client = kept
    before = bench.at()

    bench.restart()

    assert bench.at() == before
    assert ok(bench.end(client)).producer == bench.at().pair


def test_only_the_newest_of_two_recovering_instances_can_finish(kept):
    """Acceptance 8(5): the older one gets 90, or 49 when its producer id is gone."""
    bench, older = kept
    newer = bench.init(keep=True).producer

    assert code(bench.end(older)) in (90, 49)
    assert code(bench.end(newer)) == 0


# What the KIP leaves open (1.6)


def test_keep_with_two_phase_upgrades_the_timeout_of_an_ordinary_transaction():
    bench = Bench()
    bench.begin()

    bench.init(keep=True, two_phase=True)
    bench.advance(10**12)

    assert bench.at().timeout_ms == TWO_PHASE_TIMEOUT_MS
    assert bench.timeouts() == []


def test_keep_without_two_phase_leaves_the_stored_timeout_alone():
    bench = Bench()
    bench.begin(two_phase=True)

    bench.init(keep=True, timeout_ms=1)
    bench.advance(10**12)

    assert bench.at().timeout_ms == TWO_PHASE_TIMEOUT_MS
    assert bench.timeouts() == []


def test_keep_with_nothing_ongoing_is_an_ordinary_init():
    bench = Bench()
    first = ok(bench.init(keep=True))
    second = ok(bench.init(keep=True))
    bench.add(second.producer)
    completed = bench.end(second.producer).producer

    third = ok(bench.init(keep=True))

    assert (first.producer, first.ongoing) == (Pair(42, 0), NO_PAIR)
    assert (second.producer, second.ongoing) == (Pair(42, 1), NO_PAIR)
    assert (third.producer, third.ongoing) == (after(completed), NO_PAIR)


def test_keep_without_two_phase_is_allowed():
    bench = Bench(two_phase_enabled=False)
    pair = bench.begin()

    assert ok(bench.init(keep=True)).ongoing == pair


@pytest.mark.parametrize("version", [0, 1])
def test_keep_and_two_phase_need_transaction_version_2(version):
    """T-1: without a bump per transaction the pair names no single transaction."""
    bench = Bench(transaction_version=version)

    assert code(bench.init(keep=True)) == 35
    assert code(bench.init(two_phase=True)) == 35
    assert bench.at() is None


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_a_fresh_transaction_follows_on_the_same_producer(kept, commit):
    bench, client = kept
    pair = bench.end(client, commit).producer

    ok(bench.add(pair))
    final = ok(bench.end(pair))

    assert bench.at().state is TxnState.COMPLETE_COMMIT
    assert final.producer == bench.at().pair
    assert code(bench.end(client, commit)) in (90, 49)  # a delayed duplicate ends nothing
