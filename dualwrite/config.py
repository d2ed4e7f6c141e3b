"""The client's configuration: librdkafka's dotted keys, checked and turned into one frozen object.

A key that is not known is an error, with the nearest known key as a suggestion: a misspelt
`transaction.two.phase.commit.enable` must not silently give a producer without two-phase commit.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import Logger
from typing import Any

from dualwrite.errors import ConfigurationError
from dualwrite.wire.primitives import STRING_BYTES_MAX

PARTITIONERS = (
    "murmur2_random",
    "murmur2",
    "consistent_random",
    "consistent",
    "fnv1a_random",
    "fnv1a",
    "random",
)
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
SECURITY_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_PORT = 9092
PEM_BEGINS = "-----BEGIN "

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Everything that the client was told, with defaults for the rest. Secrets stay out of `repr`."""

    bootstrap: tuple[Address, ...]
    client_id: str = "dualwrite"
    transactional_id: str | None = None
    two_phase_commit: bool = False
    transaction_timeout_ms: int = 60_000
    compression: str = "none"
    linger_ms: float = 5
    batch_bytes: int = 1_000_000
    batch_messages: int = 10_000
    message_bytes_max: int = 1_000_000
    in_flight_max: int = 5
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    socket_timeout_ms: int = 60_000
    connect_timeout_ms: int = 30_000
    block_ms_max: int = 60_000
    retries: int = 2**31 - 1
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 900_000
    queue_messages_max: int = 1_000_000
    queue_kbytes_max: int = 65_536
    sticky_linger_ms: int = 10
    partitioner: str = "murmur2_random"
    security_protocol: str = "plaintext"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca_location: str | None = None
    ssl_ca_pem: str | None = field(default=None, repr=False)
    ssl_certificate_location: str | None = None
    ssl_certificate_pem: str | None = field(default=None, repr=False)
    ssl_key_location: str | None = None
    ssl_key_pem: str | None = field(default=None, repr=False)
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_verify_hostname: bool = True
    ssl_verify_certificate: bool = True
    keepalive: bool = False
    address_family: str = "any"
    allow_auto_create_topics: bool = True
    debug: str = ""
    logger: Logger | None = field(default=None, repr=False)

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("ssl", "sasl_ssl")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("sasl_")


def parse_config(settings: Mapping[str, Any], *, transactional: bool) -> ClientConfig:
    """Check `settings` and make a `ClientConfig`; whatever is wrong is a `ConfigurationError`.

    `transactional` says that the caller needs a transactional id (a producer, not an admin).
    """
    require_mapping(settings)
    values: dict[str, Any] = {}
    named_by: dict[str, str] = {}
    for key, raw in settings.items():
        if key in _FIXED:
            _require_fixed(key, raw)
            continue
        if key not in _KEYS:
            raise ConfigurationError(_unknown(key))
        name, read = _KEYS[key]
        value = read(key, raw)
        if name in values and values[name] != value:
            raise ConfigurationError(f"{named_by[name]!r} and {key!r} say different things")
        values[name] = value
        named_by[name] = key
    _check_together(values, transactional)
    return ClientConfig(**values)


def require_mapping(settings: object) -> None:
    """Raise `ConfigurationError` for what holds no settings, an address for example."""
    if not isinstance(settings, Mapping):
        raise ConfigurationError(
            "the configuration is a dict such as {'bootstrap.servers': 'HOST:PORT'}, not of type"
            f" {type(settings).__name__}"
        )


def _check_together(values: Mapping[str, Any], transactional: bool) -> None:
    if not values.get("bootstrap"):
        raise ConfigurationError("'bootstrap.servers' is missing")
    if transactional and not values.get("transactional_id"):
        raise ConfigurationError("'transactional.id' is missing")
    if values.get("two_phase_commit") and "transaction_timeout_ms" in values:
        # KIP-939: a prepared transaction has no timeout, so a value here can only be a mistake.
        raise ConfigurationError(
            "'transaction.timeout.ms' cannot be set together with"
            " 'transaction.two.phase.commit.enable'"
        )
    if values.get("security_protocol", "plaintext").startswith("sasl_"):
        for name, key in (
            ("sasl_mechanism", "sasl.mechanism"),
            ("sasl_username", "sasl.username"),
            ("sasl_password", "sasl.password"),
        ):
            if values.get(name) is None:
                raise ConfigurationError(f"{key!r} is missing: 'security.protocol' asks for SASL")
    _check_tls_files(values)


