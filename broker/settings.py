"""The broker's settings by Kafka's names: types, defaults, checks, and which a topic may override.

One table is the source for parsing, for DescribeConfigs and for the documentation.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any


class SettingError(ValueError):
    """A setting is unknown or its value is not allowed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how to read it, what it is when nobody says anything, and what it means."""

    name: str
    kind: str  # Kafka's config types: short, int, long, double, boolean, string, list
    default: Any
    doc: str
    topic: str | None = None  # the topic-level name that overrides it
    check: Callable[[Any], bool] = lambda _: True
    sensitive: bool = False

    def parse(self, text: Any) -> Any:
        """Turn text (or an already typed value) into the setting's type."""
        value = _typed(self.kind, text, self.name)
        if value is not None and not self.check(value):
            raise SettingError(f"{self.name}: {text!r} is not allowed")
        return value


_BITS = {"short": 15, "int": 31, "long": 63}


def _typed(kind: str, text: Any, name: str) -> Any:
    if text is None:
        return None
    try:
        if kind in _BITS:
            number = int(text)
            bits = _BITS[kind]
            if not -(2**bits) <= number < 2**bits:
                raise ValueError
            return number
        if kind == "double":
            return float(text)
        if kind == "boolean":
            return {"true": True, "false": False}[str(text).strip().lower()]
        if kind == "list":
            parts = text if isinstance(text, list | tuple) else str(text).split(",")
            return [str(p).strip() for p in parts if str(p).strip()]
        return str(text)
    except (ValueError, KeyError) as error:
        raise SettingError(f"{name}: {text!r} is not a {kind}") from error


