"""Every point of a dual write x every store x who dies there.

After each case the oracle asks: is the order in the database exactly if its records are visible to
a read_committed consumer, each once? Is nothing left open? Does the next transaction work? Does a
second recovery change nothing?
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.crash.held_commit import HoldingProxy, address_at
from tests.crash.oracle import create, judge
from tests.crash.points import (
    AFTER_COMMIT,
    DECIDED,
    INSIDE_COMMIT,
    RECOVERY_POINTS,
    WRITE_POINTS,
)
from tests.crash.watched_disk import CALLS, why_not
from tests.dualwrite.waiting import wait_until

SQL = ["sqlite", "postgresql"]
OTHERS = ["rocksdb", "zookeeper"]
VICTIMS = ["client", "broker", "both"]
LATE_POINTS = ["C7", "C8", *INSIDE_COMMIT, *AFTER_COMMIT]
AROUND_THE_DECISION = [*INSIDE_COMMIT, "C10"]
NOTHING_IS_OPEN = ["C0", "C1", "C2", "C3", "C4", "C12"]
"""Left here, Kafka's side has nothing to end: C4 is known to the client alone."""


@contextmanager
def victims_view(case, point, folder, *, loses=False):
    """The case as its victim gets it: where COMMIT must stand still, it is made to."""
    folder.mkdir()
    if point not in INSIDE_COMMIT:
        yield case
    elif (case.kind, point) in CALLS:
        if why_not():
            pytest.skip(f"no process can be stopped in a system call: {why_not()}")
        yield case
    else:
        with HoldingProxy(case, point, folder, loses=loses) as proxy:
            yield replace(case, address=address_at(case, proxy.port))


def crash(case, broker, nursery, folder, point, who, *, may_miss=False, **options):
    """Take a victim to its point and let happen what the case says; give what it reported.

    With `may_miss` it may also end without having come to its point.
    """
    with victims_view(case, point, folder) as view:
        victim = nursery.start(view, point, folder, **options)
        wait_until(lambda: victim.has_reached() or victim.is_over())
        if victim.is_over():
            victim.wait()
            assert may_miss, victim.result
            return victim.result
        if who == "client":
            assert victim.kill() == 9
            return "killed"
        if who == "both":
            victim.kill()
            broker.kill()
            broker.restart()
            return "killed"
        broker.kill()
        broker.restart()
        victim.go_on()
        victim.wait()
        return victim.result


def expected_after(point, who, result):
    """Whether order 1 must be there."""
    if who == "broker":
        # The client lived on: what it was told is what must be true.
        return result.startswith("committed")
    return point in DECIDED


def run_write_case(case, broker, nursery, tmp_path, point, who, **options):
    create(case)
    result = crash(case, broker, nursery, tmp_path / "victim", point, who, **options)
    if who == "broker" and (point in DECIDED or point in INSIDE_COMMIT):
        assert result.startswith("committed"), result
    judge(case, expected_after(point, who, result))


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_a_write_to_sql(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", AFTER_COMMIT)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_a_write_whose_kafka_commit_is_in_the_background(
    case, broker, nursery, tmp_path, point, who
):
    run_write_case(case, broker, nursery, tmp_path, point, who, kafka_commit="background")


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", LATE_POINTS)
@pytest.mark.parametrize("case", OTHERS, indirect=True)
def test_crash_of_a_write_to_another_store(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in LATE_POINTS])
@pytest.mark.parametrize("case", OTHERS, indirect=True)
def test_early_crash_of_a_write_to_another_store(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", AROUND_THE_DECISION)
@pytest.mark.parametrize("case", ["mysql"], indirect=True)
def test_crash_of_a_write_to_mysql(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in AROUND_THE_DECISION])
@pytest.mark.parametrize("case", ["mysql"], indirect=True)
def test_crash_of_a_write_to_mysql_at_every_other_point(
    case, broker, nursery, tmp_path, point, who
):
    run_write_case(case, broker, nursery, tmp_path, point, who)


def run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at, **options):
    create(case)
    crash(case, broker, nursery, tmp_path / "writer", left_at, "client", **options)
    # The writer's own EndTxn, if it was sent, may have arrived: then recovery has none to send.
    options |= {"writes": False, "may_miss": point == "R4" and left_at == "C11"}
    result = crash(case, broker, nursery, tmp_path / "recoverer", point, who, **options)
    if who == "broker":
        assert result == "recovered"
    judge(case, expected_first=left_at in DECIDED)


@pytest.mark.parametrize("left_at", ["C7", "C10"])
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_a_recovery(case, broker, nursery, tmp_path, point, who, left_at):
    run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at)


@pytest.mark.long
@pytest.mark.parametrize("left_at", WRITE_POINTS)
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", [*SQL, *OTHERS, "mysql"], indirect=True)
def test_double_crash_at_every_point(case, broker, nursery, tmp_path, point, who, left_at):
    if point == "R4" and left_at in NOTHING_IS_OPEN:
        pytest.skip("nothing is left to end")
    run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at)