def _check_tls_files(values: Mapping[str, Any]) -> None:
    """Each of the three is a file or a text, and a key is of a certificate."""
    for what in ("ca", "certificate", "key"):
        if f"ssl_{what}_location" in values and f"ssl_{what}_pem" in values:
            raise ConfigurationError(
                f"'ssl.{what}.location' and 'ssl.{what}.pem' cannot be given together"
            )
    has_certificate = "ssl_certificate_location" in values or "ssl_certificate_pem" in values
    for form in ("location", "pem"):
        if f"ssl_key_{form}" in values and not has_certificate:
            raise ConfigurationError(
                f"'ssl.key.{form}' needs 'ssl.certificate.location' or 'ssl.certificate.pem'"
            )


def milliseconds(timeout: float | None, default_ms: float) -> float:
    """A caller's timeout, which is in seconds; None stands for the default."""
    if timeout is None:
        return default_ms
    if not isinstance(timeout, int | float) or timeout != timeout:
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    return timeout * 1000


def _unknown(key: Any) -> str:
    if not isinstance(key, str):
        return f"configuration keys are text, not {key!r}"
    near = difflib.get_close_matches(key, [*_KEYS, *_FIXED], n=1, cutoff=0.7)
    suggestion = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown configuration key {key!r}{suggestion}"


def _require_fixed(key: str, raw: Any) -> None:
    allowed, reason = _FIXED[key]
    if str(raw).lower() not in allowed:
        raise ConfigurationError(f"{key!r} can only be {allowed[0]}: {reason}")


def _text(key: str, raw: Any) -> str:
    if not isinstance(raw, str) or not raw:
        raise ConfigurationError(f"{key!r} must be a text that is not empty")
    return raw


def _pem(key: str, raw: Any) -> str:
    """The text of a PEM file. It may be a secret, so no error shows it."""
    if PEM_BEGINS not in _text(key, raw):
        raise ConfigurationError(
            f"{key!r} must be the text of a PEM file ({PEM_BEGINS}…), not its name"
        )
    return str(raw)


