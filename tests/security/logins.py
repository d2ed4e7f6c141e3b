"""The three clients at the door: each tries to log in and says what came of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

IN = "in"
"""What a client says that was let in."""


@dataclass(frozen=True)
class Login:
    """Who somebody claims to be, and to whom."""

    address: str
    protocol: str
    mechanism: str = ""
    user: str = "alice"
    password: str = ""
    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    patience: int = 20
    """Seconds, for a client that goes on trying when it was refused."""

    def __call__(self, **changed: Any) -> "Login":
        return replace(self, **changed)


def by_confluent(login: Login) -> str:
    said: list[str] = []
    config: dict[str, Any] = {
        "bootstrap.servers": login.address,
        "security.protocol": login.protocol,
        "error_cb": lambda error: said.append(str(error)),
        "log_level": 0,
    }
    if login.ca:
        config["ssl.ca.location"] = str(login.ca)
    if login.certificate:
        certificate, key = login.certificate
        config |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    if login.mechanism:
        config |= {
            "sasl.mechanism": login.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }
    admin = AdminClient(config)
    # It tries for ever and says meanwhile why it is not let in.
    while not said:
        try:
            admin.list_topics(timeout=0.2)
        except KafkaException:
            admin.poll(0)
        else:
            return IN
    return " ".join(said)


def _python(login: Login) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": login.address,
        "security_protocol": login.protocol,
    }
    if login.mechanism:
        config |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    return config


def _elsewhere(program: str, config: dict[str, Any]) -> str:
    """In a process of its own: both leave sockets open when they can't get in."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=json.dumps(config), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


KAFKA_PYTHON = """
import json, logging, sys
import kafka
said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("kafka").addHandler(Said(logging.WARNING))
try:
    kafka.KafkaAdminClient(**json.load(sys.stdin)).close()
    print("in")
except (kafka.errors.KafkaError, OSError) as error:
    print(repr(error), said)
"""


def by_kafka_python(login: Login) -> str:
    config = _python(login) | {"bootstrap_timeout_ms": 1000 * login.patience}
    if login.ca:
        config["ssl_cafile"] = str(login.ca)
    if login.certificate:
        certificate, key = login.certificate
        config |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    return _elsewhere(KAFKA_PYTHON, config)


AIOKAFKA = """
import asyncio, json, ssl, sys
import aiokafka
config = json.load(sys.stdin)
ca, certificate = config.pop("ca"), config.pop("certificate")
async def start():
    if ca:
        config["ssl_context"] = ssl.create_default_context(cafile=ca)
        if certificate:
            config["ssl_context"].load_cert_chain(*certificate)
    producer = aiokafka.AIOKafkaProducer(**config)
    try:
        await producer.start()
    finally:
        await producer.stop()
try:
    asyncio.run(start())
    print("in")
except (aiokafka.errors.KafkaError, OSError) as error:
    print(repr(error))
"""


def by_aiokafka(login: Login) -> str:
    config = _python(login) | {
        "ca": login.ca and str(login.ca),
        "certificate": login.certificate and [str(path) for path in login.certificate],
    }
    return _elsewhere(AIOKAFKA, config)


CLIENTS: dict[str, Callable[[Login], str]] = {
    "confluent-kafka": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}
