"""A disk that always has a next group to write: what is due must be done all the same."""

from concurrent.futures import Future

import pytest

from dualwrite.broker.server import IN_LINE_BYTES_MAX, Server
from dualwrite.wire.messages.fetch import FetchResponse
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import batch, fetch_request, produce_request

ROUNDS = 5


class Loop:
    """An event loop whose executor writes when the test says so."""

    def __init__(self):
        self.soon = []
        self.writes = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, _delay, _callback):
        return Future()  # can be cancelled; timers that fire are not needed here

    def run_in_executor(self, _executor, write, group):
        written = Future()
        self.writes.append((written, write, group))
        return written

    def run(self):
        while self.soon:
            self.soon.pop(0)()

    def write(self):
        """Finish the write that is under way."""
        written, write, group = self.writes.pop()
        write(group)
        written.set_result(None)
        self.run()


class Clock:
    def __init__(self, driver):
        self._driver = driver

    def now(self):
        return self._driver.now


@pytest.fixture
def driver():
    driver = NodeDriver(**{"checkpoint.journal.bytes": 1 << 20, "journal.file.bytes": 1 << 20})
    driver.create_topic("busy")
    driver.create_topic("quiet")
    return driver


@pytest.fixture
def server(driver):
    server = Server(driver.node, [], Clock(driver))
    server._loop = Loop()
    server.failed = Future()
    return server


def produce_much(driver):
    data = batch(bytes(IN_LINE_BYTES_MAX), timestamp_ms=WALL_MS)
    driver.send(produce_request("busy", data), 11)


def keep_busy(driver, server, rounds=ROUNDS):
    """More is waiting whenever a group has been written."""
    for _ in range(rounds):
        produce_much(driver)
        if server._writing is None:  # a chore has written everything itself
            server.turn_soon()
            server._loop.run()
        produce_much(driver)
        server._loop.write()


def is_polled(driver):
    return any(isinstance(response, FetchResponse) for response in driver.connection.responses)


def test_a_long_poll_ends_at_its_deadline(driver, server):
    driver.send(fetch_request("quiet", max_wait_ms=100, min_bytes=1), 12)
    keep_busy(driver, server)
    assert not is_polled(driver)

    driver.passed_ms += 100
    keep_busy(driver, server)

    assert is_polled(driver)


def test_the_journal_is_checkpointed(driver, server):
    for _ in range(100):
        driver.passed_ms += 1_000
        keep_busy(driver, server, rounds=1)

    assert len(driver.node._disk.listdir("journal")) < 10