def _sent_text(key: str, raw: Any) -> str:
    """A text that requests carry."""
    try:
        length = len(_text(key, raw).encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{key!r} is not UTF-8: {error}") from error
    if length > STRING_BYTES_MAX:
        raise ConfigurationError(f"{key!r} has {length} bytes, {STRING_BYTES_MAX} at most")
    return str(raw)


def _flag(key: str, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise ConfigurationError(f"{key!r} must be true or false, not {raw!r}")


def _number(low: int, high: int) -> Callable[[str, Any], int]:
    def read(key: str, raw: Any) -> int:
        try:
            if isinstance(raw, bool) or (isinstance(raw, float) and not raw.is_integer()):
                raise ValueError(raw)
            value = int(raw)
        except (TypeError, ValueError):
            raise ConfigurationError(f"{key!r} must be a whole number, not {raw!r}") from None
        if not low <= value <= high:
            raise ConfigurationError(f"{key!r} must lie in {low} .. {high}, not {value}")
        return value

    return read


def _milliseconds(key: str, raw: Any) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key!r} must be a number, not {raw!r}") from None
    if isinstance(raw, bool) or not 0 <= value <= 900_000:
        raise ConfigurationError(f"{key!r} must lie in 0 .. 900000, not {raw!r}")
    return value


def _one_of(allowed: tuple[str, ...], fold: Callable[[str], str]) -> Callable[[str, Any], str]:
    def read(key: str, raw: Any) -> str:
        value = fold(_text(key, raw))
        if value not in allowed:
            raise ConfigurationError(f"{key!r} must be one of {', '.join(allowed)}, not {raw!r}")
        return value

    return read


def _servers(key: str, raw: Any) -> tuple[Address, ...]:
    return tuple(parse_address(part) for part in _text(key, raw).split(",") if part.strip())


def parse_address(text: str) -> Address:
    """Read `host`, `host:port` or `[v6]:port`, with an optional `PROTOCOL://` in front."""
    bare = text.strip().rsplit("://", 1)[-1]
    host, colon, port = bare.rpartition(":")
    if bare.endswith("]") or not colon:
        host, port = bare, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigurationError(f"not a server address: {text.strip()!r}")
    return host, int(port)


def _identification(key: str, raw: Any) -> bool:
    return _one_of(("https", "none"), str.lower)(key, raw) == "https"


def _logger(key: str, raw: Any) -> Logger:
    if not isinstance(raw, Logger):
        raise ConfigurationError(f"{key!r} must be a logging.Logger")
    return raw


_INT32 = 2**31 - 1
_REASON = "a transactional producer is always idempotent"
_FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), _REASON),
    "request.required.acks": (("all", "-1"), _REASON),
    "enable.idempotence": (("true",), _REASON),
}
_KEYS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "bootstrap.servers": ("bootstrap", _servers),
    "metadata.broker.list": ("bootstrap", _servers),
    "client.id": ("client_id", _sent_text),
    "transactional.id": ("transactional_id", _sent_text),
    "transaction.two.phase.commit.enable": ("two_phase_commit", _flag),
    "transaction.timeout.ms": ("transaction_timeout_ms", _number(1, _INT32 - 1)),
    "compression.type": ("compression", _one_of(COMPRESSIONS, str.lower)),
    "compression.codec": ("compression", _one_of(COMPRESSIONS, str.lower)),
    "linger.ms": ("linger_ms", _milliseconds),
    "queue.buffering.max.ms": ("linger_ms", _milliseconds),
    "batch.size": ("batch_bytes", _number(1, _INT32)),
    "batch.num.messages": ("batch_messages", _number(1, 1_000_000)),
    "message.max.bytes": ("message_bytes_max", _number(1_000, 1_000_000_000)),
    "max.in.flight": ("in_flight_max", _number(1, 5)),
    "max.in.flight.requests.per.connection": ("in_flight_max", _number(1, 5)),
    "delivery.timeout.ms": ("delivery_timeout_ms", _number(1, _INT32)),
    "message.timeout.ms": ("delivery_timeout_ms", _number(1, _INT32)),
    "request.timeout.ms": ("request_timeout_ms", _number(1, 900_000)),
    "socket.timeout.ms": ("socket_timeout_ms", _number(10, 300_000)),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _number(10, _INT32)),
    "max.block.ms": ("block_ms_max", _number(0, _INT32)),
    "retries": ("retries", _number(0, _INT32)),
    "message.send.max.retries": ("retries", _number(0, _INT32)),
    "retry.backoff.ms": ("retry_backoff_ms", _number(1, 300_000)),
    "retry.backoff.max.ms": ("retry_backoff_ms_max", _number(1, 300_000)),
    "metadata.max.age.ms": ("metadata_age_ms_max", _number(1, 86_400_000)),
    "queue.buffering.max.messages": ("queue_messages_max", _number(1, _INT32)),
    "queue.buffering.max.kbytes": ("queue_kbytes_max", _number(1, _INT32)),
    "sticky.partitioning.linger.ms": ("sticky_linger_ms", _number(0, 900_000)),
    "partitioner": ("partitioner", _one_of(PARTITIONERS, str.lower)),
    "security.protocol": ("security_protocol", _one_of(SECURITY_PROTOCOLS, str.lower)),
    "sasl.mechanism": ("sasl_mechanism", _one_of(SASL_MECHANISMS, str.upper)),
    "sasl.mechanisms": ("sasl_mechanism", _one_of(SASL_MECHANISMS, str.upper)),
    "sasl.username": ("sasl_username", _text),
    "sasl.password": ("sasl_password", _text),
    "ssl.ca.location": ("ssl_ca_location", _text),
    "ssl.ca.pem": ("ssl_ca_pem", _pem),
    "ssl.certificate.location": ("ssl_certificate_location", _text),
    "ssl.certificate.pem": ("ssl_certificate_pem", _pem),
    "ssl.key.location": ("ssl_key_location", _text),
    "ssl.key.pem": ("ssl_key_pem", _pem),
    "ssl.key.password": ("ssl_key_password", _text),
    "ssl.endpoint.identification.algorithm": ("ssl_verify_hostname", _identification),
    "enable.ssl.certificate.verification": ("ssl_verify_certificate", _flag),
    "socket.keepalive.enable": ("keepalive", _flag),
    "broker.address.family": ("address_family", _one_of(("any", "v4", "v6"), str.lower)),
    "allow.auto.create.topics": ("allow_auto_create_topics", _flag),
    "debug": ("debug", lambda key, raw: str(raw)),
    "logger": ("logger", _logger),
}
