"""Which call of which real client sends the request of which case, and what the client says of it.

A call gets an `Applicant`. Where a client would be stopped on its way to the request (it needs the same
right for an earlier one), the call takes the right away itself, by `tester.lose()`, once it is there;
then it is `staged`. `also` are rights that the client needs on its way and the request does not.
"""

import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka as ck

from dualwrite.broker.acl import Operation as O
from dualwrite.broker.acl import ResourceType as R
from tests.security.acl_cases import GROUP, TOPIC, Needed
from tests.security.desk import REFUSALS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors

CONFLUENT, KAFKA_PYTHON, AIOKAFKA = "confluent-kafka", "kafka-python", "aiokafka"
SECONDS = 20.0
FATAL = -150
SEE_TOPIC, SEE_GROUP, SEE_ID = (
    (O.DESCRIBE, R.TOPIC), (O.DESCRIBE, R.GROUP), (O.DESCRIBE, R.TRANSACTIONAL_ID),
)  # fmt: skip
WRITE_TOPIC, WRITE_ID = (O.WRITE, R.TOPIC), (O.WRITE, R.TRANSACTIONAL_ID)
READ_TOPIC, READ_GROUP = (O.READ, R.TOPIC), (O.READ, R.GROUP)
CONFIGURED = {
    "topic": (TOPIC, {"retention.ms": "1000000"}),
    "broker": ("1", {"log.retention.ms": "1000000"}),
    "group": (GROUP, {"consumer.session.timeout.ms": "45000"}),
}
"""Whose settings are looked at or changed, by its name, and what is set."""
_KP_CODES = {
    name: code
    for name, error in vars(kafka.errors).items()
    if isinstance(error, type) and isinstance(code := getattr(error, "errno", None), int)
}


class Applicant:
    """The user whose rights are tested, as each client logs in; `lose` takes one right away."""

    def __init__(
        self,
        servers: str,
        lose: Callable[[], None],
        sent: Callable[[], int],
        group_state: Callable[[], str],
    ) -> None:
        self.servers = servers
        self.lose = lose
        self.sent = sent
        """How many requests of the case's API the broker has answered so far."""
        self.group_state = group_state

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "tester",
            "sasl.password": "tester-password",
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def python(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "tester",
            "sasl_plain_password": "tester-password",
            **more,
        }


@dataclass(frozen=True)
class ClientCall:
    case: str
    client: str
    run: Callable[[Applicant], Any]
    also: tuple[Needed, ...] = ()
    staged: bool = False
    without: tuple[Needed, ...] | None = None
    """The rights whose lack this call can show; None for all of the case's."""
    beyond: tuple[Needed, ...] = ()
    """What the client needs to go on once the request was served."""

    def __str__(self) -> str:
        return f"{self.case}-{self.client}"


def told(said: Any) -> set[int]:
    """Every error code in what a client has raised or returned, in whichever form it has it."""
    if isinstance(said, ck.KafkaException):
        return told(said.args[0])
    if isinstance(said, ck.KafkaError):
        # What makes a client unusable is told in words, within an error of its own.
        named = [code for code in REFUSALS if ck.KafkaError(code).str() in said.str()]
        return {int(code) for code in named} if said.code() == FATAL else {said.code()}
    if isinstance(said, BaseException | type):
        code = getattr(said, "errno", None)
        return ({code} if isinstance(code, int) else set()) | told(getattr(said, "args", ()))
    if isinstance(said, str):
        return {_KP_CODES[name] for name in re.findall(r"\w+Error\b", said) if name in _KP_CODES}
    if isinstance(said, ck.ConsumerGroupTopicPartitions):
        return told([partition.error for partition in said.topic_partitions])
    if isinstance(said, Mapping):
        found = {value for key, value in said.items() if key == "error_code"}
        return found.union(*(told(value) for value in said.values()))
    if isinstance(said, list | tuple | set):
        return set().union(*(told(part) for part in said))
    if hasattr(said, "to_object"):
        return told(said.to_object())
    return set()


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns or raises."""
    try:
        return call()
    except (ck.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
        return error


def until(step: Callable[[], Any]) -> Any:
    """The first thing that a repeated step says or raises."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = attempt(step)
        if said:
            return said
    raise AssertionError("the client has said nothing")


def answered(ask: Callable[[], Any]) -> Any:
    """What the broker says; what librdkafka says of itself (it has no connection yet) is no answer."""

    def step() -> Any:
        said = attempt(ask)
        return [] if any(code < 0 for code in told(said)) else [said]

    return until(step)
