"""An instance is paused in the middle of a write, declared dead, replaced, and then comes back.

SIGSTOP stops all of it, lease renewal too; its connections and locks stay. A successor takes over
what it can and writes on. What the zombie then does must leave both sides equal: it finds itself
fenced, or its own decision carried out.
"""

from contextlib import contextmanager

import pytest

from dualwrite import RetryableError
from dualwrite.store import Lease
from tests.crash.oracle import create, judge
from tests.crash.points import DECIDED, INSIDE_COMMIT, WRITE_POINTS
from tests.crash.test_matrix import victims_view
from tests.dualwrite.waiting import wait_until

HOLDS_SQLITE = ["C3", "C4", "C5", "C6", "C7", "C8", *INSIDE_COMMIT]
"""Here a paused writer has SQLite's only lock, and nobody else can write."""

REFUSALS = ("Fenced", "RetryableError", "StoreUnavailable")
"""The last is a RetryableError: ZooKeeper has ended the session of somebody who did not answer."""


@contextmanager
def zombie_at(case, nursery, tmp_path, point):
    """A writer that stands at its point, and is made to go on and end at the end of the block."""
    create(case)
    folder = tmp_path / "zombie"
    with victims_view(case, point, folder) as view:
        zombie = nursery.start(view, point, folder, lease_seconds=1)
        wait_until(lambda: zombie.has_reached() or zombie.is_over())
        assert zombie.has_reached(), zombie.result
        try:
            yield zombie
        finally:
            zombie.resume()
            zombie.go_on()
            zombie.wait()


def run_zombie_case(case, nursery, tmp_path, point):
    with zombie_at(case, nursery, tmp_path, point) as zombie:
        pause(case, zombie)
        succeed(case)

    is_committed = zombie.result.startswith("committed")
    if zombie.result.startswith("OutcomeUnknown"):
        # Its COMMIT was under way when its session ended; its successor has the answer.
        assert point in INSIDE_COMMIT
        is_committed = point in DECIDED
    elif not is_committed:
        assert zombie.result.startswith(REFUSALS), zombie.result
    judge(case, expected_first=is_committed, others=[3])


def run_irreplaceable_zombie_case(case, nursery, tmp_path, point):
    """Nobody can take its place as long as it holds the database, so it just goes on."""
    with zombie_at(case, nursery, tmp_path, point) as zombie:
        zombie.pause()
        with pytest.raises(RetryableError):
            succeed(case)

    assert zombie.result.startswith("committed"), zombie.result
    judge(case, expected_first=True)


def pause(case, zombie):
    """Stop it, but not in the moment in which its renewal holds SQLite's only lock."""
    place = case.place

    def is_paused_without_lock():
        zombie.pause()
        try:
            place.store.end_lease("probe")
        except RetryableError:
            zombie.resume()
            return False
        return True

    try:
        wait_until(is_paused_without_lock)
    finally:
        place.close()


def succeed(case):
    """Wait until the zombie's lease has run out, then open in its place and write order 3."""
    place = case.place
    try:
        wait_until(lambda: all(row.lease is not Lease.LIVE for row in place.store.rows(case.app)))
        with case.writer(place) as dw, dw.transaction() as tx:
            place.order(tx, 3)
            tx.produce(case.topic, key="3", value=b"x")
    finally:
        place.close()


@pytest.mark.parametrize("point", ["C2", "C5", "C7", "C8", "C10", "C11"])
@pytest.mark.parametrize("case", ["postgresql"], indirect=True)
def test_zombie_on_postgresql(case, nursery, tmp_path, point):
    run_zombie_case(case, nursery, tmp_path, point)


@pytest.mark.parametrize("point", ["C2", "C10"])
@pytest.mark.parametrize("case", ["sqlite"], indirect=True)
def test_zombie_on_sqlite(case, nursery, tmp_path, point):
    run_zombie_case(case, nursery, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("case", ["postgresql", "mysql", "zookeeper"], indirect=True)
def test_zombie_at_every_point(case, nursery, tmp_path, point):
    run_zombie_case(case, nursery, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in HOLDS_SQLITE])
@pytest.mark.parametrize("case", ["sqlite"], indirect=True)
def test_zombie_on_sqlite_at_every_point_without_its_lock(case, nursery, tmp_path, point):
    run_zombie_case(case, nursery, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", HOLDS_SQLITE)
@pytest.mark.parametrize("case", ["sqlite"], indirect=True)
def test_zombie_that_holds_the_lock_of_sqlite(case, nursery, tmp_path, point):
    run_irreplaceable_zombie_case(case, nursery, tmp_path, point)


@pytest.mark.long
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p != "C0"])
@pytest.mark.parametrize("case", ["rocksdb"], indirect=True)
def test_zombie_that_has_rocksdb_open(case, nursery, tmp_path, point):
    """A RocksDB belongs to one process from its opening to its end."""
    run_irreplaceable_zombie_case(case, nursery, tmp_path, point)
