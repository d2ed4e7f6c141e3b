"""The broker without sockets: topics, logs and coordinators, put together.

A call is handled to its end on the one thread that owns this object. What it changes goes through
`commit`: one journal entry, visible in memory at once. Its reply is parked until the journal position at
which it was computed is durable, whatever the reply says: a duplicate, an error or a read may rest on
something that a power loss could still take back.

Time comes in as an argument everywhere, and the disk is a port, so a simulator can drive the same code:
`handle(call)`, `flush(now)`, `tick(now)`.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from dualwrite.broker.call import HANG_UP, Call, Connection, Rights
from dualwrite.broker.chores import Chores
from dualwrite.broker.clock import Now
from dualwrite.broker.cluster import CONFIGURED, Cluster
from dualwrite.broker.cluster import META_KINDS as CLUSTER_KINDS
from dualwrite.broker.groups.coordinator import GroupCoordinator
from dualwrite.broker.groups.decision import GroupDecision
from dualwrite.broker.handlers import Api, served_apis
from dualwrite.broker.internal_topics import InternalTopics
from dualwrite.broker.producers.verdicts import Origin, Refuse
from dualwrite.broker.security.authorizer import META_KINDS as ACL_KINDS
from dualwrite.broker.security.authorizer import Authorizer, parse_super_users
from dualwrite.broker.security.users import META_KINDS as USER_KINDS
from dualwrite.broker.security.users import Users
from dualwrite.broker.settings import SETTINGS, Settings
from dualwrite.broker.storage.disk import Disk
from dualwrite.broker.storage.entry import (
    Append,
    CreateLog,
    DeleteLog,
    Entry,
    Item,
    Meta,
    PartitionKey,
)
from dualwrite.broker.storage.errors import DiskFull
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.settings import LogSettings, StorageSettings
from dualwrite.broker.storage.storage import Storage
from dualwrite.broker.topic_creation import Refused
from dualwrite.broker.topics import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    MetaRecord,
    Topic,
    Topics,
    created,
)
from dualwrite.broker.transactions.coordinator import (
    Availability,
    Coordinator,
    CoordinatorSettings,
)
from dualwrite.broker.transactions.decision import Decision
from dualwrite.broker.transactions.state import PartitionRef, Transaction
from dualwrite.broker.unsent import Unsent
from dualwrite.broker.waiting import Waiter, Waiting
from dualwrite.wire.error_codes import ErrorCode

log = logging.getLogger("dualwrite.broker")

CHECKPOINT_LOOK_MS: Final = 1_000


class _TimeRules(NamedTuple):
    """What a topic's settings say of timestamps; looked at for every batch."""

    is_append_time: bool
    before_max_ms: int
    after_max_ms: int


