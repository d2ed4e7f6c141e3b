"""The mode for brokers without KIP-939: unique ids, raw EndTxn, and a limit that is noticed."""

import time

import pytest

from dualwrite import ConfigurationError, HeuristicAbort
from dualwrite.broker import BrokerProcess
from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.ledger import deciding
from dualwrite.recipes.spark.options import parse_sink
from dualwrite.recipes.spark.reports import join
from dualwrite.recipes.spark.resumed import ResumedTransactions
from tests.spark import kafka
from tests.spark.test_zombies import Sink


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
    deadline = time.monotonic() + 60
    while kafka.open_ids(servers, name) and time.monotonic() < deadline:
        time.sleep(0.05)

    with pytest.raises(HeuristicAbort, match="2 of 2 decided"):
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
