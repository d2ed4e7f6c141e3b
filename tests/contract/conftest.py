"""What every test of the public contract starts from: a broker, and a database with the tables."""

import pytest
from sqlalchemy import create_engine, text

from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker


@pytest.fixture(scope="package")
def broker():
    with Broker() as running:
        yield running


@pytest.fixture
def servers(broker):
    return broker.bootstrap_servers


@pytest.fixture
def url(tmp_path):
    """An SQLite database with the state tables and a table of orders."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = create_engine(url)
    SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    engine.dispose()
    return url


@pytest.fixture
def engine(url):
    engine = create_engine(url)
    yield engine
    engine.dispose()
