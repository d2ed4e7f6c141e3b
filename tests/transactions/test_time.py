"""Timeouts, expiry and clocks: everything counts running time, nothing the wall clock."""

import pytest

from dualwrite.broker.transactions.state import Cause, Outcome, Pair, TxnState
from dualwrite.broker.transactions.timers import Timers
from tests.transactions.harness import ABORT, COMMIT, P0, P1, Bench, after, code, ok

WEEK = 604_800_000


def test_timeout_counts_from_the_start_and_is_not_extended_by_activity():
    bench = Bench()
    pair = bench.begin()
    bench.advance(60_000)
    ok(bench.add(pair, P0))
    ok(bench.add(pair, P1))
    assert bench.timeouts() == []

    bench.advance(1)
    (decision,) = bench.timeouts()

    assert [r.state for r in decision.records] == [TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT]
    assert [(m.producer_epoch, m.commit) for m in decision.markers] == [(1, False)]
    assert bench.at().pair == after(pair)
    assert (bench.at().last_finished, bench.at().last_outcome, bench.at().last_cause) == (
        pair,
        Outcome.ABORT,
        Cause.TIMEOUT,
    )
    assert bench.timeouts() == []


def test_late_abort_after_a_timeout_lives_on_and_late_commit_does_not():
    bench = Bench()
    pair = bench.begin()
    bench.advance(60_001)
    bench.timeouts()

    assert code(bench.end(pair, COMMIT)) == 48
    assert ok(bench.end(pair, ABORT)).producer == after(pair)
    ok(bench.add(after(pair)))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_timeout_under_each_finalized_version(version):
    bench = Bench(transaction_version=version)
    pair = bench.begin(tv2=False)
    bench.advance(60_001)

    (decision,) = bench.timeouts()

    (marker,) = decision.markers
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2 if version == 2 else 0)
    assert code(bench.end(pair, ABORT, tv2=False)) == 90
    assert code(bench.add(pair, tv2=False)) == 90


def test_kafka_20090_timeout_at_the_last_epoch_rotates_and_a_late_abort_succeeds():
    bench = Bench(42, 85, epoch_max=3)
    pair = bench.begin(epoch=2)
    bench.advance(60_001)
    bench.timeouts()

    assert bench.at().state is TxnState.COMPLETE_ABORT
    assert bench.at().pair == Pair(85, 0)
    assert ok(bench.end(pair, ABORT)).producer == Pair(85, 0)


def test_kafka_20090_epoch_32767_found_in_old_state():
    bench = Bench(85)
    bench.seed(
        producer_id=42,
        producer_epoch=32_767,
        state=TxnState.ONGOING,
        start_steady_ms=bench.steady_ms,
        partitions=frozenset(),
    )
    bench.advance(60_001)

    bench.timeouts()

    assert bench.at().state is TxnState.COMPLETE_ABORT
    assert bench.at().pair == Pair(85, 0)


def test_timeout_without_a_producer_id_for_the_rotation_is_tried_again():
    bench = Bench(42, None, 85, epoch_max=2)
    bench.begin(epoch=1)
    bench.advance(60_001)

    assert bench.timeouts() == []
    bench.advance(10)
    assert len(bench.timeouts()) == 1


def test_remaining_timeout_goes_on_after_a_restart():
    bench = Bench()
    bench.begin()
    bench.advance(50_000)
    bench.restart()
    assert bench.timeouts() == []
    bench.advance(10_001)

    assert len(bench.timeouts()) == 1


@pytest.mark.parametrize("jump", [3_600_000, -3_600_000, 10 * 365 * 86_400_000, -1_700_000_000_000])
def test_jumping_wall_clock_aborts_and_expires_nothing(jump):
    bench = Bench()
    pair = bench.begin()
    bench.begin(id="other")
    bench.wall_ms += jump
    bench.steady_ms += 1

    assert bench.timeouts() == []
    assert bench.expire().records == ()
    assert code(bench.end(pair)) == 0
    bench.restart()
    assert len(bench.coordinator) == 2


