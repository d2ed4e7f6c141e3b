"""One broker for all tests of this folder that do not stop it; topics have names of their own."""

from itertools import count

import pytest

from dualwrite.broker import Broker
from tests.broker.raw_client import RawClient

_numbers = count()


@pytest.fixture(scope="session")
def shared_broker():
    with Broker() as running:
        yield running


@pytest.fixture
def bootstrap(shared_broker):
    return shared_broker.bootstrap_servers


@pytest.fixture
def client(bootstrap):
    with RawClient(bootstrap) as connected:
        yield connected


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def topic(client, name):
    """A topic with one partition."""
    assert client.create_topic(name).error_code == 0
    return name
