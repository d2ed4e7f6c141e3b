"""What the console reads from a Kafka cluster, joined into what an operator asks.

Which transactions are open, which partitions they hold back, and which groups wait behind them.
Everything is asked anew for each page and bounded: a page shows at most so many of a kind.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from dualwrite.admin import TransactionAdmin, TransactionDescription, TransactionListing
from dualwrite.errors import DualWriteError
from dualwrite.failures import KafkaTimeout
from dualwrite.recipes.console.records import (
    ClusterUnavailable,
    ClusterUnreachable,
    Page,
    PartitionName,
    browse,
    has_visible,
)

ANSWER_SECONDS: Final = 10.0
REACH_SECONDS: Final = 2.0
"""How long a page waits for the first answer: a cluster that is down is best shown as that, and soon."""
IDS_MAX: Final = 200
GROUPS_MAX: Final = 200
PARTITIONS_MAX: Final = 1000
OURS_ALONE: Final = ("max.block.ms",)  # keys that librdkafka does not know

LOOKED_AT_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Ends:
    """How far a partition goes."""

    topic: str
    partition: int
    start: int
    last_stable: int
    high_watermark: int

    @property
    def held_back(self) -> int:
        """Offsets that read_committed readers can't see yet."""
        return max(0, self.high_watermark - self.last_stable)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group stands on a partition."""

    group: str
    offset: int
    ends: Ends
    waits: bool
    """It has read all that a read_committed reader may see, and there is more."""

    @property
    def lag(self) -> int:
        """Offsets up to the last stable one, markers included."""
        return max(0, self.ends.last_stable - self.offset)


@dataclass(frozen=True, slots=True)
class Hold:
    """One partition of an open transaction."""

    name: PartitionName
    ends: Ends | None
    first_offset: int | None
    positions: tuple[Position, ...]

    @property
    def holds_back(self) -> bool:
        """Whether it is this transaction that the partition's readers wait for first."""
        if self.ends is None or not self.ends.held_back:
            return False
        return self.first_offset is None or self.first_offset <= self.ends.last_stable


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without an outcome, and whom it concerns."""

    described: TransactionDescription
    age_ms: int
    holds: tuple[Hold, ...]

    @property
    def held_partitions(self) -> list[Hold]:
        return [hold for hold in self.holds if hold.holds_back]

    @property
    def waiting_groups(self) -> list[str]:
        return sorted({p.group for hold in self.held_partitions for p in hold.positions if p.waits})


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its partitions and their ends."""

    name: str
    is_internal: bool
    partitions: int
    ends: tuple[Ends, ...]

    @property
    def held_back(self) -> int:
        return sum(end.held_back for end in self.ends)

    @property
    def records(self) -> int:
        return sum(end.high_watermark - end.start for end in self.ends)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group."""

    name: str
    state: str
    kind: str
    positions: tuple[Position, ...]

    @property
    def lag(self) -> int:
        return sum(position.lag for position in self.positions)

    @property
    def waiting(self) -> list[Position]:
        return [position for position in self.positions if position.waits]


class ClusterReader:
    """The console's own clients. Threads may share it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = {"max.block.ms": int(ANSWER_SECONDS * 1000), **config}
        self.admin = TransactionAdmin(self.config)
        reach_ms = min(int(REACH_SECONDS * 1000), int(self.config["max.block.ms"]))
        self._door = TransactionAdmin({**self.config, "max.block.ms": reach_ms})
        self.cluster_id = ""
        """Of the cluster that was reached last."""
        theirs = {key: value for key, value in config.items() if key not in OURS_ALONE}
        self._librdkafka = AdminClient({**theirs, "log_level": 0})

    def close(self) -> None:
        self._door.close()
        self.admin.close()

    def reach(self) -> None:
        """Raise `ClusterUnreachable` soon if no broker answers; ask this before anything else."""
        try:
            self.cluster_id = self._door.cluster_id()
        except KafkaTimeout as error:
            told = f"No broker answers at {self.config['bootstrap.servers']}"
            raise ClusterUnreachable(f"{told}: {error.last_error or 'silence'}") from error
        except DualWriteError as error:
            raise ClusterUnreachable(str(error)) from error

    # Transactions

    def listings(self, text: str = "", is_open: bool = False) -> list[TransactionListing]:
        """Ids that contain `text`, all or only those with an open transaction."""
        states = ["Ongoing", "PrepareCommit", "PrepareAbort"] if is_open else None
        found = _ours(self.admin.list_transactions, states)
        return [one for one in found if text in one.transactional_id]

    def describe(self, ids: Iterable[str]) -> list[TransactionDescription]:
        found = _ours(self.admin.describe_transactions, list(ids)[:IDS_MAX])
        return [one for one in found.values() if one is not None]

    def open_transactions(self, text: str = "") -> list[OpenTransaction]:
        """Open transactions, oldest first, with what they hold back."""
        listed = self.listings(text, is_open=True)
        described = self.describe(one.transactional_id for one in listed)
        described = [
            one for one in described if one.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
        ]
        return self.judge(sorted(described, key=lambda one: one.start_time_ms))

    def judge(self, described: list[TransactionDescription]) -> list[OpenTransaction]:
        """Join transactions with the ends of their partitions and the groups that read these."""
        names = list(dict.fromkeys(name for one in described for name in one.partitions))
        ends = self.ends(names[:PARTITIONS_MAX])
        positions = self._positions_by_partition(ends) if ends else {}
        firsts = {name: self._first_offsets(name) for name in ends}
        now_ms = int(time.time() * 1000)
        found = []
        for one in described:
            holds = tuple(
                Hold(
                    name,
                    ends.get(name),
                    firsts.get(name, {}).get(one.pair.producer_id),
                    tuple(positions.get(name, ())),
                )
                for name in one.partitions
            )
            age = max(0, now_ms - one.start_time_ms) if one.start_time_ms > 0 else 0
            found.append(OpenTransaction(one, age, holds))
        return found

    def _first_offsets(self, name: PartitionName) -> dict[int, int]:
        """First offset of each open transaction on a partition, by producer id."""
        try:
            producers = self.admin.describe_producers(*name)
        except DualWriteError:
            return {}  # without the right to read the topic the rest is still worth showing
        return {
            one.producer_id: one.transaction_start_offset
            for one in producers
            if one.transaction_start_offset >= 0
        }

    def _open_producers(self, name: PartitionName) -> dict[int, tuple[int, str]]:
        """First offset and transactional id of each transaction that a partition has open."""
        firsts = self._first_offsets(name)
        ids = {one.producer_id: one.transactional_id for one in self.listings()} if firsts else {}
        return {producer: (first, ids.get(producer, "")) for producer, first in firsts.items()}

    # Topics

    def topics(self) -> list[Topic]:
        """All topics; the ends only of those that are not internal."""
        known = _theirs(lambda: self._librdkafka.list_topics(timeout=ANSWER_SECONDS)).topics
        names = [
            (topic.topic, number)
            for topic in known.values()
            if not _is_internal(topic.topic)
            for number in topic.partitions
        ]
        ends = self.ends(names[:PARTITIONS_MAX])
        found = []
        for topic in sorted(known.values(), key=lambda one: (_is_internal(one.topic), one.topic)):
            own = [
                ends[name]
                for number in sorted(topic.partitions)
                if (name := (topic.topic, number)) in ends
            ]
            found.append(
                Topic(topic.topic, _is_internal(topic.topic), len(topic.partitions), tuple(own))
            )
        return found

    def records(self, name: PartitionName, offset: int, *, committed_only: bool) -> Page | None:
        """Read a page; None if the partition does not exist or has no leader."""
        leader = self._leader(name)
        if leader is None:
            return None
        opened = self._open_producers(name)
        return browse(
            self.config, leader, name, offset, committed_only=committed_only, opened=opened
        )

    def _leader(self, name: PartitionName) -> str | None:
        # All topics: asking for one by name could create it.
        metadata = _theirs(lambda: self._librdkafka.list_topics(timeout=ANSWER_SECONDS))
        topic = metadata.topics.get(name[0])
        partition = topic.partitions.get(name[1]) if topic else None
        broker = metadata.brokers.get(partition.leader) if partition else None
        return f"{broker.host}:{broker.port}" if broker else None

    def partitions_of(self, topic: str) -> list[Ends]:
        """The ends of a topic's partitions; empty for a topic that does not exist."""
        metadata = _theirs(lambda: self._librdkafka.list_topics(timeout=ANSWER_SECONDS))
        if topic not in metadata.topics:
            return []
        numbers = sorted(metadata.topics[topic].partitions)[:PARTITIONS_MAX]
        ends = self.ends([(topic, number) for number in numbers])
        return [ends[name] for name in sorted(ends)]

    def ends(self, names: Collection[PartitionName]) -> dict[PartitionName, Ends]:
        """The ends of partitions; those that can't be read are left out."""
        if not names:
            return {}
        starts = self._list_offsets(names, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        stable = self._list_offsets(names, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        highs = self._list_offsets(names, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        first, middle, last = (_answers(one) for one in (starts, stable, highs))
        return {
            name: Ends(*name, first[name], middle[name], last[name])
            for name in names
            if name in first and name in middle and name in last
        }

    def _list_offsets(
        self, names: Collection[PartitionName], spec: Any, level: Any
    ) -> dict[PartitionName, "Future[Any]"]:
        asked = {TopicPartition(*name): spec for name in names}
        found = _theirs(
            lambda: self._librdkafka.list_offsets(
                asked, isolation_level=level, request_timeout=ANSWER_SECONDS
            )
        )
        return {(one.topic, one.partition): future for one, future in found.items()}

    # Groups

    def groups(self, only: str | None = None) -> list[Group]:
        """Groups with where they stand."""
        listed = _theirs(
            lambda: self._librdkafka.list_consumer_groups(request_timeout=ANSWER_SECONDS).result()
        ).valid
        listed = sorted((g for g in listed if only in (None, g.group_id)), key=lambda g: g.group_id)
        committed = self._committed([one.group_id for one in listed[:GROUPS_MAX]])
        names = list(dict.fromkeys(name for offsets in committed.values() for name in offsets))
        ends = self.ends(names[:PARTITIONS_MAX])
        return [
            Group(
                one.group_id,
                one.state.name.replace("_", " ").lower(),
                one.type.name.lower() if one.type else "",
                tuple(
                    self._position(one.group_id, offset, ends[name])
                    for name, offset in sorted(committed.get(one.group_id, {}).items())
                    if name in ends
                ),
            )
            for one in listed[:GROUPS_MAX]
        ]

    def _positions_by_partition(
        self, ends: Mapping[PartitionName, Ends]
    ) -> dict[PartitionName, list[Position]]:
        listed = _theirs(
            lambda: self._librdkafka.list_consumer_groups(request_timeout=ANSWER_SECONDS).result()
        ).valid
        names = sorted(one.group_id for one in listed)[:GROUPS_MAX]
        found: dict[PartitionName, list[Position]] = {}
        for group, offsets in self._committed(names).items():
            for name, offset in offsets.items():
                if name in ends:
                    found.setdefault(name, []).append(self._position(group, offset, ends[name]))
        return found

    def _position(self, group: str, offset: int, ends: Ends) -> Position:
        waits = ends.held_back > 0 and offset >= ends.last_stable
        if ends.held_back and 0 < ends.last_stable - offset <= LOOKED_AT_MAX:
            # What is left may be only the markers of transactions that the group has read.
            name = (ends.topic, ends.partition)
            leader = self._leader(name)
            waits = leader is not None and not has_visible(
                self.config, leader, name, offset, ends.last_stable
            )
        return Position(group, offset, ends, waits)

    def _committed(self, groups: Iterable[str]) -> dict[str, dict[PartitionName, int]]:
        """Committed offsets by group; librdkafka asks for one group at a time."""
        asked = {
            group: self._librdkafka.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_SECONDS
            )[group]
            for group in groups
        }
        found = {}
        for group, future in asked.items():
            try:
                partitions = future.result().topic_partitions
            except KafkaException:
                continue  # gone since it was listed, or not ours to see
            found[group] = {
                (one.topic, one.partition): one.offset
                for one in partitions
                if one.error is None and one.offset >= 0
            }
        return found


def _is_internal(topic: str) -> bool:
    return topic.startswith("__")


def _answers(futures: Mapping[PartitionName, "Future[Any]"]) -> dict[PartitionName, int]:
    found = {}
    for name, future in futures.items():
        try:
            found[name] = int(future.result().offset)
        except KafkaException:
            continue
    return found


def _ours(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except DualWriteError as error:
        raise ClusterUnavailable(str(error)) from error


def _theirs(call: Any) -> Any:
    try:
        return call()
    except KafkaException as error:
        raise ClusterUnavailable(error.args[0].str()) from error
