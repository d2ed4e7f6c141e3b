"""The database's own server dies around a COMMIT, alone, or with its client and the broker."""

import uuid

import pytest

from tests.crash.oracle import create, judge
from tests.crash.places import Case
from tests.crash.points import DECIDED, WRITE_POINTS
from tests.crash.test_matrix import AROUND_THE_DECISION, victims_view
from tests.dualwrite.waiting import wait_until
from tests.servers.mysql import MySqlServer
from tests.servers.postgres import PostgresServer
from tests.servers.processes import ServerUnavailable
from tests.servers.zookeeper import ZooKeeperServer

SERVERS = {"postgresql": PostgresServer, "mysql": MySqlServer, "zookeeper": ZooKeeperServer}
WHO = ["database", "all"]


@pytest.fixture(scope="module")
def mortal(request):
    """A server of our own, of the kind that the case names."""
    try:
        server = SERVERS[request.param]()
        server.start()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@pytest.fixture
def case(request, mortal, broker):
    kind = request.node.callspec.params["mortal"]
    address = mortal.hosts if kind == "zookeeper" else mortal.url
    app = "crash" + uuid.uuid4().hex[:8]
    return Case(kind, address, broker.bootstrap_servers, app, f"orders-{app}")


def run_database_case(case, broker, nursery, server, folder, point, who):
    """The database dies at the point, alone, or with its client and the broker.

    Alone it takes with it what it was told, and what it had to tell.
    """
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


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", AROUND_THE_DECISION)
@pytest.mark.parametrize("mortal", ["postgresql"], indirect=True)
def test_crash_of_the_database(case, broker, nursery, mortal, tmp_path, point, who):
    run_database_case(case, broker, nursery, mortal, tmp_path / "victim", point, who)


@pytest.mark.parametrize("mortal", ["mysql", "zookeeper"], indirect=True)
def test_crash_of_another_database(case, broker, nursery, mortal, tmp_path):
    """It has decided, and nobody has heard of it."""
    run_database_case(case, broker, nursery, mortal, tmp_path / "victim", "C9b", "database")


@pytest.mark.long
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", AROUND_THE_DECISION)
@pytest.mark.parametrize("mortal", ["mysql", "zookeeper"], indirect=True)
def test_crash_of_another_database_around_the_decision(
    case, broker, nursery, mortal, tmp_path, point, who
):
    run_database_case(case, broker, nursery, mortal, tmp_path / "victim", point, who)


@pytest.mark.long
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", [p for p in WRITE_POINTS if p not in AROUND_THE_DECISION])
@pytest.mark.parametrize("mortal", ["postgresql"], indirect=True)
def test_crash_of_the_database_at_every_other_point(
    case, broker, nursery, mortal, tmp_path, point, who
):
    run_database_case(case, broker, nursery, mortal, tmp_path / "victim", point, who)


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
@pytest.mark.parametrize("mortal", ["postgresql"], indirect=True)
def test_client_killed_while_the_database_is_committing(case, broker, nursery, tmp_path, who):
    """The database does what has arrived, whoever is gone before the answer."""
    victim = start_slow_commit(case, nursery, tmp_path / "victim", seconds=1)
    victim.kill()
    if who == "both":
        broker.kill()
        broker.restart()

    judge(case, expected_first=True)


@pytest.mark.parametrize("who", ["database", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("mortal", ["postgresql"], indirect=True)
def test_database_killed_while_it_is_committing(case, broker, nursery, mortal, tmp_path, who):
    """What was not yet decided in it is undone, and the client learns that from a claim."""
    victim = start_slow_commit(case, nursery, tmp_path / "victim", seconds=600)
    if who == "all":
        victim.kill()
        broker.kill()
        broker.restart()
    mortal.crash()
    if who == "database":
        victim.wait()
        assert victim.result.startswith(("RetryableError", "OutcomeUnknown")), victim.result

    judge(case, expected_first=False)
