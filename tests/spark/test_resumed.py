"""The mode for brokers without KIP-939: unique ids, raw EndTxn, and a limit that is noticed."""

import json
import re
import time

import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from dualwrite import ConfigurationError, HeuristicAbort
from dualwrite.broker import BrokerProcess
from dualwrite.cli import build_app
from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.ledger import deciding
from dualwrite.recipes.spark.options import parse_sink
from dualwrite.recipes.spark.reports import join
from dualwrite.recipes.spark.resumed import ResumedTransactions
from tests.spark import kafka
from tests.spark.driver import run_pipeline
from tests.spark.faults import left, plant
from tests.spark.test_zombies import Sink

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def broker():
    """A broker that knows nothing of two-phase commit, and ends what is too old at once."""
    settings = {
        "transaction.two.phase.commit.enable": False,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    }
    with BrokerProcess(settings=settings) as process:
        yield process


def resumed(servers, name, **config):
    sink = Sink(servers, name)
    sink.transactions = ResumedTransactions(name, {"bootstrap.servers": servers, **config})
    sink.coordinator = Coordinator(name, "driver", sink.transactions, sink.log)
    return sink


@pytest.fixture
def sink(servers, name):
    sink = resumed(servers, name)
    yield sink
    sink.close()


def test_batches_and_orphans_are_ended_by_their_pairs(sink, servers, name):
    for batch in range(3):
        attempt = sink.coordinator.open()
        reports = [sink.write(attempt, p, 10 * batch + p, batch) for p in range(3)]
        sink.write(attempt, 0, 99, batch)
        sink.coordinator.commit(reports, batch)

    assert kafka.values(servers, sink.topic) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert kafka.open_ids(servers, name) == []


def test_a_decision_in_time_is_finished_by_the_next_driver(sink, servers, name):
    attempt = sink.coordinator.open()
    reports = [sink.write(attempt, p, p) for p in range(2)]
    sink.write(attempt, 2, 99)
    decide_only(sink, reports)

    after = Coordinator(name, "next", sink.transactions, sink.log).open()

    assert after.skips("query:q", 0)
    assert kafka.values(servers, sink.topic) == [0, 1]
    assert kafka.open_ids(servers, name) == []


def test_a_decision_that_comes_too_late_is_an_alarm(servers, name):
    sink = resumed(servers, name, **{"transaction.timeout.ms": 500})
    attempt = sink.coordinator.open()
    decide_only(sink, [sink.write(attempt, p, p) for p in range(2)])
    wait_for_timeouts(servers, name)

    with pytest.raises(HeuristicAbort, match=r"2 of 2 decided .* for partition 0, 1\."):
        sink.coordinator.open()
    assert sink.coordinator.forget_lost() == 1
    attempt = sink.coordinator.open()
    assert not attempt.skips("query:q", 0)
    sink.coordinator.commit([sink.write(attempt, p, p) for p in range(2)], 0)

    assert kafka.values(servers, sink.topic) == [0, 1]
    sink.close()


def test_the_mode_is_chosen_by_its_option(servers, name):
    options = {"kafka.bootstrap.servers": servers, "dualwrite.sink.id": name}
    options |= {"dualwrite.mode": "resume", "kafka.transaction.timeout.ms": "30000"}

    chosen = Engine(parse_sink(options), "token").transactions()

    assert isinstance(chosen, ResumedTransactions)


def test_without_two_phase_commit_the_default_mode_says_what_to_do(servers, name):
    sink = Sink(servers, name)
    sink.coordinator.open()

    with pytest.raises(ConfigurationError, match=r"dualwrite\.mode=resume"):
        sink.begin(0)
    sink.close()


class Stop(Exception):
    """The driver ends here."""


def decide_only(sink, reports):
    def record(decision):
        sink.log.update(deciding(decision))
        raise Stop

    with pytest.raises(Stop):
        sink.coordinator.decide(join(reports, 0), record)


def wait_for_timeouts(servers, name):
    """Until the broker has ended what was open."""
    deadline = time.monotonic() + 60
    while kafka.open_ids(servers, name) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kafka.open_ids(servers, name) == []


class Stream:
    """A query from topic to topic in resume mode."""

    def __init__(self, spark, folder, servers, name, checkpoint):
        self.spark, self.folder, self.servers, self.name = spark, folder, servers, name
        self.checkpoint = checkpoint
        kafka.create_topic(servers, f"{name}-in", 3)
        kafka.create_topic(servers, f"{name}-out", 2)

    def fill(self, values):
        kafka.fill(self.servers, f"{self.name}-in", values, partitions=3)

    def run(self, partitions, **options):
        options["dualwrite.mode"] = "resume"
        run_pipeline(
            self.spark, self.servers, self.name, self.checkpoint, partitions, **options
        ).awaitTermination()

    def die_after_the_decision(self, *faults, **options):
        """Spark lets the batch be given up after a failed commit: that process must die too."""
        for fault in (*faults, ("decided", "self"), ("before_close", "self")):
            plant(self.folder, *fault)
        for _ in range(5):
            # A machine under load can fail a run before the fault does.
            with pytest.raises(PySparkException):
                self.run(2, **options)
            if left(self.folder) == []:
                return
        raise AssertionError(f"not reached: {left(self.folder)}")


@pytest.fixture
def stream(spark, faults_folder, servers, name, tmp_path):
    return Stream(spark, faults_folder, servers, name, tmp_path / "cp")


def test_a_query_that_comes_back_within_the_timeout_writes_every_row_once(stream, servers, name):
    stream.fill(range(30))
    stream.die_after_the_decision(("prepared", "self"))
    assert len(kafka.open_ids(servers, name)) >= 2
    stream.fill(range(30, 50))

    stream.run(3)

    assert kafka.values(servers, f"{name}-out") == list(range(50))
    assert kafka.open_ids(servers, name) == []


def test_a_query_that_comes_back_after_the_timeout_names_what_is_lost(stream, servers, name):
    stream.fill(range(30))
    stream.die_after_the_decision(**{"kafka.transaction.timeout.ms": "4000"})
    wait_for_timeouts(servers, name)

    # Loudly, and again at every start until somebody has looked.
    for _ in range(2):
        with pytest.raises(PySparkException) as raised:
            stream.run(3)
        said = re.sub(r"\s+", " ", str(raised.value))
        assert re.search(r"2 of 2 decided transactions .* for partition 0, 1\.", said), said
    assert kafka.values(servers, f"{name}-out") == []

    command = ["spark", "forget", "--lost", "--mode", "resume", "--json"]
    command += ["--sink", name, "--bootstrap-servers", servers]
    done = CliRunner().invoke(build_app(), command)
    assert (done.exit_code, json.loads(done.output)) == (0, {"forgotten": 1})
    stream.run(3)

    assert kafka.values(servers, f"{name}-out") == list(range(30))
    assert kafka.open_ids(servers, name) == []
