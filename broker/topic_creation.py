"""What makes a topic acceptable: Kafka's rules for names, counts, replicas and settings."""

from collections.abc import Mapping
from typing import Final

from dualwrite.broker.settings import SettingError, Settings
from dualwrite.broker.topics import Topic, Topics, is_legal_name, parse_configs
from dualwrite.wire.error_codes import ErrorCode

PARTITIONS_MAX: Final = 10_000
CLUSTER_METADATA: Final = "__cluster_metadata"


class Refused(Exception):
    """Why something about a topic can't be done, as a client is told."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def checked_topic(
    name: str,
    topic_id: bytes,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str | None],
    topics: Topics,
    settings: Settings,
) -> Topic:
    """The topic to create, or `Refused`. -1 means the broker's default."""
    check_name(name, topics)
    if topics.get(name) is not None:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
    parsed = checked_configs(configs)
    check_replication_factor(replication_factor, settings)
    count: int = settings["num.partitions"] if partitions == -1 else partitions
    check_partition_count(count)
    return Topic(name, topic_id, count, parsed)


def absence(name: str) -> ErrorCode:
    """What a client is told that asks for a topic which does not exist."""
    if is_legal_name(name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def check_name(name: str, topics: Topics) -> None:
    """Kafka's rules for the name of a new topic."""
    if not is_legal_name(name):
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ - and isn't '.' or '..'",
        )
    if name == CLUSTER_METADATA:
        raise Refused(ErrorCode.INVALID_REQUEST, "the name belongs to Kafka's metadata log")
    other = topics.collision(name)
    if other is not None:
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} differs from {other!r} in '.' and '_' only",
        )


def check_partition_count(count: int) -> None:
    if not 0 < count <= PARTITIONS_MAX:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions")


def check_replication_factor(factor: int, settings: Settings) -> None:
    wanted: int = settings["default.replication.factor"] if factor == -1 else factor
    if wanted == 1 or (wanted > 1 and settings["accept.any.replication.factor"]):
        return
    raise Refused(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"replication factor {wanted}: there is one broker "
        "(accept.any.replication.factor=true accepts more and keeps one copy)",
    )


def checked_configs(configs: Mapping[str, str | None]) -> dict[str, object]:
    """Parsed topic settings, or `Refused`."""
    missing = [key for key, value in configs.items() if value is None]
    if missing:
        raise Refused(ErrorCode.INVALID_CONFIG, f"no value for {', '.join(missing)}")
    try:
        return parse_configs(configs)
    except SettingError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