def test_acceptance_6_prepared_transaction_survives_every_scan():
    bench = Bench()
    pair = bench.begin(two_phase=True)
    for _ in range(5):
        bench.advance(10 * WEEK)
        assert bench.timeouts() == []
        assert bench.expire().records == ()
        bench.restart()

    recovered = ok(bench.init(keep=True, two_phase=True))

    assert recovered.ongoing == pair
    assert code(bench.end(recovered.producer)) == 0


@pytest.mark.parametrize("end", [None, COMMIT, ABORT])
def test_idle_id_expires_and_starts_anew(end):
    bench = Bench()
    pair = bench.init().producer
    if end is not None:
        bench.add(pair)
        pair = bench.end(pair, end).producer
    bench.advance(WEEK - 1)
    assert bench.expire().records == ()
    bench.advance(1)

    (tombstone,) = bench.expire().records

    assert tombstone.state is TxnState.DEAD
    assert bench.at() is None
    bench.restart()
    assert bench.at() is None
    assert code(bench.end(pair)) == 49
    assert ok(bench.init()).producer == Pair(43, 0)


def test_use_renews_the_life_of_an_id():
    bench = Bench()
    pair = bench.init().producer
    for _ in range(10):
        bench.advance(WEEK - 10)
        assert bench.expire().records == ()
        bench.add(pair)
        pair = bench.end(pair).producer
    bench.advance(WEEK)

    assert len(bench.expire().records) == 1


def test_id_whose_transaction_was_open_for_long_expires_a_week_after_its_end():
    bench = Bench()
    pair = bench.begin(two_phase=True)
    bench.advance(3 * WEEK)
    assert bench.expire().records == ()
    bench.end(pair)
    bench.advance(WEEK - 1)
    assert bench.expire().records == ()
    bench.advance(1)

    assert len(bench.expire().records) == 1


def test_many_ids_expire_in_portions():
    bench = Bench(*range(2500))
    for number in range(2500):
        bench.init(id=f"id-{number}")
    bench.advance(WEEK)

    portions = []
    while records := bench.expire().records:
        portions.append(len(records))

    assert portions == [1000, 1000, 500]
    assert len(bench.coordinator) == 0


def test_scan_touches_only_what_is_due():
    """Ten thousand open transactions cost nothing until one of them is due."""
    bench = Bench(*range(10_001))
    for number in range(10_000):
        bench.begin(id=f"id-{number}")
    asked = []
    bench.coordinator._by_id = Watched(bench.coordinator._by_id, asked)
    bench.advance(1_000)

    assert bench.timeouts() == []
    assert asked == []


class Watched(dict):
    def __init__(self, values, asked):
        super().__init__(values)
        self.asked = asked

    def get(self, key, default=None):
        self.asked.append(key)
        return super().get(key, default)


def test_longest_open_time():
    bench = Bench()
    assert bench.coordinator.longest_open_ms(bench.now) == 0
    bench.begin(two_phase=True)
    bench.advance(500)
    bench.begin(id="younger")
    bench.advance(100)

    assert bench.coordinator.longest_open_ms(bench.now) == 600
    assert bench.coordinator.open_count() == 2


def test_timers_never_go_off_late_and_forget_nothing():
    timers = Timers()
    timers.arm("a", 10)
    timers.arm("a", 5)
    timers.arm("b", 7)
    timers.arm("b", 9)

    assert timers.next_ms() == 5
    assert timers.due(4, 10) == []
    assert timers.due(5, 10) == ["a"]
    assert timers.due(100, 10) == ["b"]
    assert timers.due(100, 10) == []
    timers.arm("a", 101)
    assert timers.due(101, 10) == ["a"]
    assert len(timers) == 0


def test_timers_hand_out_at_most_the_limit():
    timers = Timers()
    for number in range(5):
        timers.arm(str(number), number)

    assert timers.due(10, 2) == ["0", "1"]
    assert timers.due(10, 10) == ["2", "3", "4"]
