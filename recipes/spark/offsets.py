"""Planning what the source reads: offsets in, ranges out, no IO.

Offsets are written as Spark's own Kafka source writes them: `{"topic": {"0": 123}}`.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualwrite.errors import ConfigurationError

LATEST, EARLIEST = -1, -2
BEGAN = "#began"
"""Beside the topics, none of which can have this name: where a stream's first batch began."""

Partition = tuple[str, int]
Offsets = dict[Partition, int]
Json = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` to `end`, the last one not included, of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[Partition, int]) -> Json:
    written: Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        written.setdefault(topic, {})[str(partition)] = offset
    return written


def from_json(written: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(number)): int(offset)
        for topic, by_number in written.items()
        if topic != BEGAN
        for number, offset in by_number.items()
    }


def parse_offsets(option: str, text: str) -> Offsets:
    """Read an option such as `{"orders": {"0": 23, "1": -2}}`."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not found:
            raise ValueError(text)
        for by_number in found.values():
            if not isinstance(by_number, dict) or not by_number:
                raise ValueError(text)
            for number, offset in by_number.items():
                if not number.isdecimal() or type(offset) is not int:
                    raise ValueError(text)
        return from_json(found)
    except (ValueError, AttributeError):
        raise ConfigurationError(
            f'{option} must be JSON such as {{"topic": {{"0": 23, "1": -1}}}}, not {text!r}'
        ) from None


def parse_assign(text: str) -> list[Partition]:
    """Read the option `assign`: `{"orders": [0, 1]}`."""
    try:
        found = json.loads(text)
        pairs = [(t, p) for t, numbers in found.items() for p in numbers]
        if not pairs or any(type(p) is not int or p < 0 for _, p in pairs):
            raise ValueError(text)
        return pairs
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f'assign must be JSON such as {{"topic": [0, 1]}}, not {text!r}'
        ) from None


def require_all(option: str, given: Mapping[Partition, Any], found: Sequence[Partition]) -> None:
    """Specific offsets must name every partition that is read, and no other."""
    if set(given) != set(found):
        missing, extra = sorted(set(found) - set(given)), sorted(set(given) - set(found))
        raise ConfigurationError(
            f"{option} must name exactly the partitions that are read;"
            f" missing: {missing or 'none'}, not read: {extra or 'none'}"
        )


def limit_rows(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Cut a batch to about `rows_max` offsets, each partition in proportion to what it has.

    A partition with anything to read moves on by at least one offset, so none starves.
    """
    lags = {p: max(0, offset - start.get(p, 0)) for p, offset in end.items()}
    total = sum(lags.values())
    if total <= rows_max:
        return dict(end)
    limited: Offsets = {}
    for partition, offset in end.items():
        lag = lags[partition]
        share = max(1, lag * rows_max // total) if lag else 0
        limited[partition] = min(offset, start.get(partition, 0) + share)
    return limited


def lag(start: Offsets, end: Offsets) -> int:
    return sum(max(0, offset - start.get(p, 0)) for p, offset in end.items())


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What lies between two offsets; partitions without anything are left out."""
    return [
        OffsetRange(topic, number, start[topic, number], offset)
        for (topic, number), offset in sorted(end.items())
        if offset > start[topic, number]
    ]


def split(whole: Sequence[OffsetRange], parts_min: int) -> list[OffsetRange]:
    """Cut ranges until there are about `parts_min`, the longest into the most pieces."""
    total = sum(len(one) for one in whole)
    if parts_min <= len(whole) or total == 0:
        return list(whole)
    pieces: list[OffsetRange] = []
    for one in whole:
        count = min(len(one), max(1, round(len(one) * parts_min / total)))
        cuts = [one.start + len(one) * i // count for i in range(count + 1)]
        pieces += [OffsetRange(one.topic, one.partition, a, b) for a, b in itertools.pairwise(cuts)]
    return pieces


def losses(start: Offsets, end: Offsets, earliest: Mapping[Partition, int]) -> list[str]:
    """What the log no longer holds of the offsets that should be read, as sentences."""
    found = []
    for partition, offset in sorted(start.items()):
        name = f"{partition[0]}-{partition[1]}"
        if partition not in end:
            found.append(f"{name} is gone (it was read up to {offset})")
        elif end[partition] < offset:
            found.append(f"{name} ends at {end[partition]}, before {offset}: it was made anew")
        elif offset < earliest.get(partition, 0) and end[partition] > offset:
            found.append(f"{name} begins at {earliest[partition]}, {offset} is deleted already")
    return found


def clamp(start: Offsets, end: Offsets, earliest: Mapping[Partition, int]) -> Offsets:
    """Start where the log still has something, for queries that accept the loss."""
    return {p: min(max(start.get(p, 0), earliest.get(p, 0)), end[p]) for p in end}
