"""`dualwrite spark` on a sink with something open."""

import json

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from dualwrite import TransactionAdmin
from dualwrite.adapters.sql import SqlStore
from dualwrite.cli import build_app
from dualwrite.recipes.spark.ledger import deciding
from dualwrite.recipes.spark.names import decision_topic, slot_id
from dualwrite.recipes.spark.reports import join
from tests.spark import kafka
from tests.spark.test_zombies import Sink


@pytest.fixture
def sink(servers, name):
    sink = Sink(servers, name)
    yield sink
    sink.close()


@pytest.fixture
def command(servers, name):
    def run(*arguments, exit_code=0):
        whole = ["spark", *arguments, "--sink", name, "--bootstrap-servers", servers]
        done = CliRunner().invoke(build_app(), whole)
        assert done.exit_code == exit_code, done.output
        return done.output

    return run


class Crash(Exception):
    """The driver ends here."""


def crash_after_decision(sink, then=None):
    attempt = sink.coordinator.open()
    joined = join([sink.write(attempt, p, p) for p in range(2)], 0)
    sink.write(attempt, 7, 99)

    def record(decision):
        sink.log.update(deciding(decision))
        if then is not None:
            then()
        raise Crash

    with pytest.raises(Crash):
        sink.coordinator.decide(joined, record)


def test_status_tells_what_recovery_would_do_and_recover_does_it(sink, command, servers, name):
    crash_after_decision(sink)

    before = json.loads(command("status", "--json"))
    assert {o["transactional_id"]: o["outcome"] for o in before["open"]} == {
        slot_id(name, 0, 0): "commit",
        slot_id(name, 1, 0): "commit",
        slot_id(name, 7, 0): "abort",
    }
    assert "pending" in command("status")
    assert json.loads(command("recover", "--json")) == {"run": 2, "finished": 1, "aborted": 1}

    after = json.loads(command("status", "--json"))
    assert (after["open"], after["is_closed"]) == ([], True)
    assert [d["is_done"] for d in after["decisions"]] == [True]
    assert kafka.values(servers, sink.topic) == [0, 1]


def test_forget_lets_a_batch_run_again(sink, command):
    crash_after_decision(sink)
    assert "recover first" in command("forget", exit_code=1)
    command("recover")

    assert json.loads(command("forget", "--query", "q", "--json")) == {"forgotten": 1}
    assert sink.log.read().decisions == {}


@pytest.mark.parametrize(
    ("wrong", "said", "exit_code"),
    [
        (("--query", "query:q"), "there is query:q", 1),
        (("--job", "q"), "there is query:q", 1),
        # Of a shell variable that is not set: it must not mean all.
        (("--query", ""), "the name is empty", 2),
        (("--job", ""), "the name is empty", 2),
    ],
)
def test_forget_of_something_else_names_what_there_is(sink, command, wrong, said, exit_code):
    attempt = sink.coordinator.open()
    sink.coordinator.commit([sink.write(attempt, 0, 1)], 0)

    assert said in command("forget", *wrong, exit_code=exit_code)
    assert list(sink.log.read().decisions) == ["query:q"]


def test_what_was_lost_as_a_whole_can_be_forgotten_and_a_part_cannot(sink, command, servers, name):
    def force(*partitions):
        with TransactionAdmin({"bootstrap.servers": servers}) as admin:
            for partition in partitions:
                admin.force_terminate_transaction(slot_id(name, partition, 0))

    crash_after_decision(sink, lambda: force(0, 1))
    assert "2 of 2 decided" in command("recover", exit_code=1)
    assert json.loads(command("forget", "--lost", "--json")) == {"forgotten": 1}
    assert sink.log.read().decisions == {}


def test_a_part_that_was_lost_is_not_forgotten(sink, command, servers, name):
    def force():
        with TransactionAdmin({"bootstrap.servers": servers}) as admin:
            admin.force_terminate_transaction(slot_id(name, 0, 0))

    crash_after_decision(sink, force)

    assert "1 of 2" in command("forget", "--lost", exit_code=1)
    command("recover", "--accept-loss")
    assert kafka.values(servers, sink.topic) == [1]


def test_decisions_that_are_looked_for_elsewhere_are_not_guessed(
    sink, command, servers, name, tmp_path
):
    crash_after_decision(sink)
    elsewhere = ("--decisions", f"sqlite:///{tmp_path}/elsewhere.db")
    SqlStore(elsewhere[1], create=True).close()

    assert {o["outcome"] for o in json.loads(command("status", *elsewhere, "--json"))["open"]} == {
        "refuse"
    }
    assert "never opened" in command("status", *elsewhere)
    assert "name the same dualwrite.decisions" in command("recover", *elsewhere, exit_code=1)
    command("recover")
    assert kafka.values(servers, sink.topic) == [0, 1]


def test_a_sink_that_never_was_is_told_and_not_made(command, servers, name, tmp_path):
    assert json.loads(command("status", "--json"))["run"] == 0
    assert "never opened, and nothing of it is open" in command("recover")
    assert "forgotten 0" in command("forget")
    assert "forgotten 0" in command("forget", "--lost")
    file = tmp_path / "misspelt.db"
    assert "there is nothing at" in command(
        "status", "--decisions", f"sqlite:///{file}", exit_code=2
    )

    topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics
    assert decision_topic(name) not in topics
    assert not file.exists()


def test_wrong_usage_is_exit_code_2(command):
    command("forget", "--query", "a", "--job", "b", exit_code=2)
    command("status", "--command-config", "does-not-exist", exit_code=2)
