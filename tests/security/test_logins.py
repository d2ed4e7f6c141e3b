"""Real clients log in by TLS, mutual TLS, PLAIN over TLS and SCRAM; everybody else stays outside."""

import asyncio
import base64
import logging
import socket
import ssl
import subprocess
import sys
import warnings

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.broker.settings import SettingError
from tests.security.authority import Authority

# Looked for in everything that is logged.
PASSWORD = "canary-in-the-coal-mine"
ALL_MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def users_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.toml"
    path.write_text(f'[users]\nalice = "{PASSWORD}"\n')
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def broker(authority, users_file):
    """One listener per way of logging in."""
    certificate, key = authority.issue("localhost")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": ALL_MECHANISMS,
        "allow.plain.over.plaintext": "true",
        "users.file": str(users_file),
        "super.users": "User:alice;User:CN=alice,O=Wonderland",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.ca.location": str(authority.ca),
        "ssl.client.auth": "requested",
    }
    with Broker(settings=settings) as running:
        admin = AdminClient(
            {
                "bootstrap.servers": address(running, "SASL_PLAINTEXT"),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "alice",
                "sasl.password": PASSWORD,
            }
        )
        for future in admin.create_topics([NewTopic("t", 1, 1)]).values():
            future.result(10)
        yield running


def address(broker: Broker, listener: str) -> str:
    return next(f"127.0.0.1:{s.port}" for s in broker.listeners if s.name == listener)


def librdkafka(broker, protocol, mechanism, authority, *, password=PASSWORD, user="alice"):
    config = {
        "bootstrap.servers": address(broker, protocol),
        "security.protocol": protocol,
        "ssl.ca.location": str(authority.ca),
    }
    if mechanism:
        config |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    else:
        certificate, key = authority.issue("alice", organization="Wonderland")
        config |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    return config


WAYS = [
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SSL", ""),
]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_confluent_kafka(broker, authority, protocol, mechanism):
    errors = []
    producer = Producer(librdkafka(broker, protocol, mechanism, authority))
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)

    assert errors == [None]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_our_producer(broker, authority, protocol, mechanism):
    config = librdkafka(broker, protocol, mechanism, authority)
    producer = TwoPhaseProducer({**config, "transactional.id": f"ours-{protocol}-{mechanism}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", b"x")
    producer.commit_transaction()
    producer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kafka_python(broker, authority, protocol, mechanism):
    config = {
        "bootstrap_servers": address(broker, protocol),
        "security_protocol": protocol,
        "ssl_cafile": str(authority.ca),
    }
    if mechanism:
        config |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }
    else:
        certificate, key = authority.issue("alice", organization="Wonderland")
        config |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    producer = KafkaProducer(**config)

    sent = producer.send("t", b"x").get(10)
    producer.close()

    assert sent.topic == "t"


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_aiokafka(broker, authority, protocol, mechanism):
    async def produce():
        context = ssl.create_default_context(cafile=str(authority.ca))
        config = {"bootstrap_servers": address(broker, protocol), "security_protocol": protocol}
        if protocol != "SASL_PLAINTEXT":
            config["ssl_context"] = context
        if mechanism:
            config |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": "alice",
                "sasl_plain_password": PASSWORD,
            }
        else:
            context.load_cert_chain(*authority.issue("alice", organization="Wonderland"))
        producer = AIOKafkaProducer(**config)
        await producer.start()
        try:
            return await producer.send_and_wait("t", b"x")
        finally:
            await producer.stop()

    assert asyncio.run(produce()).topic == "t"


def refused(config) -> str:
    """What a client that can't get in says."""
    said: list[str] = []
    admin = AdminClient({**config, "error_cb": lambda e: said.append(str(e)), "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    admin.poll(0)
    return " ".join(said)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_wrong_password_and_unknown_user_are_told_the_same(broker, authority, mechanism, user):
    config = librdkafka(broker, "SASL_SSL", mechanism, authority, password="wrong", user=user)

    assert f"authentication with {mechanism} failed" in refused(config)


def test_expired_certificate_is_refused(broker, authority):
    certificate, key = authority.issue("alice", organization="Wonderland", is_expired=True)
    config = librdkafka(broker, "SSL", "", authority)

    refused({**config, "ssl.certificate.location": str(certificate), "ssl.key.location": str(key)})


def test_certificate_of_another_authority_is_refused(broker, authority, tmp_path):
    certificate, key = Authority(tmp_path).issue("alice", organization="Wonderland")
    config = librdkafka(broker, "SSL", "", authority)

    refused({**config, "ssl.certificate.location": str(certificate), "ssl.key.location": str(key)})


def test_old_tls_is_refused(broker):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    host, _, port = address(broker, "SSL").partition(":")

    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_certificate_that_names_somebody_else_has_no_rights(broker, authority):
    """The principal is the whole name: another organization's alice is another person."""
    certificate, key = authority.issue("alice", organization="Looking-Glass")
    config = librdkafka(broker, "SSL", "", authority)
    config |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}

    assert AdminClient(config).list_topics(timeout=5).topics == {}


def test_kafka_python_and_aiokafka_with_a_wrong_password_are_refused(broker):
    config = {
        "bootstrap_servers": address(broker, "SASL_PLAINTEXT"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "wrong",
    }

    async def start():
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(start())
    # In a process of its own: kafka-python leaves sockets open when it can't get in.
    program = (
        "import kafka\n"
        "try:\n"
        f"    kafka.KafkaProducer(**{config!r}, bootstrap_timeout_ms=2000)\n"
        "except kafka.errors.KafkaError as error:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"refused"


def test_password_in_the_clear_must_be_allowed_by_name(users_file):
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "users.file": str(users_file),
    }

    with pytest.raises(SettingError, match=r"allow\.plain\.over\.plaintext"):
        Broker(settings=settings).start()


def test_open_address_without_authentication_is_refused():
    with pytest.raises(SettingError, match=r"insecure\.listeners"):
        Broker(settings={"listeners": "PLAINTEXT://0.0.0.0:0"}).start()


def test_no_secret_in_any_log(authority, users_file, tmp_path, caplog):
    """Everything at DEBUG, on both sides of a login, right and wrong."""
    caplog.set_level(logging.DEBUG)
    program = f"""
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
settings = {{"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "users.file": {str(users_file)!r},
            "sasl.enabled.mechanisms": {ALL_MECHANISMS!r}, "allow.plain.over.plaintext": "true",
            "super.users": "User:alice", "auto.create.topics.enable": "true"}}
with Broker(settings=settings) as broker:
    for mechanism in {ALL_MECHANISMS!r}.split(","):
        for password in ({PASSWORD!r}, "wrong-" + {PASSWORD!r}):
            config = {{"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x",
                      "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
                      "sasl.username": "alice", "sasl.password": password}}
            print(repr(config and TwoPhaseProducer))
            producer = TwoPhaseProducer(config)
            print(producer)
            try:
                producer.init_transactions(timeout=3)
            except Exception as error:
                logging.exception("refused")
                print(repr(error))
            producer.close()
    print(broker.node.users, broker.node.settings["users.file"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=True
    )
    said = done.stdout + done.stderr

    secret = PASSWORD.encode()
    assert b"refused" in said
    for form in (secret, base64.b64encode(secret)[:-4], secret.hex().encode()):
        assert form not in said
