"""TLS and SASL by librdkafka's keys, under both drivers."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from dualwrite import AsyncTwoPhaseProducer, ConfigurationError, TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.broker.connection import ClientConnection
from tests.cli.operator import dualwrite
from tests.security.authority import Authority

PASSWORD = "secret of the tests"
FOR_EVER = 3600  # longer than a test may take


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority, tmp_path_factory):
    users = tmp_path_factory.mktemp("users") / "users.toml"
    users.write_text(f'[users]\nalice = "{PASSWORD}"\n')
    users.chmod(0o600)
    certificate, key = authority.issue("localhost")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "allow.plain.over.plaintext": "true",
        "users.file": str(users),
        "super.users": "User:alice;User:CN=alice",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.ca.location": str(authority.ca),
        "ssl.client.auth": "requested",
        "connections.max.reauth.ms": "700",
        "auto.create.topics.enable": "true",
    }
    with Broker(settings=settings) as running:
        yield running


def settings(broker, authority, name, protocol, mechanism, password=PASSWORD):
    port = next(s.port for s in broker.listeners if s.name == protocol)
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "transactional.id": name,
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "ssl.ca.location": str(authority.ca),
    }


WAYS = [
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_a_large_transaction_over_a_secured_connection(
    broker, authority, name, protocol, mechanism
):
    """Several megabytes, so that writes are cut in pieces and answers come in between."""
    told = []
    with TwoPhaseProducer(settings(broker, authority, name, protocol, mechanism)) as producer:
        producer.init_transactions(timeout=30)
        producer.begin_transaction()
        rows = ((None, b"x" * 1_000, None, 0) for _ in range(5_000))
        assert producer.produce_batch(name, rows, partition=0) == 5_000
        producer.produce(
            name, b"last", partition=0, on_delivery=lambda e, m: told.append(m.offset())
        )
        producer.commit_transaction()

    assert told == [5_000]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_the_asyncio_driver(broker, authority, name, protocol, mechanism):
    async def main():
        config = settings(broker, authority, name, protocol, mechanism)
        async with AsyncTwoPhaseProducer(config) as producer:
            await producer.init_transactions(timeout=30)
            await producer.begin_transaction()
            await producer.produce_batch(
                name, ((None, b"x" * 1_000, None, 0) for _ in range(3_000))
            )
            await producer.commit_transaction()

    asyncio.run(main())


def init_blocking(config):
    with TwoPhaseProducer(config) as producer:
        producer.init_transactions(timeout=FOR_EVER)


def init_async(config):
    async def main():
        async with AsyncTwoPhaseProducer(config) as producer:
            await producer.init_transactions(timeout=FOR_EVER)

    asyncio.run(main())


INITS = {"blocking": init_blocking, "asyncio": init_async}


@pytest.mark.parametrize("driver", INITS)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"sasl.password": "guess"}, "refuses the login"),
        ({"ssl.ca.location": None}, "certificate"),
    ],
)
def test_a_refusal_is_told_at_once(broker, authority, name, driver, wrong, reason, tmp_path):
    other = Authority(tmp_path)
    config = settings(broker, authority, name, "SASL_SSL", "SCRAM-SHA-256")
    config |= {key: value or str(other.ca) for key, value in wrong.items()}

    with pytest.raises(ConfigurationError, match=reason):
        INITS[driver](config)


def test_a_session_that_ends_is_begun_anew(broker, authority, name, monkeypatch):
    """KIP-368: the broker closes the connection, which the next request makes again."""
    logins = []
    admit = ClientConnection.admit
    monkeypatch.setattr(ClientConnection, "admit", lambda self: (logins.append(1), admit(self)))
    config = settings(broker, authority, name, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    with TwoPhaseProducer({**config, "retry.backoff.ms": 10}) as producer:
        producer.init_transactions(timeout=30)
        count = 0
        enough = len(logins) + 3
        while len(logins) < enough:
            producer.begin_transaction()
            producer.produce(name, b"x", partition=0)
            producer.commit_transaction()
            count += 1
        told = []
        producer.begin_transaction()
        producer.produce(
            name, b"last", partition=0, on_delivery=lambda e, m: told.append(m.offset())
        )
        producer.commit_transaction()

    assert told == [2 * count]  # every record with its marker, none twice


def test_without_a_mechanism_or_a_password(broker, authority, name):
    config = settings(broker, authority, name, "SASL_SSL", "PLAIN")
    for key in ("sasl.mechanism", "sasl.username", "sasl.password"):
        with pytest.raises(ConfigurationError, match=key):
            TwoPhaseProducer({k: v for k, v in config.items() if k != key})


def test_a_certificate_file_that_is_not_there(broker, authority, name, tmp_path):
    config = settings(broker, authority, name, "SASL_SSL", "PLAIN")
    with pytest.raises(ConfigurationError, match="TLS"):
        TwoPhaseProducer({**config, "ssl.ca.location": str(tmp_path / "none.pem")})


def as_text(config):
    """The same settings with what is in the files in place of their names."""
    return {
        key.replace(".location", ".pem"): Path(value).read_text() if ".location" in key else value
        for key, value in config.items()
    }


@pytest.fixture
def own_files(broker, authority, name):
    """Settings of a client that is known by its certificate alone."""
    certificate, key = authority.issue("alice")
    return {
        **settings(broker, authority, name, "SSL", "PLAIN"),
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("driver", INITS)
def test_certificates_and_keys_as_text(own_files, driver, temporary):
    INITS[driver](as_text(own_files))

    assert list(temporary.iterdir()) == []  # the key was in a file only while OpenSSL read it


@pytest.mark.parametrize("file", ["ssl.certificate.location", "ssl.key.location"])
def test_one_as_a_file_and_the_other_as_text(own_files, file):
    text = as_text(own_files)
    del text[file.replace(".location", ".pem")]

    init_blocking({**text, file: own_files[file]})


def test_one_text_with_key_and_certificate_between_remarks(own_files):
    text = as_text(own_files)
    text["ssl.ca.pem"] = f"# Főtanúsítvány\n{text['ssl.ca.pem']}"
    text["ssl.certificate.pem"] = text.pop("ssl.key.pem") + text["ssl.certificate.pem"]

    init_blocking(text)


def locked(key_file):
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()


def test_a_locked_key_as_text(own_files, temporary):
    text = as_text(own_files) | {"ssl.key.pem": locked(Path(own_files["ssl.key.location"]))}

    init_blocking({**text, "ssl.key.password": "secret"})
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.pem"):
        TwoPhaseProducer({**text, "ssl.key.password": "guess"})
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("key", ["ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem"])
@pytest.mark.parametrize(
    "damage", [lambda text: text[:90] + "?" + text[100:], lambda text: text[:99]]
)
def test_damaged_text_is_named_by_its_key_and_not_shown(own_files, key, damage, temporary):
    text = as_text(own_files)
    with pytest.raises(ConfigurationError) as refused:
        TwoPhaseProducer({**text, key: damage(text[key])})

    assert f" {key}:" in str(refused.value)
    assert text[key].splitlines()[1][:20] not in str(refused.value)
    assert list(temporary.iterdir()) == []


def test_a_key_of_another_certificate(own_files, authority):
    _, other = authority.issue("bob")
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.pem: .*mismatch"):
        TwoPhaseProducer({**as_text(own_files), "ssl.key.pem": other.read_text()})


@pytest.mark.parametrize("what", ["ca", "certificate", "key"])
def test_a_file_and_a_text_of_the_same_are_one_too_many(own_files, what):
    text, key = as_text(own_files), f"ssl.{what}.location"
    with pytest.raises(ConfigurationError, match=rf"'ssl\.{what}\.pem' cannot be given together"):
        TwoPhaseProducer({**text, key: own_files[key]})
    with pytest.raises(ConfigurationError, match=rf"'ssl\.{what}\.pem' must be the text"):
        TwoPhaseProducer({**text, f"ssl.{what}.pem": own_files[key]})


def test_a_key_without_its_certificate(own_files):
    text = as_text(own_files)
    del text["ssl.certificate.pem"]
    with pytest.raises(ConfigurationError, match=r"'ssl\.key\.pem' needs"):
        TwoPhaseProducer(text)


def test_text_in_a_file_of_settings(own_files, tmp_path):
    """A line holds a whole text, its ends of line as \\n; our client and librdkafka's both get it."""
    text = {key: value for key, value in as_text(own_files).items() if key != "transactional.id"}
    lines = {key: value.replace("\n", "\\n") for key, value in text.items()}
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    for command in (("topic", "list"), ("txn", "list")):
        result = dualwrite(*command, "--command-config", file)
        assert result.exit_code == 0, result.output


