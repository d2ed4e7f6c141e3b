"""A node without sockets: calls go in, what is delivered is kept, time moves when a test says so."""

from dualwrite.broker.call import HANG_UP, NO_REPLY, Call
from dualwrite.broker.clock import Now
from dualwrite.broker.node import Node
from dualwrite.broker.settings import Settings
from dualwrite.broker.storage.memory_disk import MemoryDisk
from dualwrite.wire.codec import decode, encode
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from tests.broker.raw_client import batch, fetch_request, produce_request, values_of

WALL_MS = 1_800_000_000_000
FOREVER_MS = 2**31
"""Longer than anything that a request can ask to wait for."""


class Delivered:
    """A connection that keeps what is delivered."""

    principal = "User:ANONYMOUS"
    host = "127.0.0.1"
    listener = "PLAINTEXT"

    def __init__(self):
        self.responses = []

    def deliver(self, call, response):
        data = encode(response, call.version)
        self.responses.append(decode(type(response), data, call.version))


class Awaiting:
    """A connection with one call, which must get one answer, or none by protocol, or the end."""

    principal = "User:ANONYMOUS"
    host = "127.0.0.1"
    listener = "PLAINTEXT"
    sasl = None

    def __init__(self, request, version):
        self.what = f"{type(request).__name__} v{version}: {request}"
        self.answers = 0

    def deliver(self, call, response):
        self.answers += 1
        assert self.answers == 1, f"answered twice: {self.what}"
        if response is not HANG_UP and response is not NO_REPLY:
            encode(response, call.version)


def await_answers(driver, connections):
    """Let pass whatever anybody may wait for; then every call has been answered."""
    for _ in range(3):  # the end of one wait may begin another, as a rebalance's does
        driver.pass_time_at_once(FOREVER_MS)
    forgotten = [c.what for c in connections if not c.answers]
    assert not forgotten, f"never answered: {forgotten}"


class NodeDriver:
    """A node on a disk in memory."""

    def __init__(self, disk=None, **settings):
        self.disk = disk or MemoryDisk()
        self.settings = settings
        self.passed_ms = 0
        self.connection = Delivered()
        self._open()

    def _open(self):
        self.node = Node.open(self.disk.attach(), Settings.of(self.settings), self._wall_ms)
        self._began_ms = self.node.storage.steady_ms - self.passed_ms

    @property
    def _wall_ms(self):
        return WALL_MS + self.passed_ms

    @property
    def now(self):
        return Now(self._wall_ms, self._began_ms + self.passed_ms)

    def crash(self, random=None):
        """Power loss and a new start."""
        self.disk.crash(random)
        self.connection = Delivered()
        self._open()

    def send(self, request, version):
        """Handle a request without flushing; goes over the wire's bytes both ways."""
        cls = type(request)
        request = decode(cls, encode(request, version), version)
        key = schema_of(cls).api_key
        call = Call(key, version, 1, "test", request, self.connection, self.node.rights, self.now)
        self.node.handle(call)

    def call(self, request, version):
        self.send(request, version)
        self.node.flush(self.now)
        return self.connection.responses.pop()

    def pass_time(self, milliseconds):
        """Let time go by, doing what is due when it is due."""
        end = self.passed_ms + milliseconds
        while True:
            due = self.node.next_deadline_ms() - self._began_ms
            self.passed_ms = min(max(due, self.passed_ms + 1), end)
            self.node.tick(self.now)
            self.node.flush(self.now)
            if self.passed_ms == end:
                return

    def pass_time_at_once(self, milliseconds):
        """Let so much time go by that nobody wants to see every chore in it."""
        self.passed_ms += milliseconds
        self.node.tick(self.now)
        self.node.flush(self.now)

    # What most tests need

    def create_topic(self, name="t"):
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        (result,) = self.call(CreateTopicsRequest(topics=[wanted]), 7).topics
        assert result.error_code == 0

    def init(self, transactional_id, version=6, **fields):
        fields.setdefault("transaction_timeout_ms", 60_000)
        return self.call(
            InitProducerIdRequest(transactional_id=transactional_id, **fields), version
        )

    def begin(self, transactional_id, value=b"x", topic="t", **fields):
        """A transaction with one record; gives its pair."""
        mine = self.init(transactional_id, **fields)
        pair = (mine.producer_id, mine.producer_epoch)
        data = batch(value, pair=pair, sequence=0, transactional=True, timestamp_ms=self._wall_ms)
        request = produce_request(topic, data, transactional_id=transactional_id)
        part = self.call(request, 12).responses[0].partition_responses[0]
        assert part.error_code == 0, part
        return pair

    def end(self, transactional_id, pair, commit=True, version=5):
        return self.call(EndTxnRequest(transactional_id, pair[0], pair[1], commit), version)

    def produce(self, value, topic="t", **fields):
        data = batch(value, timestamp_ms=self._wall_ms, **fields)
        request = produce_request(topic, data)
        return self.call(request, 11).responses[0].partition_responses[0]

    def committed(self, topic="t"):
        request = fetch_request(topic, isolation_level=1)
        part = self.call(request, 12).responses[0].partitions[0]
        aborted = {(a.producer_id) for a in part.aborted_transactions}
        return [] if aborted else values_of(part)

    def last_stable(self, topic="t"):
        return self.node.find_log(topic, 0).last_stable
