"""Fixtures of the dual write: a broker for the session, a world per test and database."""

import pytest

from dualwrite.broker import Broker, BrokerProcess
from tests.dualwrite.world import World


@pytest.fixture(scope="session")
def shared_broker():
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker_process():
    """A broker that a test may kill."""
    with BrokerProcess() as broker:
        yield broker


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'orders.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def world(shared_broker, database_url):
    made = World(shared_broker.bootstrap_servers, database_url)
    yield made
    made.close()


@pytest.fixture
def sqlite_world(shared_broker, tmp_path):
    made = World(shared_broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
    yield made
    made.close()


@pytest.fixture
def postgres_world(shared_broker, postgres_url):
    made = World(shared_broker.bootstrap_servers, postgres_url)
    yield made
    made.close()