def text_of(value: Any) -> str | None:
    """The value as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def _positive(value: int) -> bool:
    return value > 0


def _natural(value: int) -> bool:
    return value >= 0


def _at_least_minus_one(value: int) -> bool:
    return value >= -1


_POLICIES = {"delete", "compact"}
_DAY_MS = 86_400_000

SETTINGS: dict[str, Setting] = {
    s.name: s
    for s in (
        Setting("node.id", "int", 1, "Id of this broker.", check=_natural),
        Setting("cluster.id", "string", None, "Identity of the cluster; drawn at first start."),
        Setting("listeners", "list", ["PLAINTEXT://127.0.0.1:9092"], "NAME://host:port, …"),
        Setting("advertised.listeners", "list", None, "What clients are told to connect to."),
        Setting("listener.security.protocol.map", "list", None, "NAME:PROTOCOL, …"),
        Setting("sasl.enabled.mechanisms", "list", ["SCRAM-SHA-256", "SCRAM-SHA-512"], "SASL."),
        Setting("users.file", "string", None, "TOML file (mode 0600) with SASL users."),
        Setting("ssl.certificate.location", "string", None, "PEM certificate chain."),
        Setting("ssl.key.location", "string", None, "PEM private key."),
        Setting("ssl.key.password", "string", None, "Of the private key.", sensitive=True),
        Setting("ssl.ca.location", "string", None, "PEM authorities for client certificates."),
        Setting(
            "ssl.client.auth",
            "string",
            "none",
            "none, requested or required.",
            check=lambda v: v in {"none", "requested", "required"},
        ),
        Setting(
            "insecure.listeners",
            "boolean",
            False,
            "Allow a non-loopback listener without authentication.",
        ),
        Setting(
            "connections.max.reauth.ms",
            "long",
            0,
            "Sessions end; 0 never (KIP-368).",
            check=_natural,
        ),
        Setting("allow.plain.over.plaintext", "boolean", False, "Allow SASL PLAIN without TLS."),
        Setting("super.users", "string", "", "Principals that may do everything: User:a;User:b."),
        Setting(
            "authorizer.enable",
            "boolean",
            None,
            "Check ACLs; default: true if and only if a listener authenticates.",
        ),
        Setting("max.connections", "int", 10_000, "Of all listeners.", check=_positive),
        Setting("max.connections.per.ip", "int", 100, "Not counted on loopback.", check=_positive),
        Setting("max.transactional.ids.per.principal", "int", 2**31 - 1, "Limit.", check=_positive),
        Setting(
            "max.open.two.phase.transactions.per.principal",
            "int",
            2**31 - 1,
            "Prepared transactions hold readers back (KIP-939), so their number is a right.",
            check=_positive,
        ),
        Setting(
            "queued.max.request.bytes",
            "long",
            64 * 2**20,
            "Of all connections together.",
            check=_positive,
        ),
        Setting(
            "queued.max.response.bytes",
            "long",
            128 * 2**20,
            "Answers that readers have not taken, of all connections together; then they get small.",
            check=_positive,
        ),
        Setting(
            "socket.request.max.bytes", "int", 100 * 2**20, "Largest request.", check=_positive
        ),
        Setting(
            "connections.max.idle.ms",
            "long",
            600_000,
            "Idle connections are closed; below 0 never.",
        ),
        Setting("num.partitions", "int", 1, "Of an automatically created topic.", check=_positive),
        Setting("default.replication.factor", "int", 1, "Only one copy is kept.", check=_positive),
        Setting(
            "accept.any.replication.factor",
            "boolean",
            False,
            "Accept a replication factor above 1 and keep one copy.",
        ),
        Setting("auto.create.topics.enable", "boolean", True, "Create topics on first use."),
        Setting("delete.topic.enable", "boolean", True, "Allow DeleteTopics."),
        Setting(
            "log.cleanup.policy",
            "list",
            ["delete"],
            "delete, compact or both.",
            "cleanup.policy",
            check=lambda v: bool(v) and set(v) <= _POLICIES,
        ),
        Setting(
            "log.segment.bytes",
            "int",
            2**30,
            "Size of a segment.",
            "segment.bytes",
            check=lambda v: v >= 1024,
        ),
        Setting(
            "log.roll.ms",
            "long",
            7 * _DAY_MS,
            "Age at which a segment is closed.",
            "segment.ms",
            check=_positive,
        ),
        Setting(
            "log.retention.ms",
            "long",
            7 * _DAY_MS,
            "Age at which a segment is deleted.",
            "retention.ms",
            check=_at_least_minus_one,
        ),
        Setting(
            "log.retention.bytes",
            "long",
            -1,
            "Size a partition may have.",
            "retention.bytes",
            check=_at_least_minus_one,
        ),
        Setting("log.retention.check.interval.ms", "long", 300_000, "How often.", check=_positive),
        Setting(
            "log.cleaner.backoff.ms", "long", 15_000, "How often compaction looks.", check=_positive
        ),
        Setting(
            "log.cleaner.min.cleanable.ratio",
            "double",
            0.5,
            "Dirty part that starts it.",
            "min.cleanable.dirty.ratio",
            check=lambda v: 0 <= v <= 1,
        ),
        Setting(
            "log.cleaner.min.compaction.lag.ms",
            "long",
            0,
            "Youngest record to compact.",
            "min.compaction.lag.ms",
            check=_natural,
        ),
        Setting(
            "log.cleaner.max.compaction.lag.ms",
            "long",
            2**63 - 1,
            "How long a record may wait for it.",
            "max.compaction.lag.ms",
            check=_positive,
        ),
        Setting(
            "log.cleaner.delete.retention.ms",
            "long",
            _DAY_MS,
            "How long tombstones stay.",
            "delete.retention.ms",
            check=_natural,
        ),
        Setting(
            "log.message.timestamp.type",
            "string",
            "CreateTime",
            "Whose clock a record's timestamp is.",
            "message.timestamp.type",
            check=lambda v: v in {"CreateTime", "LogAppendTime"},
        ),
        Setting(
            "log.message.timestamp.before.max.ms",
            "long",
            2**63 - 1,
            "How old a record may be when it arrives.",
            "message.timestamp.before.max.ms",
            check=_natural,
        ),
        Setting(
            "log.message.timestamp.after.max.ms",
            "long",
            3_600_000,
            "How far in the future a record may be when it arrives.",
            "message.timestamp.after.max.ms",
            check=_natural,
        ),
        *(
            Setting(name, kind, default, f"Accepted for Kafka's sake: {why}", topic, check=_natural)
            for name, kind, default, topic, why in (
                ("log.flush.interval.messages", "long", 1, "flush.messages", "always synced."),
                ("log.flush.interval.ms", "long", 0, "flush.ms", "always synced."),
                ("log.index.interval.bytes", "int", 16_384, "index.interval.bytes", "fixed."),
                ("log.index.size.max.bytes", "int", 2**20, "segment.index.bytes", "not limited."),
                ("log.segment.delete.delay.ms", "long", 0, "file.delete.delay.ms", "no delay."),
                ("log.preallocate", "boolean", False, "preallocate", "the journal is."),
                ("log.roll.jitter.ms", "long", 0, "segment.jitter.ms", "no jitter."),
                (
                    "unclean.leader.election.enable",
                    "boolean",
                    False,
                    "unclean.leader.election.enable",
                    "there is one copy.",
                ),
                ("transaction.state.log.replication.factor", "short", 1, None, "one copy."),
                ("transaction.state.log.min.isr", "int", 1, None, "there is one copy."),
                ("transaction.state.log.load.buffer.size", "int", 2**20, None, "fixed."),
                ("offsets.topic.replication.factor", "short", 1, None, "one copy."),
                ("offsets.commit.timeout.ms", "int", 5_000, None, "no replicas to wait for."),
                ("add.partitions.to.txn.retry.backoff.ms", "int", 20, None, "nothing to wait for."),
                ("add.partitions.to.txn.retry.backoff.max.ms", "int", 100, None, "as before."),
            )
        ),
        Setting(
            "transaction.partition.verification.enable",
            "boolean",
            True,
            "Every transactional write is verified (KIP-890).",
            check=lambda v: v,
        ),
        Setting(
            "compression.type",
            "string",
            "producer",
            "Batches are kept as they arrive.",
            "compression.type",
            check=lambda v: v == "producer",
        ),
        Setting(
            "min.insync.replicas",
            "int",
            1,
            "Accepted for Kafka's sake: there is one copy.",
            "min.insync.replicas",
            check=_positive,
        ),
        Setting(
            "message.max.bytes",
            "int",
            1_048_588,
            "Largest record batch.",
            "max.message.bytes",
            check=_natural,
        ),
        Setting(
            "transaction.two.phase.commit.enable",
            "boolean",
            None,
            "KIP-939; default: true on loopback without authentication, else false.",
        ),
        Setting(
            "transaction.version",
            "int",
            2,
            "Finalized feature level (KIP-890): 0, 1 or 2.",
            check=lambda v: v in (0, 1, 2),
        ),
        Setting(
            "transaction.max.timeout.ms",
            "int",
            900_000,
            "Of an ordinary transaction.",
            check=_positive,
        ),
        Setting(
            "transactional.id.expiration.ms", "int", 7 * _DAY_MS, "Of an idle id.", check=_positive
        ),
        Setting(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "int",
            10_000,
            "How often timed-out transactions are looked for.",
            check=_positive,
        ),
        Setting(
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "int",
            3_600_000,
            "How often expired ids are looked for.",
            check=_positive,
        ),
        Setting(
            "transaction.state.log.num.partitions",
            "int",
            50,
            "Fixed at first start.",
            check=_positive,
        ),
        Setting(
            "transaction.state.log.segment.bytes",
            "int",
            100 * 2**20,
            "Segment size.",
            check=lambda v: v >= 1024,
        ),
        Setting(
            "producer.id.expiration.ms", "int", _DAY_MS, "Of an idle producer id.", check=_positive
        ),
        Setting(
            "producer.id.expiration.check.interval.ms",
            "int",
            600_000,
            "How often.",
            check=_positive,
        ),
        Setting(
            "producer.epoch.max",
            "int",
            32_767,
            "Lowered by tests to reach the overflow.",
            check=lambda v: 2 <= v <= 32_767,
        ),
        Setting(
            "offsets.topic.num.partitions", "int", 50, "Fixed at first start.", check=_positive
        ),
        Setting(
            "offsets.topic.segment.bytes",
            "int",
            100 * 2**20,
            "Segment size.",
            check=lambda v: v >= 1024,
        ),
        Setting(
            "offset.metadata.max.bytes", "int", 4096, "Largest commit metadata.", check=_natural
        ),
        Setting(
            "offsets.retention.minutes",
            "int",
            10_080,
            "Of an empty group's offsets.",
            check=_positive,
        ),
        Setting(
            "offsets.retention.check.interval.ms", "long", 600_000, "How often.", check=_positive
        ),
        Setting("group.min.session.timeout.ms", "int", 6_000, "Classic groups.", check=_natural),
        Setting(
            "group.max.session.timeout.ms", "int", 1_800_000, "Classic groups.", check=_natural
        ),
        Setting("group.initial.rebalance.delay.ms", "int", 0, "Kafka waits 3000.", check=_natural),
        Setting("group.max.size", "int", 2**31 - 1, "Members.", check=_positive),
        Setting("group.consumer.heartbeat.interval.ms", "int", 5_000, "KIP-848.", check=_positive),
        Setting("group.consumer.session.timeout.ms", "int", 45_000, "KIP-848.", check=_positive),
        Setting("group.consumer.max.size", "int", 2**31 - 1, "KIP-848.", check=_positive),
        Setting("fetch.max.bytes", "int", 55 * 2**20, "Upper limit of one Fetch.", check=_positive),
        Setting(
            "journal.file.bytes",
            "int",
            64 * 2**20,
            "Size of one journal file.",
            check=lambda v: v >= 65_536,
        ),
        Setting(
            "journal.reserve.bytes",
            "int",
            8 * 2**20,
            "Kept free so that transactions can be completed on a full disk.",
            check=_natural,
        ),
        Setting("checkpoint.interval.ms", "int", 30_000, "How often.", check=_positive),
        Setting(
            "checkpoint.journal.bytes",
            "long",
            128 * 2**20,
            "Or after so many bytes.",
            check=_positive,
        ),
        Setting("http.port", "int", None, "Metrics and console; off by default."),
        Setting("http.token.file", "string", None, "File (mode 0600) with the console's token."),
        Setting("store.url", "string", None, "State store shown by the console.", sensitive=True),
    )
}

# Names in coarser units: what each stands for. A finer one wins, in this order.
COARSER: dict[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
}

TOPIC_SETTINGS: dict[str, Setting] = {s.topic: s for s in SETTINGS.values() if s.topic}


@dataclass(slots=True)
class Settings:
    """Parsed settings; `explicit` holds what was set at the start, `dynamic` what was set since (it
    wins), the rest are defaults."""

    explicit: dict[str, Any] = field(default_factory=dict)
    dynamic: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Parse by Kafka's names; underscores are accepted for dots in Python keywords."""
        explicit = {}
        coarse = {}
        for raw, value in values.items():
            name = raw if raw in SETTINGS else raw.replace("_", ".")
            if name in COARSER:
                coarse[name] = _typed("int", value, name)
            elif name in SETTINGS:
                explicit[name] = SETTINGS[name].parse(value)
            else:
                raise SettingError(f"unknown setting: {raw}")
        for name, (finer, unit_ms) in COARSER.items():
            if name in coarse and finer not in explicit:
                explicit[finer] = SETTINGS[finer].parse(max(coarse[name] * unit_ms, -1))
        return cls(explicit)

    @classmethod
    def read(cls, file: Path | None, pairs: Iterable[str] = ()) -> "Settings":
        """Read a TOML file of dotted keys, then `key=value` pairs which override it."""
        values: dict[str, Any] = {}
        if file is not None:
            try:
                values.update(_flatten(tomllib.loads(file.read_text())))
            except (OSError, ValueError) as error:
                raise SettingError(f"{file}: {error}") from error
        for pair in pairs:
            name, sign, value = pair.partition("=")
            if not sign:
                raise SettingError(f"not key=value: {pair}")
            values[name.strip()] = value.strip()
        return cls.of(values)

    def __getitem__(self, name: str) -> Any:
        if self.dynamic and name in self.dynamic:
            return self.dynamic[name]
        return self.explicit.get(name, SETTINGS[name].default)


def directory_of(data_dir: str | PathLike[str]) -> Path:
    """Where data is to be kept; an empty text would be wherever this process happens to be."""
    if data_dir == "":
        raise SettingError("the data directory is an empty text")
    return Path(data_dir)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
