"""Session-wide servers; a test that needs to kill one makes its own from the classes."""

from collections.abc import Iterator

import pytest

from tests.servers.mysql import start_mysql
from tests.servers.postgres import PostgresServer
from tests.servers.processes import ServerUnavailable
from tests.servers.zookeeper import ZooKeeperServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
        server.start()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.url


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    try:
        server = ZooKeeperServer()
        server.start()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    try:
        url, server = start_mysql()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield url
    if server is not None:
        server.remove()
