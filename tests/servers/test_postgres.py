"""The test server itself: what a soak of an hour cannot do without."""

import pytest

from tests.servers import postgres
from tests.servers.postgres import STARTS_MAX, PostgresServer
from tests.servers.processes import ServerUnavailable


class Haunted(PostgresServer):
    """It is refused as long as a child of the killed server is there."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.begun = 0

    def kill(self):
        pass

    def start(self):
        self.begun += 1
        if self.begun <= self.refusals:
            raise ServerUnavailable("pre-existing shared memory block is still in use")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(postgres.time, "sleep", lambda seconds: None)


def test_a_crashed_server_is_started_until_its_children_are_gone():
    server = Haunted(refusals=2)

    server.crash()

    assert server.begun == 3


def test_a_server_that_never_starts_is_given_up():
    server = Haunted(refusals=STARTS_MAX)

    with pytest.raises(ServerUnavailable, match="still in use"):
        server.crash()
