"""Connections: order, back-pressure, limits, and bad neighbours beside healthy clients."""

import socket
import struct
import threading

import pytest

from dualwrite.broker import Broker
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.metadata import MetadataRequest
from tests.broker.raw_client import RawClient, batch, fetch_request, produce_request
from tests.dualwrite.waiting import wait_until

PRODUCE = 0


def test_every_request_has_exactly_one_answer_in_order(bootstrap, client, topic):
    """KAFKA-17877: a callback that fires twice shifts every answer behind it."""
    mine = client.init_producer()
    pair = (mine.producer_id, mine.producer_epoch)
    data = [batch(b"%d" % n, pair=pair, sequence=n) for n in range(100)]
    frames = []
    for number in range(100):
        # Every batch twice: the second is a duplicate.
        for copy in range(2):
            request = produce_request(topic, data[number])
            frames.append(encode_request(request, 11, 2 * number + copy, "raw"))
    frames.append(encode_request(MetadataRequest(topics=[]), 12, 1_000, "raw"))
    client.socket.sendall(b"".join(frames))

    for number in range(200):
        correlation_id, answer = client.receive(PRODUCE, 11)
        part = answer.responses[0].partition_responses[0]
        assert (correlation_id, part.error_code) == (number, 0)
        assert part.base_offset == number // 2
    assert client.receive(3, 12)[0] == 1_000


def test_a_frame_may_come_byte_by_byte(client):
    for byte in encode_request(MetadataRequest(topics=[]), 12, 5, "raw"):
        client.socket.sendall(bytes([byte]))

    assert client.receive(3, 12)[0] == 5


def test_slow_and_silly_connections_do_not_hold_up_the_others(bootstrap, client, topic):
    neighbours = [RawClient(bootstrap) for _ in range(60)]
    try:
        for number, neighbour in enumerate(neighbours):
            if number % 3 == 0:  # a frame that never ends
                neighbour.socket.sendall(struct.pack(">i", 1_000) + b"\0\3")
            elif number % 3 == 1:  # half of a size
                neighbour.socket.sendall(b"\0\0")
            else:  # a size that is too large
                neighbour.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for number in range(50):
            assert client.produce(topic, batch(b"%d" % number)).base_offset == number
    finally:
        for neighbour in neighbours:
            neighbour.socket.close()


def test_a_peer_that_reads_nothing_is_not_read_either():
    """A slow reader costs the broker a bounded amount of memory."""
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("big")
        for _ in range(8):
            client.produce("big", batch(b"x" * 1_000_000))
        with RawClient(broker.bootstrap_servers) as slow:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = encode_request(fetch_request("big", max_partition_bytes=1 << 23), 12, 1, "s")
            slow.socket.setblocking(False)
            sent = 0
            try:
                while sent < 100_000_000:
                    sent += slow.socket.send(request * 100)
            except BlockingIOError:
                pass
            # Others are served all the same, and what the slow one asked for was not all read.
            assert client.fetch("big", 7).error_code == 0
            assert sent < 50_000_000
            held = [c for c in broker.server.connections if not c.is_idle]
            assert all(c.write_buffer_size < 32 << 20 for c in held)


