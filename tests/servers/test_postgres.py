"""The test server itself: what a soak of an hour cannot do without."""

import os
import select
import signal
from contextlib import suppress

import psycopg
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


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(postgres.time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("no_waiting")
def test_a_crashed_server_is_started_until_its_children_are_gone():
    server = Haunted(refusals=2)

    server.crash()

    assert server.begun == 3


@pytest.mark.usefixtures("no_waiting")
def test_a_server_that_never_starts_is_given_up():
    server = Haunted(refusals=STARTS_MAX)

    with pytest.raises(ServerUnavailable, match="still in use"):
        server.crash()


@pytest.fixture
def server():
    try:
        made = PostgresServer()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    yield made
    made.remove()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs /proc")
def test_no_backend_outlives_a_killed_server(server):
    """One that the machine has kept waiting does not see that its postmaster is gone."""
    server.start()
    with psycopg.connect(server.dsn) as client:
        backend = os.pidfd_open(client.info.backend_pid)
        try:
            signal.pidfd_send_signal(backend, signal.SIGSTOP)
            server.kill()
            is_over, _, _ = select.select([backend], [], [], 0)
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(backend, signal.SIGKILL)
            os.close(backend)
    assert is_over
    server.start()  # nobody has the old one's memory any more
