"""Every point of a dual write x every store x who dies there.

After each case the oracle asks: is the order in the database exactly if its records are visible to
a read_committed consumer, each once? Is nothing left open? Does the next transaction work? Does a
second recovery change nothing?
"""

import uuid

import pytest

from tests.crash.oracle import create, judge
from tests.crash.places import Case
from tests.crash.points import DECIDED, EITHER, RECOVERY_POINTS, UNDECIDED, WRITE_POINTS
from tests.dualwrite.waiting import wait_until
from tests.servers.postgres import PostgresServer
from tests.servers.processes import ServerUnavailable

SQL = ["sqlite", "postgresql"]
VICTIMS = ["client", "broker", "both"]
LATE_POINTS = ["C7", "C8", "C9", "C10", "C11", "C12"]


def crash(case, broker, nursery, folder, point, who, *, may_miss=False, **options):
    """Take a victim to its point and let happen what the case says; give what it reported.

    With `may_miss` it may also end without having come to its point.
    """
    folder.mkdir()
    victim = nursery.start(case, point, folder, **options)
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
    """What must be left of order 1."""
    if who == "broker":
        # The client lived on: what it was told is what must be true.
        return result.startswith("committed")
    if point in EITHER:
        return None
    return point in DECIDED


def run_write_case(case, broker, nursery, tmp_path, point, who, **options):
    create(case)
    result = crash(case, broker, nursery, tmp_path / "victim", point, who, **options)
    if who == "broker" and point in DECIDED:
        assert result.startswith("committed")
    judge(case, expected_after(point, who, result))


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_a_write_to_sql(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", DECIDED)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_a_write_whose_kafka_commit_is_in_the_background(
    case, broker, nursery, tmp_path, point, who
):
    run_write_case(case, broker, nursery, tmp_path, point, who, kafka_commit="background")


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", LATE_POINTS)
@pytest.mark.parametrize("case", ["rocksdb", "zookeeper"], indirect=True)
def test_crash_of_a_write_to_another_store(case, broker, nursery, tmp_path, point, who):
    run_write_case(case, broker, nursery, tmp_path, point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in LATE_POINTS])
@pytest.mark.parametrize("case", ["rocksdb", "zookeeper"], indirect=True)
def test_early_crash_of_a_write_to_another_store(case, broker, nursery, tmp_path, point, who):
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


def run_database_case(broker, nursery, server, folder, point, who):
    """The database dies at the point, alone, or with its client and the broker."""
    app = "crash" + uuid.uuid4().hex[:8]
    case = Case("postgresql", server.url, broker.bootstrap_servers, app, f"orders-{app}")
    create(case)
    victim = nursery.start(case, point, folder)
    wait_until(lambda: victim.has_reached() or victim.is_over())
    assert victim.has_reached(), victim.result
    if who == "all":
        victim.kill()
        broker.kill()
        server.crash()
        broker.restart()
        judge(case, None if point in EITHER else point in DECIDED)
        return
    server.crash()
    victim.go_on()
    victim.wait()
    # The client lived on: what it was told is what must be true.
    is_unknown = victim.result.startswith("OutcomeUnknown")
    judge(case, None if is_unknown else victim.result.startswith("committed"))
    if point in DECIDED:
        assert victim.result.startswith("committed")


@pytest.mark.parametrize("who", ["database", "all"])
@pytest.mark.parametrize("point", ["C9", "C10"])
def test_crash_of_the_database(broker, nursery, mortal_postgres, tmp_path, point, who):
    run_database_case(broker, nursery, mortal_postgres, tmp_path, point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", ["database", "all"])
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in ("C9", "C10")])
def test_crash_of_the_database_at_every_other_point(
    broker, nursery, mortal_postgres, tmp_path, point, who
):
    run_database_case(broker, nursery, mortal_postgres, tmp_path, point, who)


@pytest.mark.parametrize("case", ["postgresql"], indirect=True)
def test_client_killed_while_the_database_is_committing(case, broker, nursery, tmp_path):
    """C9 to the letter: COMMIT has arrived, its client is gone before the answer."""
    create(case, commit_seconds=1)
    (tmp_path / "victim").mkdir()
    victim = nursery.start(case, "none", tmp_path / "victim")
    place = case.place
    wait_until(place.is_committing)
    place.close()
    victim.kill()

    judge(case, expected_first=True)


def run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at):
    create(case)
    crash(case, broker, nursery, tmp_path / "writer", left_at, "client")
    # The writer's own EndTxn, if it was sent, may have arrived: then recovery has none to send.
    may_miss = point == "R4" and left_at == "C11"
    folder = tmp_path / "recoverer"
    result = crash(case, broker, nursery, folder, point, who, writes=False, may_miss=may_miss)
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
@pytest.mark.parametrize("left_at", [p for p in (*UNDECIDED, *DECIDED) if p > "C4" or p in DECIDED])
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", [*SQL, "rocksdb", "zookeeper"], indirect=True)
def test_double_crash_at_every_point(case, broker, nursery, tmp_path, point, who, left_at):
    if point == "R4" and left_at == "C12":
        pytest.skip("nothing is left to end")
    run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at)
