"""Random requests against the coordinator and a plain model of what each pair may do.

The seed is in the test's name. What is checked: every decision replays legally; a restart at any moment
changes nothing; a pair that lost its right never gets it back; every transaction ends once, with the
outcome its owner asked for, or by an abort that is remembered with its cause.
"""

from random import Random

import pytest

from dualwrite.broker.transactions.coordinator import Availability
from dualwrite.broker.transactions.state import (
    NO_PAIR,
    Cause,
    IllegalTransition,
    PartitionRef,
    TxnState,
)
from tests.transactions.harness import Bench

PARTITIONS = [PartitionRef("t", n) for n in range(4)]


class Walk:
    def __init__(self, seed):
        self.random = Random(seed)
        self.bench = Bench(
            *range(100, 5000),
            epoch_max=self.random.choice([2, 3, 5, 32_767]),
            transaction_version=self.random.choice([2, 2, 2, 0]),
        )
        self.pairs = [NO_PAIR]  # every pair that anybody was ever given
        self.ended = {}  # (producer id, marker epoch) -> commit

    def run(self, steps):
        choices = [self.init, self.init, self.add, self.add, self.end, self.end, self.verify,
                   self.restart, self.flip, self.scan, self.wait]  # fmt: skip
        for _ in range(steps):
            before = self.bench.at()
            marked = len(self.bench.markers)
            self.random.choice(choices)()
            self.check(before, self.bench.markers[marked:])

    def pair(self):
        current = self.bench.at().client_pair if self.bench.at() else NO_PAIR
        return self.random.choice([current, current, current, *self.pairs[-4:]])

    def init(self):
        decision = self.bench.init(
            self.random.choice([NO_PAIR, NO_PAIR, self.pair()]),
            keep=self.random.random() < 0.4,
            two_phase=self.random.random() < 0.4,
            timeout_ms=self.random.choice([1_000, 60_000]),
        )
        if decision.producer != NO_PAIR and decision.records:
            assert decision.producer not in self.pairs, "a pair was given out twice"
            self.pairs.append(decision.producer)

    def add(self):
        before, pair = self.bench.at(), self.pair()
        decision = self.bench.add(
            pair, self.random.choice(PARTITIONS), tv2=self.random.random() < 0.7
        )
        if decision.error == 0:
            assert pair == before.client_pair
            assert not before.is_kept

    def verify(self):
        before, pair = self.bench.at(), self.pair()
        decision = self.bench.verify(pair, PARTITIONS[0])
        if decision.error == 0 and not decision.partition_errors:
            assert pair == before.pair
            assert not before.is_kept
            assert PARTITIONS[0] in before.partitions

    def end(self):
        before, pair = self.bench.at(), self.pair()
        commit, tv2 = self.random.random() < 0.5, self.random.random() < 0.8
        decision = self.bench.end(pair, commit, tv2=tv2)
        if decision.records:
            assert pair == before.client_pair
        if tv2 and decision.error == 0:
            if decision.records:
                assert decision.producer not in self.pairs, "a pair was given out twice"
            self.pairs.append(decision.producer)
            assert self.bench.at().last_outcome in ("", "commit", "abort")

    def restart(self):
        before = self.bench.at()
        self.bench.restart()
        assert self.bench.at() == before

    def flip(self):
        how = self.random.choice([*Availability, Availability.ONLINE, Availability.ONLINE])
        self.bench.availability[self.random.choice(PARTITIONS)] = how
        self.bench.complete()

    def scan(self):
        before = self.bench.at()
        if self.bench.timeouts():
            assert not before.is_two_phase
            assert self.bench.at().last_cause is Cause.TIMEOUT
        self.bench.expire()

    def wait(self):
        self.bench.advance(self.random.choice([1, 500, 30_000, 700_000_000]))

    def check(self, before, markers):
        now = self.bench.at()
        for marker in markers:
            key = (marker.producer_id, marker.producer_epoch)
            if marker.transaction_version == 2:
                # One outcome per transaction, whatever came in between.
                assert self.ended.setdefault(key, marker.commit) == marker.commit
            if marker.commit:
                assert now.last_outcome == "commit"
        if before is None or now is None:
            return
        if before.state is TxnState.ONGOING and now.state is not TxnState.ONGOING:
            assert now.last_finished == before.pair
            if before.client_transaction_version == 2 and now.client_transaction_version == 2:
                assert now.client_pair.producer_epoch >= 0
                assert now.client_pair != before.client_pair
        if now.is_kept:
            assert now.pair != now.client_pair
        assert now.client_pair.producer_epoch < max(self.bench.settings.epoch_max, 1)


@pytest.mark.parametrize("seed", range(150))
def test_random_walk(seed):
    Walk(seed).run(120)


def test_the_walk_is_not_blind():
    """The same walks on a coordinator that forgets to move the pair are caught."""
    caught = 0
    for seed in range(20):
        walk = Walk(seed)
        walk.bench.coordinator._bump = lambda pair: pair
        walk.restart = walk.wait  # a restart would bring the unbroken coordinator back
        try:
            walk.run(120)
        except (AssertionError, IllegalTransition):
            caught += 1
    assert caught >= 15
