"""Options of the data source: the names of Spark's own Kafka connector, checked and sorted out.

`kafka.*` are the Java client's names there. Ours are librdkafka's, which are the same for almost
everything that people set; the rest is translated or refused by name, never ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.config import parse_config
from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.names import check_sink

PREFIX = "kafka."
MODES = ("2pc", "resume")

_SINK = {
    "topic",
    "dualwrite.sink.id",
    "dualwrite.decisions",
    "dualwrite.job.id",
    "dualwrite.mode",
}
_SPARKS_OWN = {"checkpointlocation", "path", "asyncprogresstrackingenabled", "queryname"}
_RENAMED = {
    "max.request.size": "message.max.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_PEM_TYPES = ("ssl.keystore.type", "ssl.truststore.type")
_JVM_ONLY = re.compile(
    r"(key|value)\.(de)?serializer|interceptor\.classes|metric\.reporters|partitioner\.class"
    r"|ssl\.(keystore|truststore)\..*|sasl\.(login|client)\.callback\..*"
)
_JAAS = re.compile(
    r"\s*\S*\.(?P<module>PlainLoginModule|ScramLoginModule)\s+required\s+(?P<rest>[^;]*);?\s*"
)
_JAAS_FIELD = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a sink was told."""

    sink: str
    kafka: Mapping[str, Any] = field(repr=False)  # passwords and keys may be in it
    topic: str | None = None
    decisions: str | None = field(default=None, repr=False)
    job: str | None = None
    mode: str = "2pc"


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of `df.write` and `df.writeStream`; whatever is wrong is named."""
    given = {key.lower(): value for key, value in options.items()}
    if given.get("asyncprogresstrackingenabled", "").lower() == "true":
        raise ConfigurationError(
            "asyncProgressTrackingEnabled: the offsets of a batch are not logged before it runs,"
            " so a batch that is run again may hold other rows; exactly once is not possible"
        )
    unknown = [k for k in given if k not in _SINK | _SPARKS_OWN and not k.startswith(PREFIX)]
    if unknown:
        raise ConfigurationError(
            f"unknown option {', '.join(sorted(unknown))}; Kafka's own begin with {PREFIX!r}, and"
            f" there is {', '.join(sorted(_SINK))}"
        )
    if "dualwrite.sink.id" not in given:
        raise ConfigurationError(
            "option dualwrite.sink.id is missing: a name for this sink that stays the same over"
            " restarts; its transactions are found again by it"
        )
    mode = given.get("dualwrite.mode", "2pc")
    if mode not in MODES:
        raise ConfigurationError(f"dualwrite.mode must be {' or '.join(MODES)}, not {mode!r}")
    return SinkOptions(
        sink=check_sink(given["dualwrite.sink.id"]),
        kafka=check_producer(kafka_settings(given), mode),
        topic=given.get("topic") or None,
        decisions=given.get("dualwrite.decisions") or None,
        job=check_job(given.get("dualwrite.job.id")),
        mode=mode,
    )


def check_job(job: str | None) -> str | None:
    if job is not None and not 0 < len(job.encode()) <= 200:
        raise ConfigurationError("dualwrite.job.id must have 1 to 200 bytes")
    return job


def check_producer(kafka: Mapping[str, Any], mode: str = "2pc") -> dict[str, Any]:
    """Refuse what the sink decides itself, and what the producer does not know."""
    for key in ("transactional.id", "transaction.two.phase.commit.enable"):
        if key in kafka:
            raise ConfigurationError(f"{PREFIX}{key} is chosen by the sink, per partition")
    if mode == "2pc" and "transaction.timeout.ms" in kafka:
        raise ConfigurationError(
            f"{PREFIX}transaction.timeout.ms: a prepared transaction has no timeout (KIP-939)"
        )
    for key, only in (("enable.idempotence", ("true",)), ("acks", ("all", "-1"))):
        if str(kafka.get(key, only[0])).lower() not in only:
            raise ConfigurationError(
                f"{PREFIX}{key} can only be {only[0]}: the sink is exactly once"
            )
    parse_config(kafka, transactional=False)
    return dict(kafka)


def kafka_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """The `kafka.*` options under librdkafka's names."""
    settings: dict[str, Any] = {}
    for key, value in options.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name == "sasl.jaas.config":
            settings.update(_from_jaas(value))
        elif name in _PEM_TYPES and value.upper() == "PEM":
            continue  # the only type that there is here
        elif _JVM_ONLY.fullmatch(name) and name not in _RENAMED:
            raise ConfigurationError(f"{key} belongs to the Java client; {_instead_of(name)}")
        else:
            settings[_RENAMED.get(name, name)] = value
    if not settings.get("bootstrap.servers"):
        raise ConfigurationError("option kafka.bootstrap.servers is missing")
    return settings


def _instead_of(name: str) -> str:
    if name.startswith("ssl."):
        return (
            "here PEM files are named by ssl.ca.location, ssl.certificate.location,"
            " ssl.key.location, or their text is given by the same names with .pem"
        )
    if "serializer" in name:
        return "keys and values are bytes here: convert them with DataFrame functions"
    return "there is nothing like it here"


def _from_jaas(text: str) -> dict[str, str]:
    match = _JAAS.fullmatch(text)
    fields = dict(_JAAS_FIELD.findall(match["rest"])) if match else {}
    if set(fields) != {"username", "password"}:
        raise ConfigurationError(
            "kafka.sasl.jaas.config is understood for PlainLoginModule and ScramLoginModule with"
            " username and password; otherwise set kafka.sasl.username and kafka.sasl.password"
        )
    plain = {k: re.sub(r"\\(.)", r"\1", v) for k, v in fields.items()}
    return {"sasl.username": plain["username"], "sasl.password": plain["password"]}
