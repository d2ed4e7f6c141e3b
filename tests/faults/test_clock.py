"""The wall clock of a live broker jumps: it labels records, and nothing ends or vanishes by it."""

import random
import threading
import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TransactionAdmin, TwoPhaseProducer
from dualwrite.broker import BrokerProcess
from dualwrite.pytest_plugin import read_topic
from tests.faults.jumping_clock import CHORES, HOUR, JUMPS, Clock, broker_command
from tests.faults.random_acts import act_for

CHORE_MS = 100
RECORDS = 40
SEED = 20_261_118
JUMPING_SECONDS = 2


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path / "clock")


@pytest.fixture
def broker(clock, tmp_path):
    settings = {**dict.fromkeys(CHORES, CHORE_MS), "log.segment.bytes": 1024}
    with BrokerProcess(tmp_path / "data", settings=settings, command=broker_command(clock)) as made:
        yield made


class Member:
    """A consumer in a group that polls all the time and counts what happens to its partitions."""

    def __init__(self, bootstrap, topic):
        self.changes = []
        self._is_assigned = threading.Event()
        self._over = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "members", "session.timeout.ms": 30_000}
        )
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost
        )
        self._thread = threading.Thread(target=self._poll)

    def _assigned(self, *_):
        self.changes.append("assigned")
        self._is_assigned.set()

    def _lost(self, *_):
        self.changes.append("lost")

    def _poll(self):
        while not self._over.is_set():
            self._consumer.poll(0.1)

    def __enter__(self):
        self._thread.start()
        assert self._is_assigned.wait(60)
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._consumer.close()


class Life:
    """Everything in the broker that has to do with time."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        stamped = NewTopic("stamped", 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        for future in self.admin.create_topics([NewTopic("kept", 1, 1), stamped]).values():
            future.result(30)
        self.plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):
            self.plain.produce("kept", f"{number:0200d}", partition=0)
            assert self.plain.flush(30) == 0  # a batch each, so that there are many segments
        self._commit_offsets_of_an_empty_group()
        self.ordinary = self._producer("ordinary", {"transaction.timeout.ms": 120_000})
        self.prepared = self._producer("prepared", {"transaction.two.phase.commit.enable": True})
        for producer in (self.ordinary, self.prepared):
            producer.init_transactions(timeout=60)
            producer.begin_transaction()
            producer.produce("written", b"x", partition=0)
            producer.flush()
        self.state = self.prepared.prepare_transaction()

    def _producer(self, name, config):
        return TwoPhaseProducer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": name, **config}
        )

    def _commit_offsets_of_an_empty_group(self):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "empty"})
        consumer.commit(offsets=[TopicPartition("kept", 0, 7)], asynchronous=False)
        consumer.close()

    def append_time_ms(self):
        """What the broker's wall clock says, by the timestamp that it gives to a record."""
        found = []
        self.plain.produce("stamped", b"x", on_delivery=lambda _, m: found.append(m.timestamp()))
        assert self.plain.flush(30) == 0
        return found[0][1]

    def check(self, when):
        """Nothing has ended, nothing has gone."""
        with TransactionAdmin({"bootstrap.servers": self.bootstrap}) as admin:
            found = admin.describe_transactions(["ordinary", "prepared"])
        assert {name: d.state for name, d in found.items()} == {
            "ordinary": "Ongoing",
            "prepared": "Ongoing",
        }, when
        kept = read_topic("kept", self.bootstrap)
        assert [int(m.value()) for m in kept] == list(range(RECORDS)), when
        group = ConsumerGroupTopicPartitions("empty")
        offsets = self.admin.list_consumer_group_offsets([group])["empty"].result(30)
        assert [p.offset for p in offsets.topic_partitions] == [7], when

    def finish(self):
        """What was open can be ended as if nothing had happened."""
        self.ordinary.commit_transaction()
        assert self.prepared.complete_transaction(self.state) == "committed"
        self.close()
        assert len(read_topic("written", self.bootstrap)) == 2

    def close(self):
        self.ordinary.close()
        self.prepared.close()


def jump_all_the_time(clock, life):
    """Ten jumps a second for a while, beside writes and whole rounds of every chore."""
    acts = {
        "jump": ((0.1, 0.1), lambda chance: clock.set(chance.choice([*JUMPS.values()]))),
        "write": ((0, 0.2), lambda chance: life.append_time_ms()),
        "chores": ((0, 0), lambda chance: clock.let_chores_run()),
    }
    act_for(JUMPING_SECONDS, SEED, acts)
    clock.set(0)
    clock.let_chores_run()


@pytest.mark.slow
def test_jumps_of_the_wall_clock_end_and_delete_nothing(broker, clock):
    print(f"seed {SEED}")
    life = Life(broker.bootstrap_servers)
    with Member(broker.bootstrap_servers, "kept") as member:
        for when, seconds in JUMPS.items():
            clock.set(seconds)
            assert abs(life.append_time_ms() / 1000 - time.time() - seconds) < HOUR / 2, when
            clock.let_chores_run()
            life.check(when)
            clock.set(0)
            clock.let_chores_run()
            life.check(f"back from {when}")
        chance = random.Random(SEED)
        for _ in range(20):
            clock.set(chance.choice([*JUMPS.values()]))
            life.append_time_ms()
        clock.set(0)
        clock.let_chores_run()
        life.check("after many jumps")
        jump_all_the_time(clock, life)
        life.check("after jumps all the time")
        assert member.changes == ["assigned"]
    life.finish()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["ten years on", "to 1970"])
def test_a_restart_at_another_time_leaves_transactions_open(broker, clock, when):
    """A machine that boots with a wrong clock."""
    life = Life(broker.bootstrap_servers)
    broker.kill()
    clock.set(JUMPS[when])
    broker.start()
    clock.let_chores_run()
    life.check(when)
    clock.set(0)
    clock.let_chores_run()
    life.check(f"back from {when}")
    life.finish()
