"""The topics of the cluster and their settings: a state machine fed by meta records.

A meta record is a small dict with a `kind`; `Topics.replay` is the only mutator, used live and on load.
Directories are named by topic id, never by name, so a name can neither leave the data directory nor
collide with another on a file system that folds case.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.broker.settings import TOPIC_SETTINGS, SettingError, Settings

MetaRecord = dict[str, Any]

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE, CONSUMER_OFFSETS})

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def is_legal_name(name: str) -> bool:
    """Kafka's rule for topic names."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(slots=True)
class Topic:
    """One topic: identity, number of partitions and the settings that override the broker's."""

    name: str
    id: bytes
    partitions: int
    configs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Topics:
    """All topics by name and by id."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._folded: dict[str, str] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def name_of(self, name: str, topic_id: bytes) -> str | None:
        """The name of a topic that a request names or gives the id of; None for an unknown id."""
        if name:
            return name
        known = self.by_id(topic_id)
        return None if known is None else known.name

    def collision(self, name: str) -> str | None:
        """A topic that differs only in '.' and '_'; Kafka refuses it, metrics mix them up."""
        other = self._folded.get(_fold(name))
        return None if other == name else other

    def config(self, topic: Topic, key: str) -> Any:
        """The value in force: the topic's own, else the broker's."""
        if key in topic.configs:
            return topic.configs[key]
        return self._settings[TOPIC_SETTINGS[key].name]

    def replay(self, record: MetaRecord) -> Topic:
        """Apply one meta record; gives the topic that it is about."""
        match record["kind"]:
            case "topic_created":
                topic = Topic(
                    record["name"],
                    bytes.fromhex(record["id"]),
                    record["partitions"],
                    parse_configs(record["configs"]),
                )
                self._by_name[topic.name] = topic
                self._by_id[topic.id] = topic
                self._folded[_fold(topic.name)] = topic.name
            case "topic_deleted":
                topic = self._by_id.pop(bytes.fromhex(record["id"]))
                del self._by_name[topic.name]
                del self._folded[_fold(topic.name)]
            case "partitions_created":
                topic = self._by_name[record["name"]]
                topic.partitions = record["partitions"]
            case "topic_configured":
                topic = self._by_name[record["name"]]
                topic.configs = parse_configs(record["configs"])
            case kind:
                raise ValueError(f"not a topic record: {kind}")
        return topic

    def snapshot(self) -> list[MetaRecord]:
        """Records that rebuild this state."""
        return [created(topic) for topic in self]


def _fold(name: str) -> str:
    return name.replace(".", "_")


def created(topic: Topic) -> MetaRecord:
    """The meta record that creates `topic`."""
    return {
        "kind": "topic_created",
        "name": topic.name,
        "id": topic.id.hex(),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
    }


def parse_configs(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Check a topic's settings by Kafka's topic-level names."""
    parsed = {}
    for key, value in configs.items():
        if key not in TOPIC_SETTINGS:
            raise SettingError(f"unknown topic config: {key}")
        parsed[key] = TOPIC_SETTINGS[key].parse(value)
    return parsed