def test_secrets_are_not_shown(broker, authority, name):
    certificate, key = authority.issue("alice")
    config = settings(broker, authority, name, "SASL_SSL", "PLAIN") | {
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    producer = TwoPhaseProducer(as_text(config))

    assert PASSWORD not in repr(producer._config)
    assert "-----BEGIN" not in repr(producer._config)
    producer.close()


def test_no_password_is_asked_for_at_the_terminal(tmp_path):
    """A service that was started from a terminal would wait there for somebody to type."""
    certificate, key = Authority(tmp_path).issue("alice")
    (tmp_path / "locked.pem").write_text(locked(key))
    program = f"""
import os, sys
os.login_tty(int(sys.argv[1]))
from dualwrite import ConfigurationError, TransactionAdmin
from dualwrite.broker.security.gate import server_context
from dualwrite.broker.settings import SettingError, Settings
files = {{"ssl.certificate.location": {str(certificate)!r},
         "ssl.key.location": {str(tmp_path / "locked.pem")!r}}}
for make, error in (
    (lambda: TransactionAdmin({{"bootstrap.servers": "h:1", "security.protocol": "ssl", **files}}),
     ConfigurationError),
    (lambda: server_context(Settings.of(files)), SettingError),
):
    try:
        make()
    except error as told:
        assert "ssl.key.location" in str(told), told
    else:
        raise AssertionError("a locked key was opened")
"""
    terminal, child_side = os.openpty()
    try:
        command = [sys.executable, "-c", program, str(child_side)]
        done = subprocess.run(command, pass_fds=[child_side], timeout=60, check=False)
    finally:
        os.close(terminal)
        os.close(child_side)
    assert done.returncode == 0
