"""Every point of a dual write x every store x who dies there.

After each case the oracle asks: is the order in the database exactly if its records are visible to
a read_committed consumer, each once? Is nothing left open? Does the next transaction work? Does a
second recovery change nothing?
"""

import uuid
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.crash.held_commit import HoldingProxy, address_at
from tests.crash.oracle import create, judge
from tests.crash.places import Case
from tests.crash.points import (
    AFTER_COMMIT,
    DECIDED,
    INSIDE_COMMIT,
    RECOVERY_POINTS,
    WRITE_POINTS,
)
from tests.crash.watched_disk import CALLS, why_not
from tests.dualwrite.waiting import wait_until
from tests.servers.postgres import PostgresServer
from tests.servers.processes import ServerUnavailable

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


@pytest.fixture(scope="module")
def mortal_postgres():
    try:
        server = PostgresServer()
        server.start()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


def mortal_case(server, broker):
    app = "crash" + uuid.uuid4().hex[:8]
    return Case("postgresql", server.url, broker.bootstrap_servers, app, f"orders-{app}")


def run_database_case(broker, nursery, server, folder, point, who):
    """The database dies at the point, alone, or with its client and the broker.

    Alone it takes with it what it was told, and what it had to tell.
    """
    case = mortal_case(server, broker)
    create(case)
    with victims_view(case, point, folder, loses=True) as view:
        victim = nursery.start(view, point, folder)
        wait_until(lambda: victim.has_reached() or victim.is_over())
        assert victim.has_reached(), victim.result
        if who == "all":
            victim.kill()
            broker.kill()
            server.crash()
            broker.restart()
            is_committed = point in DECIDED
        else:
            server.crash()
            victim.go_on()
            victim.wait()
            # The client lived on: what it was told is what must be true.
            is_committed = victim.result.startswith("committed")
            assert is_committed or point not in DECIDED, victim.result
            if point == "C9a":
                assert victim.result.startswith("RetryableError"), victim.result
    judge(case, is_committed)


@pytest.mark.parametrize("who", ["database", "all"])
@pytest.mark.parametrize("point", AROUND_THE_DECISION)
def test_crash_of_the_database(broker, nursery, mortal_postgres, tmp_path, point, who):
    run_database_case(broker, nursery, mortal_postgres, tmp_path / "victim", point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", ["database", "all"])
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in AROUND_THE_DECISION])
def test_crash_of_the_database_at_every_other_point(
    broker, nursery, mortal_postgres, tmp_path, point, who
):
    run_database_case(broker, nursery, mortal_postgres, tmp_path / "victim", point, who)


def start_slow_commit(case, nursery, folder, seconds):
    """Start a victim whose COMMIT is at work in the database, and give it."""
    create(case, commit_seconds=seconds)
    folder.mkdir()
    victim = nursery.start(case, "none", folder)
    place = case.place
    wait_until(place.is_committing)
    place.close()
    return victim


@pytest.mark.parametrize("who", ["client", pytest.param("both", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", ["postgresql"], indirect=True)
def test_client_killed_while_the_database_is_committing(case, broker, nursery, tmp_path, who):
    """The database does what has arrived, whoever is gone before the answer."""
    victim = start_slow_commit(case, nursery, tmp_path / "victim", seconds=1)
    victim.kill()
    if who == "both":
        broker.kill()
        broker.restart()

    judge(case, expected_first=True)


@pytest.mark.parametrize("who", ["database", pytest.param("all", marks=pytest.mark.long)])
def test_database_killed_while_it_is_committing(broker, nursery, mortal_postgres, tmp_path, who):
    """What was not yet decided in it is undone, and the client learns that from a claim."""
    case = mortal_case(mortal_postgres, broker)
    victim = start_slow_commit(case, nursery, tmp_path / "victim", seconds=600)
    if who == "all":
        victim.kill()
        broker.kill()
        broker.restart()
    mortal_postgres.crash()
    if who == "database":
        victim.wait()
        assert victim.result.startswith(("RetryableError", "OutcomeUnknown")), victim.result

    judge(case, expected_first=False)


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
