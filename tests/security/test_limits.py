"""One address or one principal can't take what belongs to all; the others do not notice."""

import socket
import struct

import pytest
from confluent_kafka import KafkaException, Producer

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.failures import AbortableError
from dualwrite.wire.error_codes import ErrorCode

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Knock:
    """A connection from an address of one's choice; all of 127/8 is this machine."""

    def __init__(self, port, source):
        self._socket = socket.create_connection(("127.0.0.1", port), 10, (source, 0))

    @property
    def is_served(self):
        try:
            self._socket.sendall(API_VERSIONS)
            return bool(self._socket.recv(4))
        except ConnectionError:
            return False

    def close(self):
        self._socket.close()


def test_connections_of_one_address_are_limited(caplog):
    settings = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
        "insecure.listeners": "true",
        "max.connections.per.ip": "2",
    }
    with Broker(settings=settings) as broker:
        port = broker.listeners[0].port
        knocks = [Knock(port, "127.0.0.2") for _ in range(2)]
        assert all(knock.is_served for knock in knocks)

        refused = Knock(port, "127.0.0.2")
        assert not refused.is_served
        assert "too many connections from one address" in caplog.text
        neighbour = Knock(port, "127.0.0.3")
        assert neighbour.is_served
        assert all(knock.is_served for knock in knocks)
        for knock in (*knocks, refused, neighbour):
            knock.close()


@pytest.fixture
def crowded(tmp_path):
    users = tmp_path / "users.toml"
    users.write_text('[users]\nalice = "alice-password"\nbob = "bob-password"\n')
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:alice;User:bob",
        "transaction.two.phase.commit.enable": "true",
        "auto.create.topics.enable": "true",
        "max.transactional.ids.per.principal": "2",
        "max.open.two.phase.transactions.per.principal": "1",
    }
    with Broker(settings=settings) as broker:
        yield broker


def config(broker, user, transactional_id):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": f"{user}-password",
        "transactional.id": transactional_id,
    }


def test_a_principal_may_have_so_many_transactional_ids(crowded):
    for name in ("a-1", "a-2", "a-1"):
        Producer(config(crowded, "alice", name)).init_transactions(20)

    one_more = Producer(config(crowded, "alice", "a-3") | {"log_level": 0})
    with pytest.raises(KafkaException) as refusal:
        one_more.init_transactions(2)
    assert refusal.value.args[0].code() == ErrorCode.POLICY_VIOLATION
    Producer(config(crowded, "bob", "b-1")).init_transactions(20)


def two_phase(broker, user, name):
    producer = TwoPhaseProducer(
        config(broker, user, name) | {"transaction.two.phase.commit.enable": True}
    )
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_a_principal_may_have_so_many_open_two_phase_transactions(crowded):
    first = two_phase(crowded, "alice", "a-1")
    first.produce("t", b"x")
    first.prepare_transaction()

    second = two_phase(crowded, "alice", "a-2")
    second.produce("t", b"x")
    with pytest.raises(AbortableError) as refusal:
        second.prepare_transaction()
    assert refusal.value.code == ErrorCode.TRANSACTION_ABORTABLE
    second.abort_transaction()
    neighbour = two_phase(crowded, "bob", "b-1")
    neighbour.produce("t", b"x")
    neighbour.prepare_transaction()
    neighbour.commit_transaction()

    first.commit_transaction()
    second.begin_transaction()
    second.produce("t", b"x")
    second.prepare_transaction()
    second.commit_transaction()
    for producer in (first, second, neighbour):
        producer.close()