def test_a_frame_larger_than_allowed_closes_the_connection():
    with (
        Broker(socket_request_max_bytes=10_000) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.create_topic("t")
        client.send(produce_request("t", batch(b"x" * 20_000)), 11)

        assert client.is_closed()


def test_idle_and_unfinished_connections_are_closed():
    with (
        Broker(connections_max_idle_ms=200) as broker,
        RawClient(broker.bootstrap_servers) as idle,
        RawClient(broker.bootstrap_servers) as unfinished,
    ):
        unfinished.socket.sendall(struct.pack(">i", 100))

        assert idle.is_closed()
        assert unfinished.is_closed()


def test_idle_connections_stay_if_they_may():
    with (
        Broker(connections_max_idle_ms=-1) as broker,
        RawClient(broker.bootstrap_servers) as idle,
        RawClient(broker.bootstrap_servers) as busy,
    ):
        busy.create_topic("t")
        busy.fetch("t", max_wait_ms=300)

        assert idle.call(MetadataRequest(topics=[]), 12).cluster_id


def test_there_is_a_limit_to_connections():
    with (
        Broker(max_connections=2) as broker,
        RawClient(broker.bootstrap_servers) as first,
        RawClient(broker.bootstrap_servers) as second,
    ):
        assert second.call(MetadataRequest(topics=[]), 12).cluster_id
        with RawClient(broker.bootstrap_servers) as third:
            assert third.is_closed()
        assert first.call(MetadataRequest(topics=[]), 12).cluster_id


HELD_MAX = 300_000
STORMING, ROUNDS = 8, 3
ONE_READ = 256 << 10
"""The most that asyncio takes from a socket at once."""


class Storm:
    """Connections that all send frames larger than what the broker may hold; it sees what is held."""

    def __init__(self, broker, monkeypatch):
        self.held_most = 0
        self.failures = []
        request = produce_request("t", batch(bytes(2_000_000)))
        self.frame = encode_request(request, 11, 1, "raw")
        self._bootstrap = broker.bootstrap_servers
        self._server = broker.server
        self._may_end = threading.Event()
        real_hold = self._server.hold

        def hold(connection, change):
            real_hold(connection, change)
            held = sum(c.held for c in self._server.connections)
            self.held_most = max(self.held_most, held)

        monkeypatch.setattr(self._server, "hold", hold)

    def blow(self):
        threads = [threading.Thread(target=self._send) for _ in range(STORMING)]
        for thread in threads:
            thread.start()
        wait_until(self._is_read_as_far_as_may_be)
        self._may_end.set()
        for thread in threads:
            thread.join()

    def _send(self):
        try:
            with RawClient(self._bootstrap) as one:
                for _ in range(ROUNDS):
                    one.socket.sendall(self.frame[:-1])
                    # Nobody is served before everybody has begun.
                    self._may_end.wait(30)
                    one.socket.sendall(self.frame[-1:])
                    answer = one.receive(PRODUCE, 11)[1].responses[0]
                    assert answer.partition_responses[0].error_code == 0
        except Exception as error:  # noqa: BLE001
            self.failures.append(error)

    def _is_read_as_far_as_may_be(self):
        """Whether each lacks its last byte alone, or is not read any more."""
        known = self._server.connections
        return len(known) == STORMING and all(
            c.held == len(self.frame) - 1 or not c._is_reading for c in known
        )


def test_held_requests_are_bounded_and_everybody_gets_on(monkeypatch):
    with Broker(queued_max_request_bytes=HELD_MAX, message_max_bytes=1 << 22) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("t")
        wait_until(lambda: not broker.server.connections)
        storm = Storm(broker, monkeypatch)
        storm.blow()

        assert storm.failures == []
        with RawClient(broker.bootstrap_servers) as client:
            assert client.fetch("t").high_watermark == STORMING * ROUNDS
        # Each is read once before it notices that too much is held, and one goes on to its end.
        assert HELD_MAX < storm.held_most <= HELD_MAX + STORMING * ONE_READ + len(storm.frame)


def test_a_listener_for_others_needs_authentication():
    with pytest.raises(ValueError, match=r"insecure\.listeners"):
        Broker(host="0.0.0.0").start()


def test_an_unknown_setting_is_an_error():
    with pytest.raises(ValueError, match="unknown setting"):
        Broker(no_such_setting=1)


def test_a_stopped_broker_hangs_up_and_starts_again(tmp_path):
    broker = Broker(tmp_path)
    for number in range(2):
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("t")
            assert client.produce("t", batch(b"x")).base_offset == number
            broker.stop()
            assert client.is_closed()


def test_a_mistake_in_a_handler_costs_its_own_connection_only(monkeypatch):
    with Broker() as broker, RawClient(broker.bootstrap_servers) as other:
        other.create_topic("t")
        monkeypatch.setattr(broker.node, "endpoint", lambda call: 1 / 0)
        with RawClient(broker.bootstrap_servers) as unlucky:
            unlucky.send(MetadataRequest(topics=[]), 12)
            assert unlucky.is_closed()

        assert other.produce("t", batch(b"x")).error_code == 0


def test_a_mistake_that_leaves_something_half_done_stops_the_broker(monkeypatch):
    broker = Broker().start()
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        pair = client.init_producer("orders")
        monkeypatch.setattr(broker.node.transactions, "replay", lambda record: 1 / 0)
        data = batch(
            b"x", pair=(pair.producer_id, pair.producer_epoch), sequence=0, transactional=True
        )
        client.send(produce_request("t", data, transactional_id="orders"), 12)

        assert client.is_closed()
    broker.stop()

    assert isinstance(broker.failure, ZeroDivisionError)
