"""A broker shared by the tests of the client; every test uses topics and ids of its own."""

import itertools

import pytest

from dualwrite.broker import Broker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker():
    with Broker() as broker:
        yield broker


@pytest.fixture
def servers(shared_broker):
    return shared_broker.bootstrap_servers


@pytest.fixture
def name():
    """A name for topics, groups and transactional ids that no other test uses."""
    return f"n{next(_numbers)}"


@pytest.fixture
def config(servers, name):
    return {"bootstrap.servers": servers, "transactional.id": name}


@pytest.fixture
def two_phase(config):
    return {**config, "transaction.two.phase.commit.enable": True}
