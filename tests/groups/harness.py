"""A group coordinator with a log and a clock, as the node would drive it, but in memory."""

from itertools import count

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.coordinator import GroupCoordinator
from dualwrite.broker.groups.decision import Client
from dualwrite.broker.settings import Settings
from dualwrite.broker.topics import Topics
from dualwrite.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from dualwrite.wire.messages.heartbeat import HeartbeatRequest
from dualwrite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from dualwrite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from dualwrite.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from dualwrite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

WALL_MS = 1_700_000_000_000
PARTITION = 7


def topic_id(number):
    return bytes(15) + bytes([number])


class Broker:
    """Settles decisions at once and keeps their records, so that it can be restarted."""

    def __init__(self, topics=None, **settings):
        self.settings = Settings.of(settings)
        self.topics = Topics(self.settings)
        self.steady_ms = 1_000
        self.wall_skew_ms = 0
        self.log = []  # ("record", key, value, producer id) or ("marker", producer id, commit)
        self.replies = {}
        self._tokens = count()
        for name, partitions in (topics or {"t": 4, "u": 2}).items():
            self.create_topic(name, partitions)
        self.groups = GroupCoordinator(self.settings, self.topics)
        self.groups.loaded(self.now)

    @property
    def now(self):
        return Now(WALL_MS + self.steady_ms + self.wall_skew_ms, self.steady_ms)

    def create_topic(self, name, partitions):
        record = {
            "kind": "topic_created",
            "name": name,
            "id": topic_id(len(self.topics) + 1).hex(),
            "partitions": partitions,
            "configs": {},
        }
        self.topics.replay(record)

    def settle(self, decision):
        producer_id = decision.producer[0] if decision.producer else -1
        for record in decision.records:
            self.groups.replay(
                PARTITION, record.key, record.value, len(self.log), self.now, producer_id
            )
            self.log.append(("record", record.key, record.value, producer_id))
        for token, response in decision.replies:
            assert token not in self.replies, "a request was answered twice"
            self.replies[token] = response

    def end_transaction(self, producer_id, commit):
        self.groups.replay_marker(PARTITION, producer_id, commit)
        self.log.append(("marker", producer_id, commit))

    def restart(self):
        """A new coordinator that knows only the log; parked requests are lost."""
        self.groups = GroupCoordinator(self.settings, self.topics)
        for offset, entry in enumerate(self.log):
            match entry:
                case ("record", key, value, producer_id):
                    self.groups.replay(PARTITION, key, value, offset, self.now, producer_id)
                case ("marker", producer_id, commit):
                    self.groups.replay_marker(PARTITION, producer_id, commit)
        self.groups.loaded(self.now)

    def run(self):
        """Handle everything that is due."""
        while (at := self.groups.next_deadline_ms()) is not None and at <= self.steady_ms:
            for decision in self.groups.tick(self.now):
                self.settle(decision)

    def pass_time(self, ms):
        """Let time go by, handling each deadline when it comes."""
        end = self.steady_ms + ms
        while (at := self.groups.next_deadline_ms()) is not None and at <= end:
            self.steady_ms = max(self.steady_ms, at)
            self.run()
        self.steady_ms = end

    def ask(self, method, *args, **kwargs):
        """Send a request; the token under which the reply comes, now or later."""
        token = next(self._tokens)
        self.settle(getattr(self.groups, method)(*args, token=token, now=self.now, **kwargs))
        return token

    def reply(self, token):
        self.run()
        return self.replies[token]

    def is_parked(self, token):
        self.run()
        return token not in self.replies

    # Requests in short

    def join(
        self,
        member="",
        group="g",
        version=9,
        instance=None,
        protocols=(("range", b"r"),),
        session=10_000,
        rebalance=60_000,
        type="consumer",
    ):
        request = JoinGroupRequest(
            group,
            session,
            rebalance,
            member,
            instance,
            type,
            [JoinGroupRequestProtocol(name, data) for name, data in protocols],
        )
        return self.ask(
            "join_group",
            request,
            version,
            client=Client("client", "/127.0.0.1"),
            fresh_id=f"{len(self.log)}-{self.steady_ms}-{next(self._tokens)}",
        )

    def newcomer(self, **kwargs):
        """A dynamic member's first join, until it is parked; its token and its member id."""
        member = self.reply(self.join(**kwargs)).member_id
        return self.join(member, **kwargs), member

    def sync(self, member, generation, assignments=None, group="g", **kwargs):
        pairs = [SyncGroupRequestAssignment(m, a) for m, a in (assignments or {}).items()]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            assignments=pairs,
            **kwargs,
        )
        return self.ask("sync_group", request)

    def heartbeat(self, member, generation, group="g", instance=None):
        token = self.ask("heartbeat", HeartbeatRequest(group, generation, member, instance))
        return self.reply(token).error_code

    def leave(self, *members, group="g", version=5):
        identities = [m if isinstance(m, MemberIdentity) else MemberIdentity(m) for m in members]
        request = LeaveGroupRequest(group_id=group, members=identities)
        if version < 3:
            request = LeaveGroupRequest(group_id=group, member_id=members[0])
        return self.reply(self.ask("leave_group", request, version))

    def commit(
        self, offset, member="", generation=-1, group="g", topic="t", partition=0, version=9,
        metadata="", instance=None, **kwargs,
    ):  # fmt: skip
        by_id = self.topics.get(topic).id if version >= 10 else bytes(16)
        part = OffsetCommitRequestPartition(partition, offset, 3, metadata)
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic("" if version >= 10 else topic, by_id, [part])],
            **kwargs,
        )
        response = self.reply(self.ask("offset_commit", request, version))
        return response.topics[0].partitions[0].error_code

    def txn_commit(
        self, offset, producer_id=1, member="", generation=-1, group="g", topic="t", partition=0,
        version=5, instance=None,
    ):  # fmt: skip
        part = TxnOffsetCommitRequestPartition(partition, offset, -1, "")
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group,
            producer_id=producer_id,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[TxnOffsetCommitRequestTopic(topic, bytes(16), [part])],
        )
        response = self.reply(self.ask("txn_offset_commit", request, version))
        return response.topics[0].partitions[0].error_code

    def fetch(self, group="g", topic="t", partition=0, stable=True, member=None, epoch=-1):
        asked = [OffsetFetchRequestTopics(topic, bytes(16), [partition])]
        response = self.groups.offset_fetch(
            OffsetFetchRequestGroup(group, member, epoch, asked), stable
        )
        if response.error_code:
            return response.error_code, -1
        found = response.topics[0].partitions[0]
        return found.error_code, found.committed_offset

    def fetch_all(self, group="g", stable=False):
        response = self.groups.offset_fetch(OffsetFetchRequestGroup(group, topics=None), stable)
        return {
            (topic.name, p.partition_index): (p.error_code, p.committed_offset)
            for topic in response.topics
            for p in topic.partitions
        }

    def beat(
        self, member, epoch, group="g", owned=None, topics=None, regex=None, instance=None,
        rebalance=-1, assignor=None, version=1, visible=lambda name: True,
    ):  # fmt: skip
        held = None
        if owned is not None:
            held = [TopicPartitions(t, sorted(p)) for t, p in owned.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=rebalance,
            subscribed_topic_names=topics,
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=held,
        )
        token = self.ask(
            "consumer_group_heartbeat",
            request,
            version,
            client=Client("client", "/127.0.0.1"),
            fresh_id=f"fresh-{next(self._tokens)}",
            visible=visible,
        )
        return self.reply(token)


class Generation:
    """A classic group that has agreed: `members` in the order of joining, the first one leads."""

    def __init__(self, broker, size=2, group="g", **kwargs):
        joins = []
        for _ in range(size):
            # The first rebalance must wait until all are there.
            joins.append(broker.newcomer(group=group, **kwargs))
            for member in [m for _, m in joins[:-1]]:
                again = broker.join(member, group=group, **kwargs)
                joins = [(again if m == member else t, m) for t, m in joins]
        replies = [broker.reply(token) for token, _ in joins]
        self.members = [member for _, member in joins]
        self.number = replies[0].generation_id
        self.leader = replies[0].leader
        followers = [m for m in self.members if m != self.leader]
        assignments = {m: m.encode() for m in self.members}
        tokens = [broker.sync(m, self.number, group=group) for m in followers]
        tokens.append(broker.sync(self.leader, self.number, assignments, group=group))
        for token in tokens:
            assert broker.reply(token).error_code == 0