class Node:
    """All state of one broker. Use `Node.open`."""

    def __init__(self, settings: Settings, *, two_phase_by_default: bool = True) -> None:
        self.settings = settings
        self.cluster = Cluster()
        self.topics = Topics(settings)
        self.users = Users()
        self.authorizer = Authorizer(
            enabled=bool(settings["authorizer.enable"]),
            super_users=parse_super_users(settings["super.users"]),
        )
        self.rights: Rights = self.authorizer
        self.apis: dict[int, Api] = dict(served_apis())
        self.id: int = settings["node.id"]
        self.endpoints: dict[str, tuple[str, int]] = {}
        chosen = settings["transaction.two.phase.commit.enable"]
        self.allows_two_phase: bool = two_phase_by_default if chosen is None else chosen
        self.transactions = Coordinator(
            CoordinatorSettings(
                two_phase_enabled=self.allows_two_phase,
                transaction_version=settings["transaction.version"],
                max_timeout_ms=settings["transaction.max.timeout.ms"],
                id_expiration_ms=settings["transactional.id.expiration.ms"],
                epoch_max=settings["producer.epoch.max"],
                ids_per_owner_max=settings["max.transactional.ids.per.principal"],
                two_phase_per_owner_max=settings["max.open.two.phase.transactions.per.principal"],
            ),
            self.cluster.producer_ids,
            self._availability,
        )
        self.groups = GroupCoordinator(settings, self.topics)
        self.storage: Storage
        self._disk: Disk
        self._internal: InternalTopics
        self._is_open = False  # the logs are there
        self._log_settings: dict[bytes, LogSettings] = {}
        self._time_rules: dict[bytes, _TimeRules] = {}
        self._parked: deque[tuple[int, Call[Any], Any]] = deque()
        self._touched: set[PartitionKey] = set()
        self._waiting = Waiting()
        self.unsent = Unsent(settings["queued.max.response.bytes"])
        self._chores = Chores()
        self._checkpointing: Iterator[None] | None = None
        self._meta_owners: dict[str, Callable[[MetaRecord], None]] = {
            **dict.fromkeys(CLUSTER_KINDS, self.cluster.replay),
            **dict.fromkeys(ACL_KINDS, self.authorizer.replay_meta),
            **dict.fromkeys(USER_KINDS, self.users.replay_meta),
        }

    @classmethod
    def open(
        cls, disk: Disk, settings: Settings, wall_ms: int, *, two_phase_by_default: bool = True
    ) -> "Node":
        """Recover what `disk` holds and start a new life on it. Running time goes on at
        `node.storage.steady_ms`."""
        node = cls(settings, two_phase_by_default=two_phase_by_default)
        node._disk = disk
        node.storage = Storage.open(
            disk,
            StorageSettings(
                journal_file_bytes=settings["journal.file.bytes"],
                reserve_bytes=settings["journal.reserve.bytes"],
                checkpoint_bytes=settings["checkpoint.journal.bytes"],
                checkpoint_ms=settings["checkpoint.interval.ms"],
            ),
            node._replay_payload,
        )
        now = Now(wall_ms, node.storage.steady_ms)
        node._start(now, disk.random_bytes(64))
        return node

    def _start(self, now: Now, chance: bytes) -> None:
        self._is_open = True
        for topic in self.topics:
            self._configure(topic)
        metas = self.cluster.starting(self.settings["cluster.id"], now.wall_ms, chance)
        items: Entry = []
        for number, name in enumerate(sorted(INTERNAL_TOPICS)):
            if self.topics.get(name) is None:
                begin = 20 + 16 * number
                topic = self._internal_topic(name, chance[begin : begin + 16])
                items += [CreateLog((topic.id, index)) for index in range(topic.partitions)]
                metas.append(created(topic))
        self.commit(items, now, metas)
        self._internal = InternalTopics(self.topics)
        self._internal.load_transactions(self.storage, self.transactions)
        self._internal.load_groups(self.storage, self.groups, now)
        self._finish_decided(now)
        self.groups.loaded(now)
        self.storage.flush()
        if self.storage.checkpoint_due(now):
            # Here, not by and by: whoever dies early again and again has less to replay each time.
            self._checkpoint_whole("started")
        self._begin_chores(now)

    def _internal_topic(self, name: str, topic_id: bytes) -> Topic:
        prefix = "transaction.state.log" if name == "__transaction_state" else "offsets.topic"
        return Topic(
            name,
            topic_id,
            self.settings[f"{prefix}.num.partitions"],
            {
                "cleanup.policy": ["compact"],
                "segment.bytes": self.settings[f"{prefix}.segment.bytes"],
            },
        )

    def close(self) -> None:
        """Leave a checkpoint behind, so that the next start has nothing to replay."""
        self._checkpoint_whole("stopped")
        self.storage.close()

    def _checkpoint_whole(self, what: str) -> None:
        try:
            self.storage.flush()
            for _ in self._checkpointing or ():
                pass
            self.storage.checkpoint(self._snapshot())
        except DiskFull as error:
            # Whatever was acknowledged is in the journal.
            log.warning("%s without a checkpoint: %s", what, error)

    # Calls

    def handle(self, call: Call[Any]) -> bool:
        """Serve a call; False if its answer comes later through `answer`."""
        response = self.apis[call.key].serve(self, call)
        if response is None:
            return False
        self.answer(call, response)
        return True

    def answer(self, call: Call[Any], response: Any) -> None:
        """Send a response as soon as everything that it may rest on is durable."""
        self._parked.append((self.storage.position, call, response))

    def hang_up(self, call: Call[Any]) -> None:
        """Close the connection in place of an answer."""
        self.answer(call, HANG_UP)

    def wait(
        self,
        call: Call[Any],
        keys: Iterable[PartitionKey],
        deadline_ms: int,
        attempt: Callable[[Now, bool], Any],
    ) -> None:
        """Try again when one of the logs has moved, and for the last time at the deadline."""
        self._waiting.add(Waiter(call, frozenset(keys), deadline_ms, attempt))

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._waiting.forget(connection)

    def flush(self, now: Now) -> None:
        """Make everything durable that was committed, then release the replies that waited for it."""
        if self.storage.position > self.storage.durable:
            self.storage.flush()
        self.release(now)

    def release(self, now: Now) -> None:
        """Deliver the replies that rest on nothing but what is durable, and wake who waits for it."""
        storage = self.storage
        if self._touched:
            touched = self._touched
            if storage.position == storage.durable:
                self._touched = set()
            for call, response in self._waiting.touched(touched, now):
                self.answer(call, response)
        durable = storage.durable
        parked = self._parked
        while parked and parked[0][0] <= durable:
            _, call, response = parked.popleft()
            call.connection.deliver(call, response)

    def tick(self, now: Now) -> None:
        """Do what is due. The caller flushes afterwards."""
        for call, response in self._waiting.overdue(now):
            self.answer(call, response)
        while (due_ms := self.groups.next_deadline_ms()) is not None and due_ms <= now.steady_ms:
            for decision in self.groups.tick(now):
                self.settle(decision, now)
        self._chores.run_due(now)

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do, in running time."""
        due_ms = self._chores.next_ms()
        for other_ms in (self._waiting.next_deadline_ms(), self.groups.next_deadline_ms()):
            if other_ms is not None and other_ms < due_ms:
                due_ms = other_ms
        return due_ms

    # Chores

    def _begin_chores(self, now: Now) -> None:
        settings = self.settings
        for name, run in (
            (
                "transaction.abort.timed.out.transaction.cleanup.interval.ms",
                self._abort_timed_out,
            ),
            ("transaction.remove.expired.transaction.cleanup.interval.ms", self._expire_ids),
            ("producer.id.expiration.check.interval.ms", self._expire_producers),
            ("log.retention.check.interval.ms", self._retain),
            ("log.cleaner.backoff.ms", self.storage_step),
        ):
            self._chores.add(settings[name], run, now)
        self._chores.add(CHECKPOINT_LOOK_MS, self._checkpoint, now)

    def _abort_timed_out(self, now: Now) -> bool:
        return self._execute_all(self.transactions.abort_timed_out(now), now)

    def _expire_ids(self, now: Now) -> bool:
        decision = self.transactions.expire_ids(now)
        records = tuple(r for r in decision.records if self._is_served(r))
        self.execute(decision._replace(records=records), now)
        return bool(records)

    def _execute_all(self, decisions: Iterable[Decision], now: Now) -> bool:
        """Carry out what no client has asked for; says whether there was anything to do."""
        possible = [decision for decision in decisions if self._is_served(decision.records[0])]
        for decision in possible:
            self.execute(decision, now)
        return bool(possible)

    def _is_served(self, transaction: Transaction) -> bool:
        """Whether anything can be written about an id; if not, it holds up no other."""
        return self.transaction_error(transaction.transactional_id) is ErrorCode.NONE

    def _expire_producers(self, now: Now) -> bool:
        for log in self.storage.logs.values():
            log.producers.expire(now)
        return False

    def _retain(self, now: Now) -> bool:
        self.storage.run_retention(now)
        return False

    def storage_step(self, now: Now) -> bool:
        """One short step of compaction."""
        return self.storage.run_compaction(now)

    def _checkpoint(self, now: Now) -> bool:
        """One short step, so that clients are served between the syncs of many segments."""
        if self._checkpointing is None:
            if self.storage.is_full:
                self.storage.recheck_space()
            if not self.storage.checkpoint_due(now):
                return False
            self._checkpointing = self.storage.checkpoint_steps(self._snapshot)
        try:
            next(self._checkpointing)
        except StopIteration:
            self._checkpointing = None
        except DiskFull as error:
            log.warning("checkpoint put off: %s", error)
            self._checkpointing = None
        return self._checkpointing is not None

    # Changes

    def commit(self, items: list[Item], now: Now, metas: Iterable[MetaRecord] = ()) -> None:
        """Add one atomic entry to the journal and apply it in memory."""
        records = list(metas)
        reservation = self.cluster.reservation()
        if reservation is not None:
            records.insert(0, reservation)
        for record in records:
            items.append(Meta(json.dumps(record, separators=(",", ":")).encode()))
        self.storage.add(items, now)
        for record in records:
            self._replay_record(record)
        for item in items:
            if type(item) is Append or type(item) is DeleteLog:
                self._touched.add(item.key)

    def execute(self, decision: Decision, now: Now, items: Iterable[Item] = ()) -> None:
        """Carry out what the transaction coordinator decided, with `items`, as one entry."""
        internal = self._internal
        entry = internal.transaction_items(decision.records, now) if decision.records else []
        if decision.markers:
            entry += internal.marker_items(decision.markers, self.cluster.coordinator_epoch, now)
        entry += items
        if entry or self.cluster.reservation() is not None:
            self.commit(entry, now)
        for record in decision.records:
            self.transactions.replay(record)
        for marker in decision.markers:
            for ref in marker.partitions:
                if ref.topic == CONSUMER_OFFSETS:
                    self.groups.replay_marker(ref.partition, marker.producer_id, marker.commit)

    def settle(self, decision: GroupDecision, now: Now) -> ErrorCode:
        """Carry out what the group coordinator decided, as one entry, and answer whom it answers.

        If the log refuses the offsets of a transaction, nothing changes, nobody is answered, and
        the code says why. Whoever sends such offsets has just asked the transaction coordinator.
        """
        if decision.records:
            item = self._internal.group_item(decision, now)
            found = self.storage.logs[item.key]
            if found.offline is not None:
                return ErrorCode.NOT_COORDINATOR
            if decision.producer is not None:
                assert item.header is not None
                verdict = found.producers.check(
                    item.header, origin=Origin.COORDINATOR, verified=True
                )
                if isinstance(verdict, Refuse):
                    return verdict.code
            self.commit([item], now)
            producer_id = decision.producer[0] if decision.producer else -1
            for number, record in enumerate(decision.records):
                self.groups.replay(
                    item.key[1],
                    record.key,
                    record.value,
                    item.base_offset + number,
                    now,
                    producer_id,
                )
        for call, response in decision.replies:
            self.answer(call, response)
        return ErrorCode.NONE

    def group_error(self, group: str, *, writes: bool = True) -> ErrorCode:
        """Why a group can't be served now; `writes`: something will be written about it."""
        found = self.storage.logs[self._internal.group_key(group)]
        if found.offline is not None:
            return ErrorCode.NOT_COORDINATOR
        if writes and self.storage.is_full:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def offsets_partition(self, group: str) -> PartitionRef:
        """Where a group's offsets are, as a transaction names it."""
        return PartitionRef(CONSUMER_OFFSETS, self._internal.group_key(group)[1])

    def knows_all_transactions(self) -> bool:
        """Whether the coordinator could say of any producer id that it has nothing open."""
        return self._internal.has_all_transactions(self.storage)

    def _finish_decided(self, now: Now) -> None:
        """Go on with transactions that waited for a partition which is back, or gone."""
        self._execute_all(self.transactions.complete_decided(now), now)

    def _availability(self, ref: PartitionRef) -> Availability:
        found = self.find_log(ref.topic, ref.partition)
        if found is None:
            return Availability.GONE
        return Availability.ONLINE if found.offline is None else Availability.OFFLINE

    def transaction_error(self, transactional_id: str, *, begins: bool = False) -> ErrorCode:
        """Why a transactional id can't be served now; `begins`: more will be written for it."""
        found = self.storage.logs[self._internal.state_key(transactional_id)]
        if found.offline is not None:
            return ErrorCode.NOT_COORDINATOR
        if begins and self.storage.is_full:
            # What is left of the disk is for ending transactions.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    # Topics

    def log_of(self, topic: Topic, partition: int) -> Log | None:
        """The log of a partition; None if there is no such partition."""
        return self.storage.logs.get((topic.id, partition))

    def find_log(self, name: str, partition: int) -> Log | None:
        """The log of a partition by its topic's name."""
        topic = self.topics.get(name)
        return None if topic is None else self.storage.logs.get((topic.id, partition))

    def create_topic(self, topic: Topic, now: Now) -> None:
        """Create a topic that was checked before."""
        items: list[Item] = [CreateLog((topic.id, index)) for index in range(topic.partitions)]
        self.commit(items, now, [created(topic)])

    def create_partitions(self, topic: Topic, count: int, now: Now) -> None:
        """Let a topic grow to `count` partitions."""
        items: list[Item] = [CreateLog((topic.id, i)) for i in range(topic.partitions, count)]
        record = {"kind": "partitions_created", "name": topic.name, "partitions": count}
        self.commit(items, now, [record])

    def new_topic_id(self) -> bytes:
        return self._disk.random_bytes(16)

    def refuse_when_full(self) -> None:
        """Raise what a client is told that asks for more on a full disk."""
        if self.storage.is_full:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    def delete_topic(self, topic: Topic, now: Now) -> None:
        """Delete a topic with everything in it."""
        for decision in self.groups.topic_deleted(topic.name, now):
            self.settle(decision, now)
        items: list[Item] = [DeleteLog((topic.id, index)) for index in range(topic.partitions)]
        self.commit(items, now, [{"kind": "topic_deleted", "id": topic.id.hex()}])
        self._finish_decided(now)

    def endpoint(self, call: Call[Any]) -> tuple[str, int]:
        """Where the sender of a call is told to connect to."""
        return self.endpoints.get(call.connection.listener, ("", -1))

    def is_set(self, name: str) -> bool:
        """Whether somebody set a broker setting."""
        return name in self.settings.explicit or name in self.settings.dynamic

    def uses_append_time(self, topic: Topic) -> bool:
        return self._time_rules[topic.id].is_append_time

    def check_timestamp(self, topic: Topic, timestamp_ms: int, now: Now) -> str | None:
        """Why the largest timestamp of a batch is refused, if it is."""
        rules = self._time_rules[topic.id]
        if rules.is_append_time or timestamp_ms < 0:
            return None
        ahead_ms = timestamp_ms - now.wall_ms
        if ahead_ms > rules.after_max_ms:
            return f"timestamp {timestamp_ms} lies too far in the future"
        if -ahead_ms > rules.before_max_ms:
            return f"timestamp {timestamp_ms} lies too far in the past"
        return None

    def _configure(self, topic: Topic) -> None:
        """Give the topic's logs the settings in force; called when either has changed."""
        shared = self._log_settings.setdefault(topic.id, LogSettings())

        def value(key: str) -> Any:
            return self.topics.config(topic, key)

        policy = value("cleanup.policy")
        shared.segment_bytes = value("segment.bytes")
        shared.retention_ms = value("retention.ms")
        shared.retention_bytes = value("retention.bytes")
        shared.compact = "compact" in policy
        shared.delete = "delete" in policy
        shared.min_compaction_lag_ms = value("min.compaction.lag.ms")
        shared.max_compaction_lag_ms = value("max.compaction.lag.ms")
        shared.segment_ms = value("segment.ms")
        if shared.compact:
            # KIP-354: only a closed segment can be compacted in time.
            shared.segment_ms = min(shared.segment_ms, shared.max_compaction_lag_ms)
        shared.delete_retention_ms = value("delete.retention.ms")
        shared.min_cleanable_dirty_ratio = value("min.cleanable.dirty.ratio")
        shared.max_message_bytes = value("max.message.bytes")
        self._time_rules[topic.id] = _TimeRules(
            value("message.timestamp.type") == "LogAppendTime",
            value("message.timestamp.before.max.ms"),
            value("message.timestamp.after.max.ms"),
        )
        expiration_ms: int = self.settings["producer.id.expiration.ms"]
        for index in range(topic.partitions):
            log = self.storage.logs.get((topic.id, index))
            if log is not None:
                log.settings = shared
                log.producers.expiration_ms = expiration_ms

    def _configure_broker(self) -> None:
        configs = self.cluster.configs
        self.settings.dynamic = {name: SETTINGS[name].parse(v) for name, v in configs.items()}
        if self._is_open:
            for topic in self.topics:
                self._configure(topic)

    @property
    def data_dir(self) -> str:
        """Where the data is, for people."""
        return getattr(self._disk, "path", "memory")

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    # Meta records

    def _replay_payload(self, payload: bytes) -> None:
        """A meta record of the journal, or a checkpoint's list of them."""
        content = json.loads(payload)
        for record in content if isinstance(content, list) else [content]:
            self._replay_record(record)

    def _replay_record(self, record: MetaRecord) -> None:
        owner = self._meta_owners.get(record["kind"])
        if owner is not None:
            owner(record)
            if record["kind"] == CONFIGURED:
                self._configure_broker()
            return
        topic = self.topics.replay(record)
        if self.topics.by_id(topic.id) is None:
            self._log_settings.pop(topic.id, None)
            self._time_rules.pop(topic.id, None)
        elif self._is_open:
            self._configure(topic)

    def _snapshot(self) -> bytes:
        records = [
            *self.cluster.meta_records(),
            *self.topics.snapshot(),
            *self.authorizer.meta_records(),
            *self.users.meta_records(),
        ]
        return json.dumps(records, separators=(",", ":")).encode()
