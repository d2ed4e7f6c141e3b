"""The checks of a history, each on something that it must refuse."""

import pytest

from tests.simulation import checks
from tests.simulation.checks import check_order, check_reads
from tests.simulation.database import Database
from tests.simulation.history import run_history
from tests.simulation.ledger import Ledger
from tests.simulation.observer import Observer, Read, Seen
from tests.simulation.reader_mutants import READER_MUTANTS
from tests.simulation.world import Violation, World

WHERE = ("orders", 0)
COMMITTED, ABORTED = 1, 2  # producer ids


@pytest.fixture
def observer():
    """A log of two transactions that overlap: one record each, then another of the first."""
    world = World(0)
    found = Observer(world, Ledger(), Database(world.random))
    records = [(COMMITTED, b"a"), (ABORTED, b"b"), (COMMITTED, b"c")]
    seen = [Seen(producer_id, 0, value, None) for producer_id, value in records]
    seen += [Seen(ABORTED, 0, None, False), Seen(COMMITTED, 0, None, True)]
    found.log[WHERE] = dict(enumerate(seen))
    return found


@pytest.mark.parametrize(
    ("isolation", "position", "end", "shown"),
    [
        (1, 0, 5, [0, 2]),
        (1, 1, 5, [2]),
        (1, 0, 2, [0]),
        (1, 3, 5, []),
        (0, 0, 5, [0, 1, 2]),
        (0, 1, 2, [1]),
    ],
)
def test_a_read_that_shows_all_and_nothing_else(observer, isolation, position, end, shown):
    observer.reads = [Read(WHERE, isolation, position, end, shown)]
    check_reads(observer)

    for other in (shown[1:] if shown else [1], [*shown, 4]):
        observer.reads = [Read(WHERE, isolation, position, end, other)]
        with pytest.raises(Violation, match=f"from {position} to {end} at isolation {isolation}"):
            check_reads(observer)


@pytest.mark.parametrize("name", sorted(set(READER_MUTANTS) - {"a_single_batch_is_not_shown"}))
def test_only_what_the_reads_have_shown_tells(name, monkeypatch):
    """Without this check the seed that is kept with such a bug finds nothing, nor do others."""
    mutant = READER_MUTANTS[name]
    mutant.plant(monkeypatch)
    seeds = [mutant.seed, *range(40)]
    caught = [seed for seed in seeds if run_history(seed).violation is not None]
    monkeypatch.setattr(checks, "check_reads", lambda observer: None)

    assert caught
    assert [run_history(seed).violation for seed in caught] == [None] * len(caught)


def ordered(*names):
    """A partition with a record of each of these transactions, of which two were begun."""
    ledger = Ledger()
    for _ in range(2):
        ledger.begin("one", "plain")
        ledger.begin("two", "plain")
    return ledger, {WHERE: {offset: name.encode() for offset, name in enumerate(names)}}


def test_order():
    check_order(*ordered("one#1/0", "two#2/0", "one#1/1", "one#2/0", "two#2/3"))


@pytest.mark.parametrize(
    "names",
    [
        ("one#1/1", "one#1/0"),
        ("one#2/0", "one#1/0"),
        ("one#1/0", "one#2/0", "two#1/0", "one#1/1"),
    ],
)
def test_out_of_order(names):
    with pytest.raises(Violation, match="out of order"):
        check_order(*ordered(*names))
