"""Each home of the ledger keeps the same promises."""

import threading

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import text

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker, BrokerProcess
from dualwrite.errors import ConfigurationError, DualWriteError, Fenced, OutcomeUnknown
from dualwrite.prepared import PreparedTxnState
from dualwrite.recipes.spark.ledger import (
    HEAD,
    AlreadyDecided,
    Decision,
    Head,
    Participant,
    Superseded,
    closing,
    deciding,
    encode,
    finishing,
    forgetting,
    opening,
)
from dualwrite.recipes.spark.names import coordinator_id, decision_topic
from dualwrite.recipes.spark.sql_log import SqlDecisionLog
from dualwrite.recipes.spark.topic_log import TRIES, TopicDecisionLog, durability
from dualwrite.recipes.spark.zookeeper_log import ZooKeeperLog
from dualwrite.store import Verdict
from tests.spark import kafka


@pytest.fixture
def sqlite_log(tmp_path):
    logs = []

    def make():
        store = SqlStore(f"sqlite:///{tmp_path}/decisions.db", create=True)
        logs.append(SqlDecisionLog(store, "orders", owns_store=True))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def postgres_log(postgres_url):
    logs = []
    sink = f"s{id(logs)}"

    def make():
        store = SqlStore(postgres_url, create=True)
        logs.append(SqlDecisionLog(store, sink, owns_store=True))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def topic_log():
    logs = []
    with Broker() as broker:

        def make():
            config = {"bootstrap.servers": broker.bootstrap_servers}
            logs.append(TopicDecisionLog(config, "orders"))
            return logs[-1]

        yield make
        for log in logs:
            log.close()


@pytest.fixture
def zookeeper_log(zookeeper):
    logs = []

    def make():
        logs.append(ZooKeeperLog.at(f"zookeeper://{zookeeper.hosts}/test{id(logs)}", "orders"))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture(params=["sqlite_log", "postgres_log", "topic_log", "zookeeper_log"])
def make_log(request):
    """Makes one more handle on the same sink's log, as another process would."""
    return request.getfixturevalue(request.param)


def decision(batch=0, attempt="n1", work="query:q"):
    participants = (Participant("spark.orders.0.0", PreparedTxnState(7, 3)),)
    return Decision(work=work, batch=batch, attempt=attempt, participants=participants)


def test_what_one_handle_decides_another_reads(make_log):
    log = make_log()
    log.update(opening("t", "n1"))
    log.update(deciding(decision()))

    ledger = make_log().read()

    assert ledger.pending == [decision()]
    assert ledger.decided_upto == {"query:q": 0}


def test_an_attempt_that_was_overtaken_cannot_decide(make_log):
    old, new = make_log(), make_log()
    old.update(opening("t", "n1"))
    new.update(opening("t", "n2"))

    with pytest.raises(Superseded):
        old.update(deciding(decision()))
    assert new.read().decisions == {}


def test_a_driver_that_was_overtaken_is_refused_for_ever(make_log):
    old, new = make_log(), make_log()
    old.update(opening("t1", "n1"))
    new.update(opening("t2", "n2"))

    for nonce in ("n3", "n4"):
        with pytest.raises(Superseded, match="newer driver"):
            old.update(opening("t1", nonce))
    assert new.read().head.run == 2


def test_a_closed_attempt_cannot_decide_and_a_decision_survives_closing(make_log):
    log = make_log()
    log.update(opening("t", "n1"))
    log.update(deciding(decision()))
    log.update(closing("n1"))

    assert log.read().pending == [decision()]
    log.update(finishing([decision()]))
    with pytest.raises(Superseded):
        log.update(deciding(decision(batch=1)))


def test_a_batch_is_decided_once(make_log):
    log = make_log()
    log.update(opening("t", "n1"))
    log.update(deciding(decision()))
    log.update(deciding(decision()))
    log.update(finishing([decision()]))
    log.update(opening("t", "n2"))

    with pytest.raises(AlreadyDecided):
        log.update(deciding(decision(attempt="n2")))


def test_an_unfinished_decision_is_not_replaced(make_log):
    """What it names may still be open, and nothing else knows of it."""
    log = make_log()
    log.update(opening("t", "n1"))
    log.update(deciding(decision()))

    with pytest.raises(DualWriteError, match="not finished"):
        log.update(deciding(decision(batch=1)))
    assert log.read().pending == [decision()]


def test_forgetting_takes_only_finished_decisions(make_log):
    log = make_log()
    log.update(opening("t", "n1"))
    log.update(deciding(decision()))
    log.update(deciding(decision(work="job:j")))

    with pytest.raises(Exception, match="recover first"):
        log.update(forgetting())
    log.update(finishing([decision(), decision(work="job:j")]))
    log.update(forgetting("job:j"))

    assert log.read().decided_upto == {"query:q": 0}


