"""What the coordinators keep in `__transaction_state` and `__consumer_offsets`, in Kafka's formats.

Decisions become journal items here, and on load the same records come back out of the logs.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.coordinator import GroupCoordinator
from dualwrite.broker.groups.decision import GroupDecision
from dualwrite.broker.storage.entry import Append, Item, PartitionKey
from dualwrite.broker.storage.errors import LogOffline
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.storage import Storage
from dualwrite.broker.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, Topic, Topics
from dualwrite.broker.transactions.coordinator import Coordinator
from dualwrite.broker.transactions.decision import Marker
from dualwrite.broker.transactions.partitioning import partition_for
from dualwrite.broker.transactions.records import decode_record, encode_key, encode_value
from dualwrite.broker.transactions.state import Transaction
from dualwrite.wire.records import (
    BatchHeader,
    EndMarker,
    batches,
    build_batch,
    keyed_batch,
    marker_batch,
    records,
)

LOAD_BYTES: Final = 1 << 20


class InternalTopics:
    """The two topics that coordinators write to; both must exist in `topics`."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._state = self._existing(TRANSACTION_STATE)
        self._offsets = self._existing(CONSUMER_OFFSETS)

    def _existing(self, name: str) -> Topic:
        topic = self._topics.get(name)
        assert topic is not None
        return topic

    def state_key(self, transactional_id: str) -> PartitionKey:
        """The partition that holds what is known of a transactional id."""
        return self._state.id, partition_for(transactional_id, self._state.partitions)

    def group_key(self, group: str) -> PartitionKey:
        """The partition that holds what is known of a group."""
        return self._offsets.id, partition_for(group, self._offsets.partitions)

    def transaction_items(self, changes: Iterable[Transaction], now: Now) -> list[Item]:
        """The coordinator's records, one batch per partition."""
        by_key: dict[PartitionKey, list[tuple[bytes, bytes | None]]] = {}
        for change in changes:
            name = change.transactional_id
            record = encode_key(name), encode_value(change)
            by_key.setdefault(self.state_key(name), []).append(record)
        return [Append(key, *keyed_batch(content, now.wall_ms)) for key, content in by_key.items()]

    def marker_items(
        self, markers: Iterable[Marker], coordinator_epoch: int, now: Now
    ) -> list[Item]:
        """One control batch per partition."""
        items: list[Item] = []
        for marker in markers:
            epoch = marker.coordinator_epoch
            end = EndMarker(
                marker.commit,
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch if epoch < 0 else epoch,
            )
            batch, header = marker_batch(end, now.wall_ms)
            for ref in sorted(marker.partitions):
                topic = self._topics.get(ref.topic)
                if topic is not None:
                    items.append(Append((topic.id, ref.partition), batch, header))
        return items

    def group_item(self, decision: GroupDecision, now: Now) -> Append:
        """The group coordinator's records as one batch, transactional for a producer's offsets."""
        producer_id, producer_epoch = decision.producer or (-1, -1)
        batch = build_batch(
            ((record.key, record.value, None, now.wall_ms) for record in decision.records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=decision.producer is not None,
        )
        return Append(self.group_key(decision.group), batch, BatchHeader.parse(batch))

    def load_transactions(self, storage: Storage, coordinator: Coordinator) -> None:
        """Replay the last record of every id in `__transaction_state`: it says all that is known."""
        for log in self._logs(storage, self._state):
            with suppress(LogOffline):  # its ids wait until it is repaired
                for key, value in _newest_records(log).items():
                    change = decode_record(key, value)
                    if change is not None:
                        coordinator.replay(change)

    def load_groups(self, storage: Storage, coordinator: GroupCoordinator, now: Now) -> None:
        """Replay every record and marker of `__consumer_offsets`."""
        for log in self._logs(storage, self._offsets):
            with suppress(LogOffline):  # its groups wait; what came before the damage is not shown
                _replay_groups(log, coordinator, now)

    def has_all_transactions(self, storage: Storage) -> bool:
        """Whether no partition of `__transaction_state` is offline."""
        return all(log.offline is None for log in self._logs(storage, self._state))

    @staticmethod
    def _logs(storage: Storage, topic: Topic) -> Iterator[Log]:
        return (storage.logs[topic.id, index] for index in range(topic.partitions))


def _newest_records(log: Log) -> dict[bytes, bytes | None]:
    newest: dict[bytes, bytes | None] = {}
    for header, batch in scan(log):
        if not header.is_control:
            for record in records(batch, header=header):
                newest[record.key or b""] = record.value
    return newest


def _replay_groups(log: Log, coordinator: GroupCoordinator, now: Now) -> None:
    partition = log.key[1]
    for header, batch in scan(log):
        if header.is_control:
            marker = EndMarker.parse(batch)
            if marker is not None:
                coordinator.replay_marker(partition, marker.producer_id, marker.commit)
            continue
        producer_id = header.producer_id if header.is_transactional else -1
        for record in records(batch, header=header):
            coordinator.replay(
                partition,
                record.key or b"",
                record.value,
                header.base_offset + record.offset_delta,
                now,
                producer_id,
            )


def scan(log: Log) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of a log from its beginning to its end; raises `LogOffline`."""
    log.refuse_offline()
    offset = log.log_start
    while offset < log.end:
        found = log.read(offset, LOAD_BYTES, log.end)
        if not found:
            return
        for part in found:
            view = memoryview(part)
            for position, header in batches(view):
                yield header, view[position : position + header.length]
                offset = header.last_offset + 1
