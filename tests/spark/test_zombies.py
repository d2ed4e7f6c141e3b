"""Attempts that should be dead and are not, against a real broker and without Spark."""

import pytest

from dualwrite import ConfigurationError, Fenced, HeuristicAbort, TransactionAdmin
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import BrokerProcess
from dualwrite.errors import DualWriteError
from dualwrite.failures import AbortableError
from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.ledger import Decision, Superseded, deciding
from dualwrite.recipes.spark.names import slot_id
from dualwrite.recipes.spark.reports import TaskReport, join
from dualwrite.recipes.spark.sql_log import SqlDecisionLog
from dualwrite.recipes.spark.topic_log import TopicDecisionLog
from dualwrite.recipes.spark.transactions import TwoPhaseTransactions
from tests.spark import kafka

QUERY = "query:q"


class Sink:
    """The parts of a sink in one process, as a driver and its tasks would have them."""

    def __init__(self, servers, name, token="driver"):
        self.servers, self.topic = servers, f"{name}-out"
        config = {"bootstrap.servers": servers}
        self.transactions = TwoPhaseTransactions(name, config)
        self.log = TopicDecisionLog(config, name)
        self.coordinator = Coordinator(name, token, self.transactions, self.log)

    def begin(self, partition, attempt_number=0):
        return self.transactions.begin(partition, attempt_number)

    def send(self, transaction, value):
        transaction.send(self.topic, [(None, str(value).encode(), None, 0)], -1)

    def write(self, attempt, partition, value, batch=0, attempt_number=0):
        transaction = self.begin(partition, attempt_number)
        self.send(transaction, value)
        participant = transaction.prepare()
        transaction.close()
        return self.report(attempt, partition, participant, batch)

    def report(self, attempt, partition, participant, batch=0):
        return TaskReport(
            attempt=attempt.nonce, work=QUERY, batch=batch, partition=partition, rows=1,
            participant=participant,
        )  # fmt: skip

    def close(self):
        self.log.close()


def decision_of(joined):
    return Decision(
        work=joined.work, batch=joined.batch, attempt=joined.attempt,
        participants=joined.participants,
    )  # fmt: skip


@pytest.fixture
def make_sink(servers, name):
    made = []

    def make(token="driver"):
        made.append(Sink(servers, name, token))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(make_sink):
    return make_sink()


def test_a_task_that_wakes_before_its_init_harms_nothing_prepared(sink, servers, name):
    attempt = sink.coordinator.open()
    report = sink.write(attempt, 0, 1)

    zombie = sink.begin(0)
    sink.send(zombie, 99)
    zombie.prepare()
    zombie.close()
    sink.coordinator.commit([report], 0)

    assert zombie.busy == 1
    assert kafka.values(servers, sink.topic) == [1]
    assert kafka.open_ids(servers, name) == []


def test_a_task_that_wakes_after_its_init_is_fenced_by_its_successor(sink, servers, name):
    attempt = sink.coordinator.open()
    zombie = sink.begin(0)
    report = sink.write(attempt, 0, 1)

    def wake():
        sink.send(zombie, 99)
        zombie.prepare()

    with pytest.raises((Fenced, AbortableError)):
        wake()
    zombie.close()
    sink.coordinator.commit([report], 0)

    assert kafka.values(servers, sink.topic) == [1]


def test_a_task_that_wakes_after_its_successor_was_decided_is_swept_by_the_next_batch(
    sink, servers, name
):
    attempt = sink.coordinator.open()
    sink.coordinator.commit([sink.write(attempt, 0, 1)], 0)
    zombie = sink.begin(0)
    sink.send(zombie, 99)
    zombie.prepare()
    zombie.close()

    assert sink.coordinator.open().aborted == 1
    assert kafka.values(servers, sink.topic) == [1]
    assert kafka.open_ids(servers, name) == []


def test_the_loser_of_a_speculative_race_is_aborted_with_the_commit(sink, servers, name):
    attempt = sink.coordinator.open()
    sink.write(attempt, 0, 1)
    winner = sink.write(attempt, 0, 1, attempt_number=1)
    sink.coordinator.commit([winner], 0)

    assert kafka.values(servers, sink.topic) == [1]
    assert kafka.open_ids(servers, name) == []


def test_a_second_attempt_leaves_the_first_its_slot(sink, servers, name):
    """Speculation: the first is slow, and may still be the one that Spark takes."""
    attempt = sink.coordinator.open()
    first = sink.begin(0)
    sink.write(attempt, 0, 1, attempt_number=1)
    sink.send(first, 1)
    report = sink.report(attempt, 0, first.prepare())
    first.close()
    sink.coordinator.commit([report], 0)

    assert kafka.values(servers, sink.topic) == [1]
    assert kafka.open_ids(servers, name) == []


def test_a_live_old_driver_decides_nothing_and_is_refused_for_ever(make_sink, servers, name):
    old, new = make_sink("old"), make_sink("new")
    attempt = old.coordinator.open()
    reports = [old.write(attempt, p, p) for p in range(2)]
    newer = new.coordinator.open()
    assert newer.run == attempt.run + 1

    with pytest.raises(Superseded):
        old.coordinator.commit(reports, 0)
    with pytest.raises(Superseded, match="newer driver"):
        old.coordinator.open()
    new.coordinator.commit([new.write(newer, p, p + 10) for p in range(2)], 0)

    assert kafka.values(servers, new.topic) == [10, 11]
    assert kafka.open_ids(servers, name) == []


