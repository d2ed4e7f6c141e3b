"""Settings of topics and of the broker as clients see and change them (KIP-133, KIP-339, KIP-569)."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.clock import Now
from dualwrite.broker.settings import SETTINGS, TOPIC_SETTINGS, Setting, SettingError, text_of
from dualwrite.broker.topic_creation import Refused, absence, checked_configs
from dualwrite.broker.topics import Topic
from dualwrite.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


class Resource(IntEnum):
    """What has a configuration, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    STATIC = 4
    DEFAULT = 5


class Change(IntEnum):
    """What IncrementalAlterConfigs does to one entry."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


TYPES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
}

# Whatever is looked up each time it is used can be changed while the broker runs.
DYNAMIC: Final = frozenset(
    {
        *(setting.name for setting in TOPIC_SETTINGS.values()),
        "auto.create.topics.enable",
        "num.partitions",
        "delete.topic.enable",
        "connections.max.idle.ms",
        "max.connections",
        "max.connections.per.ip",
        "fetch.max.bytes",
    }
)


class Entry(NamedTuple):
    """One setting of a resource and its value in force."""

    key: str
    setting: Setting
    value: str | None
    source: Source
    is_read_only: bool
    synonyms: tuple[tuple[str, str | None, Source], ...]


def check_access(call: "Call[Any]", operation: Operation, kind: int, name: str) -> None:
    """Raise `Refused` unless the sender may do `operation` to the settings of a resource."""
    match kind:
        case Resource.TOPIC:
            if not call.may(operation, ResourceType.TOPIC, name):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized to the topic")
        case Resource.GROUP:
            if not call.may(operation, ResourceType.GROUP, name):
                raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not authorized to the group")
        case _:
            if not call.may(operation, ResourceType.CLUSTER, "kafka-cluster"):
                raise Refused(
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not authorized to the cluster"
                )


def describe(node: "Node", kind: int, name: str) -> Iterator[Entry]:
    """Every setting of a resource; groups, loggers and client metrics have none here."""
    match kind:
        case Resource.TOPIC:
            yield from _describe_topic(node, existing_topic(node, name))
        case Resource.BROKER:
            check_broker(node, name)
            for setting in SETTINGS.values():
                yield _describe_broker(node, setting)
        case Resource.GROUP | Resource.BROKER_LOGGER | Resource.CLIENT_METRICS:
            return
        case _:
            raise Refused(ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings")


def existing_topic(node: "Node", name: str) -> Topic:
    """The topic of that name, or `Refused`."""
    topic = node.topics.get(name)
    if topic is None:
        raise Refused(absence(name), f"there is no topic {name!r}")
    return topic


def check_broker(node: "Node", name: str) -> None:
    """A broker is named by its id; no name means all brokers."""
    if name not in ("", str(node.id)):
        raise Refused(ErrorCode.INVALID_REQUEST, f"the only broker is {node.id}")


def _describe_topic(node: "Node", topic: Topic) -> Iterator[Entry]:
    for key, setting in TOPIC_SETTINGS.items():
        synonyms = _broker_synonyms(node, setting)
        if key in topic.configs:
            synonyms = ((key, text_of(topic.configs[key]), Source.TOPIC), *synonyms)
        yield Entry(key, setting, synonyms[0][1], synonyms[0][2], False, synonyms)


def _describe_broker(node: "Node", setting: Setting) -> Entry:
    synonyms = _broker_synonyms(node, setting)
    _, value, source = synonyms[0]
    if setting.name == "advertised.listeners":
        value = ",".join(f"{name}://{host}:{port}" for name, (host, port) in node.endpoints.items())
    return Entry(setting.name, setting, value, source, setting.name not in DYNAMIC, synonyms)


def _broker_synonyms(node: "Node", setting: Setting) -> tuple[tuple[str, str | None, Source], ...]:
    name = setting.name
    found: list[tuple[str, str | None, Source]] = []
    if name in node.settings.dynamic:
        found.append((name, text_of(node.settings.dynamic[name]), Source.BROKER))
    if name in node.settings.explicit:
        found.append((name, text_of(node.settings.explicit[name]), Source.STATIC))
    found.append((name, text_of(setting.default), Source.DEFAULT))
    return tuple(found)


def explicit_of(node: "Node", kind: int, name: str) -> dict[str, str | None]:
    """What somebody has set on a resource, as text."""
    match kind:
        case Resource.TOPIC:
            configs = existing_topic(node, name).configs
            return {key: text_of(value) for key, value in configs.items()}
        case Resource.BROKER:
            check_broker(node, name)
            return dict(node.cluster.configs)
    raise Refused(ErrorCode.INVALID_REQUEST, f"settings of resource type {kind} can't be changed")


def changed(
    current: Mapping[str, str | None],
    kind: int,
    changes: list[tuple[str, int, str | None]],
) -> dict[str, str | None]:
    """`current` after IncrementalAlterConfigs' changes, each of (key, change, value)."""
    keys = [key for key, _, _ in changes]
    if len(set(keys)) < len(keys):
        raise Refused(ErrorCode.INVALID_REQUEST, "a key is named twice")
    known = TOPIC_SETTINGS if kind == Resource.TOPIC else SETTINGS
    result = dict(current)
    for key, change, value in changes:
        setting = known.get(key)
        if setting is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"unknown config: {key}")
        if change == Change.DELETE:
            result.pop(key, None)
        elif change == Change.SET or value is None:
            result[key] = value
        elif change in (Change.APPEND, Change.SUBTRACT) and setting.kind == "list":
            before = setting.parse(result.get(key, text_of(setting.default))) or []
            given = [part.strip() for part in value.split(",")]
            result[key] = _merged(before, given, appends=change == Change.APPEND)
        else:
            raise Refused(ErrorCode.INVALID_CONFIG, f"{key}: change {change} needs a list")
    return result


def _merged(before: list[str], given: list[str], *, appends: bool) -> str:
    if appends:
        return ",".join(before + [part for part in given if part not in before])
    return ",".join(part for part in before if part not in given)


def store(
    node: "Node", kind: int, name: str, configs: Mapping[str, str | None], now: Now, dry: bool
) -> None:
    """Make `configs` all that is set on a resource; with `dry` only check them."""
    missing = [key for key, value in configs.items() if value is None]
    if missing:
        raise Refused(ErrorCode.INVALID_REQUEST, f"no value for {', '.join(missing)}")
    if kind == Resource.TOPIC:
        topic = existing_topic(node, name)
        parsed = checked_configs(configs)
        if topic.is_internal and parsed.get("cleanup.policy") != ["compact"]:
            # Retention would take prepared transactions and committed offsets with it.
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{topic.name} holds what the coordinators know: its cleanup.policy is compact",
            )
        if not dry:
            record = {"kind": "topic_configured", "name": topic.name, "configs": parsed}
            node.commit([], now, [record])
        return
    for key, value in configs.items():
        if key not in DYNAMIC:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{key} can't be changed while running")
        try:
            SETTINGS[key].parse(value)
        except SettingError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
    if not dry:
        node.commit([], now, [{"kind": "broker_configured", "configs": dict(configs)}])
