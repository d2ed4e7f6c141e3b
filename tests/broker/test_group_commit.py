"""What shares one sync of the disk, and what does not wait for others."""

from concurrent.futures import Future

import pytest

from dualwrite.broker.call import Call
from dualwrite.broker.server import IN_LINE_BYTES_MAX, Server
from dualwrite.broker.storage.journal import Journal
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages.api_versions import ApiVersionsRequest
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import batch, produce_request


class Desk:
    """A server whose event loop goes one pass further when the test says so."""

    def __init__(self, monkeypatch):
        self.driver = NodeDriver()
        self.driver.create_topic()
        self.soon = []
        self.groups = []
        self.server = Server(self.driver.node, [], self)
        self.server._loop = self
        self.server.failed = Future()
        write = Journal.write

        def counted(journal, entries, steady_ms):
            self.groups.append(len(entries))
            write(journal, entries, steady_ms)

        monkeypatch.setattr(Journal, "write", counted)

    def now(self):
        return self.driver.now

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, _delay, _callback):
        return Future()

    def run_in_executor(self, *_):
        return Future()

    def pass_with(self, count, of=None, version=11, value=b"x"):
        """One pass of the loop that finds `count` requests; then what was to come soon."""
        connection, rights = self.driver.connection, self.driver.node.rights
        for _ in range(count):
            written = produce_request("t", batch(value, timestamp_ms=WALL_MS))
            request = written if of is None else of()
            key = schema_of(type(request)).api_key
            self.server.handle(Call(key, version, 1, "", request, connection, rights, self.now()))
            self.server.turn_soon()
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    @property
    def answers(self):
        return len(self.driver.connection.responses)


@pytest.fixture
def desk(monkeypatch):
    return Desk(monkeypatch)


def test_a_lone_request_is_written_at_once(desk):
    desk.pass_with(1)

    assert (desk.groups, desk.answers, desk.soon) == ([1], 1, [])


def test_what_comes_meanwhile_shares_the_sync(desk):
    desk.pass_with(3)
    assert (desk.groups, desk.answers) == ([], 0)

    desk.pass_with(2)

    assert (desk.groups, desk.answers, desk.soon) == ([5], 5, [])


def test_nothing_waits_behind_a_large_group(desk):
    desk.pass_with(2, value=bytes(IN_LINE_BYTES_MAX))

    assert desk.server._writing is not None


def test_reads_wait_for_nothing(desk):
    desk.pass_with(1)

    desk.pass_with(3, of=ApiVersionsRequest, version=0)

    assert (desk.answers, desk.soon) == (4, [])
