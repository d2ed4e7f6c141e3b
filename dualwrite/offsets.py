"""Consumed offsets as callers give them: confluent-kafka's `TopicPartition`s, or a dict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConsumedOffset:
    """The next offset that a group will read from a partition."""

    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def by_topic(offsets: Any) -> dict[str, list[ConsumedOffset]]:
    """Sort offsets by topic; those below zero ("nothing consumed yet") are left out.

    Takes a list of objects with `topic`, `partition`, `offset` and maybe `metadata` and
    `leader_epoch`, or a dict from (topic, partition) or such an object to the offset.
    """
    found: dict[str, list[ConsumedOffset]] = {}
    for topic, consumed in _entries(offsets):
        if consumed.offset >= 0:
            found.setdefault(topic, []).append(consumed)
    return found


def _entries(offsets: Any) -> list[tuple[str, ConsumedOffset]]:
    if isinstance(offsets, Mapping):
        return [_from_item(key, value) for key, value in offsets.items()]
    if isinstance(offsets, str | bytes) or not isinstance(offsets, Iterable):
        raise TypeError(f"offsets must be a list of TopicPartition or a dict, not {offsets!r}")
    return [_from_object(item) for item in offsets]


def _from_item(key: Any, value: Any) -> tuple[str, ConsumedOffset]:
    if isinstance(key, tuple) and len(key) == 2:
        topic, partition = key
    elif hasattr(key, "topic") and hasattr(key, "partition"):
        topic, partition = key.topic, key.partition
    else:
        raise TypeError(f"not a partition: {key!r}; offsets go by (topic, partition)")
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked(topic, partition, value, -1, "")
    if not hasattr(value, "offset"):
        raise TypeError(f"not an offset of {topic!r} [{partition}]: {value!r}")
    return _checked(topic, partition, value.offset, _epoch(value), _metadata(value))


def _from_object(item: Any) -> tuple[str, ConsumedOffset]:
    if not all(hasattr(item, name) for name in ("topic", "partition", "offset")):
        raise TypeError(f"not a TopicPartition: {type(item).__name__}")
    return _checked(item.topic, item.partition, item.offset, _epoch(item), _metadata(item))


def _checked(
    topic: Any, partition: Any, offset: Any, leader_epoch: int, metadata: str
) -> tuple[str, ConsumedOffset]:
    if not isinstance(topic, str) or not topic:
        raise TypeError(f"not a topic name: {topic!r}")
    if not isinstance(partition, int) or not 0 <= partition <= _INT32_MAX:
        raise ValueError(f"not a partition of {topic!r}: {partition!r}")
    if offset > _INT64_MAX:
        raise ValueError(f"not an offset of {topic!r} [{partition}]: {offset!r}")
    return topic, ConsumedOffset(partition, int(offset), leader_epoch, metadata)


def _epoch(item: Any) -> int:
    epoch = getattr(item, "leader_epoch", None)
    return epoch if isinstance(epoch, int) else -1


def _metadata(item: Any) -> str:
    return getattr(item, "metadata", None) or ""
