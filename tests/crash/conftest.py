"""A broker that may be killed, the process from which victims are forked, and a place per case."""

import uuid

import pytest

from dualwrite.broker import BrokerProcess
from tests.crash.places import Case
from tests.crash.victims import Nursery


@pytest.fixture(scope="module")
def broker():
    with BrokerProcess() as running:
        yield running


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def case(request, broker, tmp_path):
    kind = request.param
    app = "crash" + uuid.uuid4().hex[:8]
    if kind == "postgresql":
        address = request.getfixturevalue("postgres_url")
    elif kind == "mysql":
        address = request.getfixturevalue("mysql_url")
    elif kind == "zookeeper":
        address = request.getfixturevalue("zookeeper").hosts
    else:
        address = f"sqlite:///{tmp_path / 'db'}" if kind == "sqlite" else str(tmp_path / "db")
    return Case(kind, address, broker.bootstrap_servers, app, f"orders-{app}")