def test_of_many_attempts_at_once_exactly_one_decides(make_log):
    logs = [make_log() for _ in range(4)]
    logs[0].update(opening("t", "n"))
    outcomes = []

    def race(log, number):
        try:
            log.update(opening("t", f"n{number}"))
            log.update(deciding(decision(attempt=f"n{number}")))
            outcomes.append(f"n{number}")
        except (Superseded, AlreadyDecided):
            outcomes.append(None)

    threads = [threading.Thread(target=race, args=(log, n)) for n, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(outcomes) == 4
    assert [o for o in outcomes if o] == [logs[0].read().decisions["query:q"].attempt]


@pytest.mark.parametrize("log_name", ["sqlite_log", "postgres_log"])
def test_data_and_decision_commit_together(log_name, request):
    make = request.getfixturevalue(log_name)
    log = make()
    log.update(opening("t", "n1"))
    with log.transaction() as tx:
        tx.connection.execute(text("CREATE TABLE IF NOT EXISTS together (n INTEGER)"))
        tx.connection.execute(text("DELETE FROM together"))

    make().update(opening("t", "n2"))
    with pytest.raises(Superseded), log.transaction() as tx:  # noqa: PT012
        tx.connection.execute(text("INSERT INTO together VALUES (1)"))
        tx.update(deciding(decision()))
    with log.transaction() as tx:
        assert tx.connection.execute(text("SELECT count(*) FROM together")).scalar_one() == 0
        tx.connection.execute(text("INSERT INTO together VALUES (2)"))
        tx.update(deciding(decision(attempt="n2")))

    with log.transaction() as tx:
        assert tx.connection.execute(text("SELECT n FROM together")).scalar_one() == 2
    assert log.read().decided_upto == {"query:q": 0}


def test_a_take_over_between_begin_and_decision_rolls_the_data_back(postgres_log):
    log = postgres_log()
    log.update(opening("t", "n1"))
    with log.transaction() as tx:
        tx.connection.execute(text("CREATE TABLE IF NOT EXISTS overtaken (n INTEGER)"))
    with pytest.raises(Fenced), log.transaction() as tx:  # noqa: PT012
        tx.connection.execute(text("INSERT INTO overtaken VALUES (1)"))
        postgres_log().update(closing("n1"))
        tx.update(deciding(decision()))

    assert log.read().decisions == {}
    with log.transaction() as tx:
        assert tx.connection.execute(text("SELECT count(*) FROM overtaken")).scalar_one() == 0


@pytest.mark.parametrize("commits", [True, False])
def test_a_read_waits_for_an_open_change_and_never_concludes_without_it(topic_log, commits):
    log = topic_log()
    log.update(opening("t", "n1"))
    writer = TwoPhaseProducer({**log._config, "transactional.id": coordinator_id("orders")})
    writer.init_transactions()
    writer.begin_transaction()
    head = Head(run=2, token="t2", attempt="n2")
    writer.produce(decision_topic("orders"), key=HEAD.encode(), value=encode(head), partition=0)
    writer.flush()
    found = []
    reader = topic_log()
    thread = threading.Thread(target=lambda: found.append(reader.read()))
    thread.start()
    thread.join(timeout=0.5)
    assert found == []

    if commits:
        writer.commit_transaction()
    else:
        writer.abort_transaction()
    thread.join()
    writer.close()

    assert found[0].head.attempt == ("n2" if commits else "n1")


@pytest.mark.parametrize(
    ("log_name", "reading"), [("topic_log", "read"), ("zookeeper_log", "_read")]
)
def test_a_change_that_another_has_overtaken_is_made_anew(log_name, reading, request, monkeypatch):
    """The other comes between what was read and what is written."""
    make_log = request.getfixturevalue(log_name)
    slow, quick = make_log(), make_log()
    slow.update(opening("t0", "n0"))
    read, is_overtaken = getattr(slow, reading), []

    def read_and_wait():
        found = read()
        if not is_overtaken:
            is_overtaken.append(True)
            quick.update(opening("t1", "n1"))
        return found

    monkeypatch.setattr(slow, reading, read_and_wait)
    slow.update(opening("t2", "n2"))

    head = quick.read().head
    assert (head.run, head.attempt, head.older) == (3, "n2", ("t0", "t1"))


def test_a_takeover_waits_for_a_decision_that_is_being_written(postgres_log, monkeypatch):
    """Else it would sweep transactions away that are decided a moment later."""
    slow, quick = postgres_log(), postgres_log()
    slow.update(opening("t", "n1"))
    read, threads, found = slow._read, [], []

    def read_and_wait(connection):
        ledger = read(connection)
        if not threads:
            takeover = threading.Thread(
                target=lambda: found.append(quick.update(opening("t", "n2")))
            )
            threads.append(takeover)
            takeover.start()
            takeover.join(timeout=0.5)
        return ledger

    monkeypatch.setattr(slow, "_read", read_and_wait)
    slow.update(deciding(decision()))
    threads[0].join()

    assert found[0].pending == [decision()]


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_deletes_decisions_is_not_opened(policy):
    """A job that was decided would be written again, and what is pending would be aborted."""
    topic = decision_topic("orders")
    with Broker() as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        kafka.create_topic(broker.bootstrap_servers, topic, **{"cleanup.policy": policy})
        log = TopicDecisionLog(config, "orders")
        with pytest.raises(ConfigurationError, match=rf"{topic} is {policy}, wanted compact"):
            log.update(opening("t", "n1"))
        assert log.read().head is None

        kafka.alter_topic(broker.bootstrap_servers, topic, **{"cleanup.policy": "compact"})
        log.update(opening("t", "n1"))
        assert log.read().head.run == 1
        log.close()


def test_settings_that_nobody_tells_are_unknown():
    """Not every principal may see them (DESCRIBE_CONFIGS), nor need it."""
    with Broker() as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        check = durability(AdminClient(config), "no-such-topic", config)

    assert check.verdict is Verdict.UNKNOWN


def test_a_broker_that_stays_away_is_given_up(monkeypatch):
    """A decision without an answer is not asked for again and again, each time for `max.block.ms`."""
    with BrokerProcess() as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": 300}
        log = TopicDecisionLog(config, "orders")
        log.update(opening("t", "n1"))
        broker.kill()
        tries = []
        once = log._update_once
        monkeypatch.setattr(log, "_update_once", lambda change: (tries.append(1), once(change))[1])

        with pytest.raises(OutcomeUnknown, match="no answer from __dualwrite_decisions"):
            log.update(deciding(decision()))
        log.close()

    assert len(tries) < TRIES
