"""Options of the source, as Spark's own Kafka source names them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.offsets import (
    LATEST,
    Offsets,
    Partition,
    parse_assign,
    parse_offsets,
)
from dualwrite.recipes.spark.options import PREFIX, kafka_settings

Bound = str | Offsets
"""`earliest`, `latest`, or an offset per partition (-1 latest, -2 earliest)."""

_KNOWN = {
    name.lower(): name
    for name in (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
        "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
        "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
        "includeHeaders", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "path",
    )
}  # fmt: skip
_REFUSED = {
    "auto.offset.reset": "set startingOffsets instead",
    "enable.auto.commit": "the checkpoint holds the offsets, nothing is committed to Kafka",
    "enable.auto.offset.store": "the checkpoint holds the offsets",
    "enable.partition.eof": "the source needs it itself",
}
_DURATION = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the source was told."""

    kafka: Mapping[str, Any] = field(repr=False)  # passwords and keys may be in it
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Partition, ...] = ()
    starting: Bound
    ending: Bound = "latest"
    starting_times: int | Offsets | None = None
    ending_times: int | Offsets | None = None
    later_is_latest: bool = False
    """A timestamp after the last record means the end, not an error."""
    fails_on_loss: bool = True
    rows_max: int | None = None
    rows_min: int | None = None
    delay_seconds_max: float = 900.0
    partitions_min: int = 0
    has_headers: bool = False
    group_prefix: str = "dualwrite-spark-source"
    poll_seconds: float = 120.0


def parse_source(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Read the options of `spark.read` and `spark.readStream`; whatever is wrong is named."""
    given = {key.lower(): value for key, value in options.items()}
    unknown = [k for k in given if k not in _KNOWN and not k.startswith(PREFIX)]
    if unknown:
        raise ConfigurationError(
            f"unknown option {', '.join(sorted(unknown))}; there is"
            f" {', '.join(sorted(_KNOWN.values()))}, and Kafka's own begin with {PREFIX!r}"
        )
    for name, instead in _REFUSED.items():
        if PREFIX + name in given:
            raise ConfigurationError(f"{PREFIX}{name} cannot be set: {instead}")
    if is_streaming:
        for name in ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"):
            if name in given:
                raise ConfigurationError(f"{_KNOWN[name]} is for spark.read: a stream has no end")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError("startingOffsetsByTimestampStrategy must be error or latest")
    return SourceOptions(
        kafka=kafka_settings(given),
        **_subscription(given),
        starting=_starting(given, is_streaming),
        ending=_ending(given),
        starting_times=_times(given, "startingTimestamp", "startingOffsetsByTimestamp"),
        ending_times=_times(given, "endingTimestamp", "endingOffsetsByTimestamp"),
        later_is_latest=strategy == "latest",
        fails_on_loss=_flag(given, "failOnDataLoss", True),
        rows_max=_count(given, "maxOffsetsPerTrigger"),
        rows_min=_count(given, "minOffsetsPerTrigger"),
        delay_seconds_max=_seconds(given, "maxTriggerDelay", 900.0),
        partitions_min=_count(given, "minPartitions") or 0,
        has_headers=_flag(given, "includeHeaders", False),
        group_prefix=given.get("groupidprefix", "dualwrite-spark-source"),
        poll_seconds=(_count(given, "kafkaConsumer.pollTimeoutMs") or 120_000) / 1000,
    )


def _subscription(given: Mapping[str, str]) -> dict[str, Any]:
    chosen = [k for k in ("subscribe", "subscribepattern", "assign") if k in given]
    if len(chosen) != 1:
        raise ConfigurationError(
            "exactly one of subscribe, subscribePattern and assign must be given, not"
            f" {' and '.join(_KNOWN[k] for k in chosen) or 'none'}"
        )
    text = given[chosen[0]]
    if chosen[0] == "assign":
        return {"assigned": tuple(parse_assign(text))}
    if chosen[0] == "subscribe":
        topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise ConfigurationError("subscribe names no topic")
        return {"topics": topics}
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"subscribePattern {text!r}: {error}") from error
    return {"pattern": text}


def _starting(given: Mapping[str, str], is_streaming: bool) -> Bound:
    text = given.get("startingoffsets", "latest" if is_streaming else "earliest")
    if text.lower() in ("earliest", "latest"):
        if text.lower() == "latest" and not is_streaming:
            raise ConfigurationError("startingOffsets cannot be latest for spark.read")
        return text.lower()
    offsets = parse_offsets("startingOffsets", text)
    if not is_streaming and LATEST in offsets.values():
        raise ConfigurationError("startingOffsets cannot be latest (-1) for spark.read")
    return offsets


def _ending(given: Mapping[str, str]) -> Bound:
    text = given.get("endingoffsets", "latest")
    if text.lower() == "latest":
        return "latest"
    if text.lower() == "earliest":
        raise ConfigurationError("endingOffsets cannot be earliest")
    offsets = parse_offsets("endingOffsets", text)
    if any(offset < LATEST for offset in offsets.values()):
        raise ConfigurationError("endingOffsets cannot be earliest (-2)")
    return offsets


def _times(given: Mapping[str, str], for_all: str, by_partition: str) -> int | Offsets | None:
    text = given.get(for_all.lower())
    if text is not None:
        if not text.isdecimal():
            raise ConfigurationError(f"{for_all} must be milliseconds since 1970, not {text!r}")
        return int(text)
    text = given.get(by_partition.lower())
    return None if text is None else parse_offsets(by_partition, text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{name} must be a duration such as 15m, not {text!r}")
    return int(match[1]) * _SECONDS[match[2]]
