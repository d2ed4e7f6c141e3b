"""Lost answers, dead servers and interruptions: what is unknown stays undecided (T4, T23)."""

import asyncio
import os
import signal
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url

from dualwrite import (
    OutcomeUnknown,
    RetryableError,
    TransactionAdmin,
    async_dual_writer,
    dual_writer,
)
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker, BrokerProcess
from dualwrite.failures import KafkaTimeout
from tests.dualwrite.test_async_dual_write import slow_commit
from tests.dualwrite.waiting import wait_until
from tests.dualwrite.world import World
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres import PostgresServer

FAR_AWAY = {"lease_seconds": 3600}
"""No renewal or round comes in between."""


class ArmedOnce:
    """Lets the proxy cut exactly one answer."""

    def __init__(self):
        self._lock = threading.Lock()
        self._armed = False

    def set(self):
        self._armed = True

    def is_set(self):
        with self._lock:
            armed, self._armed = self._armed, False
        return armed


@pytest.fixture
def proxied(postgres_world, postgres):
    """A world whose writer reaches PostgreSQL through a proxy that can lose answers."""
    with CuttingProxy(postgres.port) as proxy:
        url = make_url(postgres_world.url).set(port=proxy.port)
        engine = create_engine(url)
        store = SqlStore(engine, table=postgres_world.state_table, lock_timeout=2)
        yield postgres_world, proxy, store
        engine.dispose()


def test_t4_lost_answer_to_commit_is_resolved_by_a_claim(proxied):
    world, proxy, store = proxied
    proxy._cutting = ArmedOnce()

    def on_step(name):
        if name == "committing":
            proxy.cut_answers()

    with world.writer(store=store, on_step=on_step, **FAR_AWAY) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert proxy.cut.is_set()
        assert (tx.outcome.database, tx.outcome.kafka) == ("committed", "committed")

    world.assert_agree([1])


def test_t4_unreachable_database_after_commit_is_outcome_unknown_and_left_to_recovery(proxied):
    world, proxy, store = proxied

    def on_step(name):
        if name == "committing":
            proxy.cut_answers()

    with world.writer(store=store, on_step=on_step, **FAR_AWAY) as dw:
        with pytest.raises(OutcomeUnknown), dw.transaction() as tx:
            world.order(tx, 1)
        assert world.rows() == [1]
        assert world.records() == []  # open, not aborted
        proxy._cutting.clear()

    with world.writer():
        world.assert_agree([1])


def test_t4_database_that_refuses_the_claim_leaves_the_outcome_unknown(proxied):
    """A failover has made the database read-only: a right that is missing is no proof of a rollback."""
    world, proxy, store = proxied
    proxy._cutting = ArmedOnce()

    def on_step(name):
        if name == "committing":
            set_read_only(world, "ON")
            proxy.cut_answers()

    with world.writer(store=store, on_step=on_step, **FAR_AWAY) as dw:
        try:
            with pytest.raises(OutcomeUnknown), dw.transaction() as tx:
                world.order(tx, 1)
        finally:
            set_read_only(world, "OFF")

    world.store.end_lease(world.store.row(tx.slot).owner)  # its own connections cannot write
    with world.writer():
        world.assert_agree([1])


def set_read_only(world, value):
    database = make_url(world.url).database
    with world.engine.connect() as connection:
        connection.execute(text("SET TRANSACTION READ WRITE"))
        connection.execute(
            text(f'ALTER DATABASE "{database}" SET default_transaction_read_only = {value}')
        )
        connection.commit()


def test_t4_commit_that_never_arrived_is_resolved_as_not_happened(postgres_world):
    """The session is ended before COMMIT is sent: no answer, and nothing committed."""
    world = postgres_world

    def on_step(name):
        if name == "committing":
            end_other_sessions(world)

    with world.writer(on_step=on_step, **FAR_AWAY) as dw:
        with pytest.raises(RetryableError), dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.database == "rolled_back"

    world.assert_agree_on_nothing()


