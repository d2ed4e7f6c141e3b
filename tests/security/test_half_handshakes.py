"""TLS handshakes that never end, and peers that come and go, beside clients that work."""

import socket
import ssl
import struct
import threading

import pytest

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.pytest_plugin import read_topic
from tests.security.authority import Authority

STALLED = 200
TRANSACTIONS = 30
TOPIC = "healthy"
# A socket that is closed so resets its connection.
AT_ONCE = struct.pack("ii", 1, 0)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def broker(authority):
    certificate, key = authority.issue("localhost")
    settings = {
        "listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "auto.create.topics.enable": "true",
    }
    with Broker(settings=settings) as running:
        yield running


def port_of(broker, protocol):
    return next(each.port for each in broker.listeners if each.name == protocol)


def client_hello():
    """What a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def come_and_go(port, hello, is_over, counts):
    """Connections that are reset in the middle of a handshake, one after the other."""
    while not is_over.is_set():
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(hello[: counts[0] % len(hello)])
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        counts[0] += 1


def test_clients_work_beside_handshakes_that_never_end(broker, authority):
    port, hello = port_of(broker, "SSL"), client_hello()
    is_over, counts = threading.Event(), [0]
    storm = threading.Thread(target=come_and_go, args=(port, hello, is_over, counts))
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(STALLED)]
    try:
        for number, peer in enumerate(stalled):
            peer.sendall(hello[: number % len(hello)])
        storm.start()
        config = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.ca),
            "transactional.id": "writer",
        }
        with TwoPhaseProducer(config) as producer:
            producer.init_transactions(timeout=60)
            for number in range(TRANSACTIONS):
                producer.begin_transaction()
                producer.produce(TOPIC, b"%d" % number, partition=0)
                producer.commit_transaction()
    finally:
        is_over.set()
        storm.join()
        for peer in stalled:
            peer.close()

    print(f"{STALLED} handshakes that stood still, {counts[0]} that were reset")
    assert counts[0] > 0
    found = read_topic(TOPIC, f"127.0.0.1:{port_of(broker, 'PLAINTEXT')}")
    assert [m.value() for m in found] == [b"%d" % number for number in range(TRANSACTIONS)]
