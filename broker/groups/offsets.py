"""The offsets of all groups: committed ones, and those that wait for the end of a transaction.

A transactional commit is pending, keyed by its producer, until the marker in the same partition of
`__consumer_offsets` says what becomes of it (KIP-98, KIP-447).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.records import UNKNOWN_MS, OffsetValue
from dualwrite.wire.message import NO_UUID

Place = tuple[str, int]
"""A topic's name and a partition."""
Writer = tuple[int, int]
"""A partition of `__consumer_offsets` and a producer id: what a marker there is about."""

_NOTHING: Final[Mapping[Place, "CommittedOffset"]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group goes on reading a partition. `record_offset` orders commits of the same place."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    steady_ms: int
    expires_steady_ms: int = UNKNOWN_MS
    topic_id: bytes = NO_UUID
    record_offset: int = -1

    @classmethod
    def of(cls, value: OffsetValue, record_offset: int, now: Now) -> "CommittedOffset":
        """From a stored value; one without a steady time counts from now."""
        expires = value.expires_steady_ms
        if value.expire_timestamp != UNKNOWN_MS:
            expires = now.steady_ms + max(0, value.expire_timestamp - now.wall_ms)
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            now.steady_ms if value.steady_ms == UNKNOWN_MS else value.steady_ms,
            expires,
            value.topic_id,
            record_offset,
        )


class Offsets:
    """Offsets by group and place. Changed by `replay` and `replay_marker` only."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[Place, CommittedOffset]] = {}
        self._pending: dict[Writer, dict[str, dict[Place, CommittedOffset]]] = {}
        self._writers: dict[str, dict[Place, set[Writer]]] = {}

    def committed(self, group: str) -> Mapping[Place, CommittedOffset]:
        """What a group has committed."""
        return self._committed.get(group, _NOTHING)

    def all_committed(self) -> Iterator[tuple[str, Place, int]]:
        """Every committed offset of every group."""
        for group, places in self._committed.items():
            for place, value in places.items():
                yield group, place, value.offset

    def is_pending(self, group: str, place: Place) -> bool:
        """Whether an open transaction holds an offset for this place."""
        return place in self._writers.get(group, {})

    def has_pending(self, group: str) -> bool:
        """Whether an open transaction holds any offset of this group."""
        return group in self._writers

    def has_any(self, group: str) -> bool:
        """Whether there is anything to remember about this group."""
        return group in self._committed or group in self._writers

    def groups_at(self, topic: str) -> Iterator[tuple[str, list[Place]]]:
        """Every group that knows `topic`, with the places there."""
        for group in sorted(self._committed.keys() | self._writers.keys()):
            known = self.committed(group).keys() | self._writers.get(group, {}).keys()
            places = sorted(place for place in known if place[0] == topic)
            if places:
                yield group, places

    def replay(
        self, group: str, place: Place, value: CommittedOffset | None, writer: Writer | None
    ) -> None:
        """Apply one offset record; `writer` is set if it belongs to a transaction."""
        if value is None:
            self._delete(group, place)
        elif writer is None:
            self._committed.setdefault(group, {})[place] = value
        else:
            self._pending.setdefault(writer, {}).setdefault(group, {})[place] = value
            self._writers.setdefault(group, {}).setdefault(place, set()).add(writer)

    def replay_marker(self, writer: Writer, commit: bool) -> None:
        """End a transaction: its offsets become the committed ones, or never existed."""
        for group, places in self._pending.pop(writer, {}).items():
            for place, value in places.items():
                self._release(group, place, writer)
                if commit and not self._has_later(group, place, value):
                    self._committed.setdefault(group, {})[place] = value

    def _has_later(self, group: str, place: Place, value: CommittedOffset) -> bool:
        existing = self.committed(group).get(place)
        return existing is not None and existing.record_offset > value.record_offset

    def _delete(self, group: str, place: Place) -> None:
        committed = self._committed.get(group)
        if committed is not None:
            committed.pop(place, None)
            if not committed:
                del self._committed[group]
        for writer in list(self._writers.get(group, {}).get(place, ())):
            self._forget_pending(writer, group, place)

    def _forget_pending(self, writer: Writer, group: str, place: Place) -> None:
        groups = self._pending[writer]
        del groups[group][place]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._pending[writer]
        self._release(group, place, writer)

    def _release(self, group: str, place: Place, writer: Writer) -> None:
        places = self._writers[group]
        places[place].discard(writer)
        if not places[place]:
            del places[place]
        if not places:
            del self._writers[group]
