"""Two-phase commit is a privilege (KIP-939): without it ordinary transactions go on."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.connection import Connection
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from tests.dualwrite.world import read_committed


def login(broker, user):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": f"{user}-password",
    }


def may(resource, name, operation):
    return AclBinding(
        resource,
        name,
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


@pytest.fixture
def switched_off():
    """The switch is off, and nobody has to log in."""
    with Broker(transaction_two_phase_commit_enable=False) as broker:
        yield {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def without_the_right(tmp_path):
    """The switch is on; ann may write, and not prepare."""
    users = tmp_path / "users.toml"
    users.write_text('[users]\nroot = "root-password"\nann = "ann-password"\n')
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:root",
        "transaction.two.phase.commit.enable": "true",
    }
    with Broker(settings=settings) as broker:
        admin = AdminClient(login(broker, "root"))
        rights = [
            may(ResourceType.TOPIC, "t", AclOperation.WRITE),
            may(ResourceType.TOPIC, "t", AclOperation.READ),
            may(ResourceType.TRANSACTIONAL_ID, "orders-0", AclOperation.WRITE),
        ]
        futures = [*admin.create_topics([NewTopic("t", 1, 1)]).values()]
        futures += admin.create_acls(rights).values()
        for future in futures:
            future.result(10)
        yield login(broker, "ann")


@pytest.fixture(params=["switched_off", "without_the_right"])
def config(request):
    return request.getfixturevalue(request.param)


def test_two_phase_is_refused_with_53(config):
    request = InitProducerIdRequest(
        transactional_id="orders-0", transaction_timeout_ms=1000, enable_2pc=True
    )
    with Connection(config) as connection:
        answer = connection.send(request, version=6)

    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer = TwoPhaseProducer(
        {**config, "transactional.id": "orders-0", "transaction.two.phase.commit.enable": True}
    )
    with pytest.raises(ConfigurationError):
        producer.init_transactions()
    producer.close()


def test_ordinary_transactions_go_on(config):
    ours = TwoPhaseProducer({**config, "transactional.id": "orders-0"})
    ours.init_transactions()
    ours.begin_transaction()
    ours.produce("t", b"ours")
    ours.commit_transaction()
    ours.close()
    theirs = Producer({**config, "transactional.id": "orders-0"})
    theirs.init_transactions(10)
    theirs.begin_transaction()
    theirs.produce("t", b"theirs")
    theirs.commit_transaction(10)

    if "sasl.username" not in config:
        found = read_committed(config["bootstrap.servers"], "t")
        assert [value for _, value in found] == [b"ours", b"theirs"]