def end_other_sessions(world):
    """What an administrator's pg_terminate_backend does to the writer's connection."""
    engine = create_engine(world.url)
    with engine.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND state = 'idle in transaction'"
            )
        )
    engine.dispose()


def test_t4_another_instance_has_decided_meanwhile(proxied):
    """0 rows at the claim: the outcome is somebody else's, and nothing is touched."""
    world, proxy, store = proxied
    proxy._cutting = ArmedOnce()

    def on_step(name):
        if name == "committing":
            proxy.cut_answers()
            takeover.start()

    def take_over():
        proxy.cut.wait()
        world.store.lease("another-instance", 3600)
        world.store.claim(f"{world.app}-0", owner="another-instance")

    takeover = threading.Thread(target=take_over)
    original = store.claim

    def claim(*args, **kwargs):
        if takeover.ident is not None:
            takeover.join()
        return original(*args, **kwargs)

    store.claim = claim
    with world.writer(store=store, on_step=on_step, slots=1, **FAR_AWAY) as dw:
        with pytest.raises(OutcomeUnknown), dw.transaction() as tx:
            world.order(tx, 1)
        assert world.records() == []

    world.store.end_lease("another-instance")
    with world.writer(slots=1):
        world.assert_agree([1])


@pytest.fixture
def interruptible():
    """A background job of a shell, as these tests may be, starts with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_t4_keyboard_interrupt_during_commit_is_settled_before_it_is_raised(postgres_world):
    world = postgres_world
    slow_commit(world, seconds=1)

    def on_step(name):
        if name == "committing":
            threading.Thread(target=interrupt_when_committing, args=(world,)).start()

    with world.writer(on_step=on_step, **FAR_AWAY) as dw:
        with pytest.raises(KeyboardInterrupt), dw.transaction() as tx:
            world.order(tx, 1)
        is_committed = tx.outcome.database == "committed"
        with world.engine.begin() as connection:
            connection.execute(text(f"DROP TRIGGER slow ON {world.orders}"))

    expected = [1] if is_committed else []
    assert world.rows() == expected
    assert world.records() == expected


def interrupt_when_committing(world):
    engine = create_engine(world.url)
    with engine.connect() as connection:

        def is_committing():
            found = connection.execute(
                text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            ).scalar_one()
            connection.rollback()
            return found

        wait_until(is_committing)
    engine.dispose()
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("step", ["flushed", "begun", "produced", "prepared", "remembered"])
def test_interruption_before_commit_undoes_both(world, step):
    def on_step(name):
        if name == step and armed:
            armed.clear()
            raise KeyboardInterrupt

    armed = []
    with world.writer(on_step=on_step) as dw:
        armed.append(True)
        with pytest.raises(KeyboardInterrupt), dw.transaction() as tx:
            world.order(tx, 1)
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_commit_that_was_never_asked_for_leaves_no_connection_behind(world):
    def on_step(name):
        if name == "committing":
            raise ZeroDivisionError

    with world.writer(on_step=on_step, **FAR_AWAY) as dw:
        with pytest.raises(ZeroDivisionError), dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.database == "rolled_back"
        assert world.engine.pool.checkedout() == 0

    world.assert_agree_on_nothing()


@pytest.mark.parametrize(
    ("step", "kafka_commit"),
    [("committed", "wait"), ("completed", "wait"), ("committed", "background")],
)
def test_interruption_after_the_decision_does_not_undo_it(world, step, kafka_commit):
    def on_step(name):
        if name == step and armed:
            armed.clear()
            raise KeyboardInterrupt

    armed = []
    with world.writer(on_step=on_step, kafka_commit=kafka_commit) as dw:
        armed.append(True)
        with pytest.raises(KeyboardInterrupt), dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.database == "committed"

    world.assert_agree([1])


def test_hook_of_the_session_that_fails_after_commit_is_no_rollback(world):
    """T3: an exception in `after_commit` comes when the data is durable."""
    with world.writer() as dw:
        with dw.transaction() as tx:

            @event.listens_for(tx.session, "after_commit")
            def fail(_):
                raise ZeroDivisionError

            world.order(tx, 1)
        assert tx.outcome.kafka == "committed"

    world.assert_agree([1])


def test_database_that_dies_in_the_block_aborts_nothing_in_kafka(shared_broker):
    server = PostgresServer()
    server.start()
    world = World(shared_broker.bootstrap_servers, server.url)
    try:
        with world.writer(slots=1, **FAR_AWAY) as dw:
            with pytest.raises(Exception, match=r"."), dw.transaction() as tx:
                world.order(tx, 1)
                server.kill()
            server.start()
            dw.run(lambda tx: world.order(tx, 2), attempts=20)
        world.assert_agree([2])
    finally:
        world.close()
        server.remove()


def test_t23_broker_that_is_down_fails_fast_and_everything_heals(tmp_path):
    quick = {"max.block.ms": 1000, "delivery.timeout.ms": 1000, "request.timeout.ms": 500}
    with BrokerProcess() as broker:
        world = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'down.db'}")
        with world.writer(config=quick, lease_seconds=1, slots=1) as dw:
            with dw.transaction() as tx:
                world.order(tx, 1)
            broker.kill()
            with pytest.raises(RetryableError), dw.transaction() as tx:
                world.order(tx, 2)
            assert world.rows() == [1]
            broker.restart()
            dw.run(lambda tx: world.order(tx, 3))
        world.assert_agree([1, 3])
        world.close()


@pytest.fixture
def always_idle(monkeypatch):
    """Every slot was idle for so long that its id may have been forgotten."""
    monkeypatch.setattr(dual_writer, "IDLE_SECONDS_MAX", -1)
    monkeypatch.setattr(async_dual_writer, "IDLE_SECONDS_MAX", -1)


@pytest.mark.usefixtures("always_idle")
def test_t12_slot_that_was_idle_is_recovered_before_it_is_used(sqlite_world):
    world = sqlite_world

    async def write_async():
        async with world.async_writer(slots=1) as dw:
            for number in (3, 4):
                async with dw.transaction() as tx:
                    await world.async_order(tx, number)

    with world.writer(slots=1) as dw:
        fence = world.store.row(f"{world.app}-0").fence
        for number in (1, 2):
            with dw.transaction() as tx:
                world.order(tx, number)
        assert world.store.row(tx.slot).fence == fence + 2
    asyncio.run(write_async())

    world.assert_agree([1, 2, 3, 4])


@pytest.mark.usefixtures("always_idle")
def test_t12_id_that_expired_while_its_slot_was_idle_is_no_alarm(tmp_path, caplog):
    """That Kafka has forgotten it is what the refresh is for; everything was finished before."""
    settings = {
        "transactional.id.expiration.ms": 300,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 20,
    }
    with Broker(settings=settings) as broker:
        world = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
        with (
            world.writer(slots=1, lease_seconds=3600) as dw,
            TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin,
        ):
            dw.run(lambda tx: world.order(tx, 1))
            slot = f"{world.app}-0"
            wait_until(lambda: admin.describe_transactions([slot])[slot] is None)
            dw.run(lambda tx: world.order(tx, 2))
        world.assert_agree([1, 2])
        world.close()

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.usefixtures("always_idle")
def test_idle_slot_that_cannot_be_recovered_is_an_error_to_run_again(tmp_path):
    quick = {"max.block.ms": 1000, "request.timeout.ms": 500}

    async def write_async():
        async with world.async_writer(config=quick, slots=1) as dw:
            await dw.run(lambda tx: world.async_order(tx, 2))
            broker.kill()
            with pytest.raises(RetryableError):
                async with dw.transaction() as tx:
                    await world.async_order(tx, 3)

    with BrokerProcess() as broker:
        world = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'down.db'}")
        with world.writer(config=quick, slots=1) as dw:
            dw.run(lambda tx: world.order(tx, 1))
            broker.kill()
            with pytest.raises(RetryableError), dw.transaction() as tx:
                world.order(tx, 2)
            broker.restart()
        asyncio.run(write_async())
        broker.restart()
        world.assert_agree([1, 2])
        world.close()


@pytest.mark.parametrize(
    ("mode", "before"),
    [("2pc", ["begun", "produced", "remembered"]), ("resume", ["begun", "produced"])],
)
def test_broker_that_stops_while_records_are_under_way_undoes_both(tmp_path, mode, before):
    """Their state may be written before they are acknowledged; COMMIT must wait for them."""
    quick = {"max.block.ms": 1000, "delivery.timeout.ms": 1000, "request.timeout.ms": 500}

    def on_step(name):
        if name == "begun" and armed:
            armed.clear()
            steps.clear()
            os.kill(broker.pid, signal.SIGSTOP)
        steps.append(name)

    armed, steps = [], []
    with BrokerProcess() as broker:
        world = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'down.db'}")
        options = {"config": quick, "lease_seconds": 1, "slots": 1, "mode": mode}
        with world.writer(on_step=on_step, **options) as dw:
            with dw.transaction() as tx:
                world.order(tx, 1)
            armed.append(True)
            with pytest.raises(RetryableError), dw.transaction() as tx:
                world.order(tx, 2)
            assert tx.outcome.database == "rolled_back"
            assert steps[: len(before)] == before
            assert "committing" not in steps
            assert world.rows() == [1]
            os.kill(broker.pid, signal.SIGCONT)
            dw.run(lambda tx: world.order(tx, 3))
        world.assert_agree([1, 3])
        world.close()


@pytest.mark.parametrize("kafka_commit", ["wait", "background"])
def test_broker_that_dies_after_the_decision_leaves_it_pending_until_it_is_back(
    tmp_path, kafka_commit
):
    quick = {"max.block.ms": 1000, "request.timeout.ms": 500}

    def on_step(name):
        if name == "committed":
            broker.kill()

    with BrokerProcess() as broker:
        world = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'down.db'}")
        options = {"lease_seconds": 1, "slots": 1, "kafka_commit": kafka_commit}
        with world.writer(config=quick, on_step=on_step, **options) as dw:
            with dw.transaction() as tx:
                world.order(tx, 1)
            assert (tx.outcome.database, tx.outcome.kafka) == ("committed", "pending")
            broker.restart()
            wait_until(lambda: world.records() == [1])
        world.close()


def test_broker_that_is_down_at_opening_is_an_error_and_nothing_stays_leased(sqlite_world):
    with BrokerProcess() as broker:
        address = broker.bootstrap_servers
    config = {"bootstrap.servers": address, "max.block.ms": 500}
    dw = sqlite_world.writer(config=config)

    with pytest.raises(KafkaTimeout):
        dw.open()

    assert not dw.is_open
    with sqlite_world.writer():
        pass


@pytest.mark.parametrize("lost", ["answer", "commit"])
def test_id_of_resume_mode_is_not_used_beyond_the_claim_that_settled_a_commit(proxied, lost):
    """Its next decision would be looked for under an id that the claim has made invalid."""
    world, proxy, store = proxied
    proxy._cutting = ArmedOnce()
    losing, interrupting = [True], []

    def on_step(name):
        if name == "committing" and losing:
            losing.clear()
            proxy.cut_answers() if lost == "answer" else end_other_sessions(world)
        if name == "committed" and interrupting:
            interrupting.clear()
            raise KeyboardInterrupt

    options = {"mode": "resume", "slots": 1, **FAR_AWAY}
    with world.writer(store=store, on_step=on_step, **options) as dw:
        dw.run(lambda tx: world.order(tx, 1))
        interrupting.append(True)
        with pytest.raises(KeyboardInterrupt), dw.transaction() as tx:
            world.order(tx, 2)
        assert tx.outcome.database == "committed"

    world.assert_agree([1, 2])