def test_an_old_driver_that_has_decided_is_finished_by_the_new_one(make_sink, servers, name):
    old, new = make_sink("old"), make_sink("new")
    attempt = old.coordinator.open()
    joined = join([old.write(attempt, p, p) for p in range(3)], 0)

    def record(decision):
        old.log.update(deciding(decision))
        newer = new.coordinator.open()
        assert newer.skips(QUERY, 0)

    old.coordinator.decide(joined, record)

    assert kafka.values(servers, new.topic) == [0, 1, 2]
    assert kafka.open_ids(servers, name) == []
    assert new.log.read().pending == []


def test_a_failed_task_leaves_its_slot_free(sink, servers, name):
    sink.coordinator.open()
    failed = sink.begin(0)
    sink.send(failed, 99)
    failed._producer.flush()
    failed.close()

    again = sink.begin(0)
    again.close()

    assert again.busy == 0
    assert kafka.open_ids(servers, name) == []


def test_a_partition_without_a_free_slot_says_what_to_do(sink, servers, name):
    sink.coordinator.open()
    for k in range(16):
        orphan = sink.begin(0, attempt_number=k)
        sink.send(orphan, k)
        orphan.prepare()
        orphan.close()

    with pytest.raises(DualWriteError, match="dualwrite spark recover"):
        sink.begin(0)
    assert sink.coordinator.recover().aborted == 16
    assert kafka.open_ids(servers, name) == []


def test_a_decided_transaction_that_was_ended_by_force_is_an_alarm(sink, servers, name):
    attempt = sink.coordinator.open()
    joined = join([sink.write(attempt, p, p) for p in range(2)], 0)

    def record(decision):
        sink.log.update(deciding(decision))
        with TransactionAdmin({"bootstrap.servers": servers}) as admin:
            admin.force_terminate_transaction(slot_id(name, 1, 0))

    with pytest.raises(HeuristicAbort, match=r"1 of 2 decided .*spark\." + name + r"\.1\.0"):
        sink.coordinator.decide(joined, record)
    with pytest.raises(HeuristicAbort):
        sink.coordinator.open()
    sink.coordinator.recover(accept_loss=True)

    assert kafka.values(servers, sink.topic) == [0]
    assert sink.log.read().pending == []


def test_a_decided_transaction_that_somebody_aborted_is_an_alarm(sink, servers, name):
    attempt = sink.coordinator.open()
    joined = join([sink.write(attempt, p, p) for p in range(2)], 0)

    def record(decision):
        sink.log.update(deciding(decision))
        # A program that knows of no decision, and a task that has found the slot free since then.
        stranger = sink.transactions.inspect(slot_id(name, 1, 0))
        stranger.abort()
        stranger.close()
        sink.write(attempt, 1, 99)

    with pytest.raises(HeuristicAbort, match=r"1 of 2 decided .*spark\." + name + r"\.1\.0"):
        sink.coordinator.decide(joined, record)

    assert kafka.values(servers, sink.topic) == [0]
    assert kafka.open_ids(servers, name) == []


def test_a_ledger_that_knows_nothing_of_open_transactions_ends_none(sink, servers, name, tmp_path):
    """Whoever looks for the decisions in the wrong place must not take decided for abandoned."""
    attempt = sink.coordinator.open()
    sink.log.update(deciding(decision_of(join([sink.write(attempt, 0, 1)], 0))))
    elsewhere = SqlDecisionLog(SqlStore(f"sqlite:///{tmp_path}/other.db", create=True), name)
    stranger = Coordinator(name, "stranger", sink.transactions, elsewhere)

    for refused in (stranger.open, stranger.open, stranger.recover, stranger.forget_lost):
        with pytest.raises(ConfigurationError, match=r"may be decided elsewhere.*--decisions"):
            refused()
    assert kafka.open_ids(servers, name) == [slot_id(name, 0, 0)]
    sink.coordinator.open()
    assert kafka.values(servers, sink.topic) == [1]

    sink.write(attempt, 0, 2)
    assert stranger.recover(accept_loss=True).aborted == 1
    elsewhere._store.close()


def test_a_hundred_partitions_and_epochs_that_run_out(name):
    """With six epochs per producer id every slot changes its producer id again and again."""
    process = BrokerProcess(settings={"producer.epoch.max": 6})
    with process as broker:
        sink = Sink(broker.bootstrap_servers, name)
        partitions = 100
        for batch in range(3):
            attempt = sink.coordinator.open()
            reports = [
                sink.write(attempt, p, batch * partitions + p, batch) for p in range(partitions)
            ]
            sink.coordinator.commit(reports, batch)
        producer_ids = set()
        for batch in range(3, 12):
            attempt = sink.coordinator.open()
            report = sink.write(attempt, 0, 10_000 + batch, batch)
            producer_ids.add(report.participant.state.producer_id)
            sink.write(attempt, 0, 99, batch, attempt_number=1)
            sink.coordinator.commit([report], batch)

        assert len(producer_ids) >= 3
        found = kafka.values(broker.bootstrap_servers, sink.topic)
        assert found == [*range(300), *range(10_003, 10_012)]
        assert kafka.open_ids(broker.bootstrap_servers, name) == []
        assert len(kafka.slot_ids(broker.bootstrap_servers, name)) == partitions + 1
        sink.close()


def test_a_broker_killed_after_the_decision_loses_nothing(name):
    with BrokerProcess() as broker:
        sink = Sink(broker.bootstrap_servers, name)
        attempt = sink.coordinator.open()
        joined = join([sink.write(attempt, p, p) for p in range(4)], 0)

        def record(decision):
            sink.log.update(deciding(decision))
            broker.kill()
            broker.restart()

        sink.coordinator.decide(joined, record)

        assert kafka.values(broker.bootstrap_servers, sink.topic) == [0, 1, 2, 3]
        assert kafka.open_ids(broker.bootstrap_servers, name) == []
        sink.close()
