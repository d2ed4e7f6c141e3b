"""Brokers without KIP-939: transactions are resumed by their pair, with a copy behind them."""

import asyncio
import logging
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from dualwrite import ConfigurationError, RetryableError, TransactionAdmin, TwoPhaseProducer, steps
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker
from dualwrite.failures import UnsupportedByBroker
from dualwrite.kept_messages import decode, encode
from dualwrite.operations import look, terminate
from dualwrite.store import Heuristic, StoreUnavailable
from dualwrite.transaction import Message
from dualwrite.two_phase import close_producer
from tests.dualwrite.crashed import FOREIGN_OWNER
from tests.dualwrite.waiting import wait_until
from tests.dualwrite.world import World, read_committed


@pytest.fixture(scope="module", params=[1, 2], ids=["transactions-v1", "transactions-v2"])
def broker(request):
    """A broker that refuses two-phase commit, and one on which it is not used."""
    settings = {
        "transaction.version": request.param,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    }
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def world(broker, tmp_path):
    made = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
    yield made
    made.close()


class CrashedInResume:
    """An instance that died in resume mode, made with the bare parts."""

    def __init__(self, world, timeout_ms=60_000):
        self.world = world
        self.slot = f"{world.app}-0"
        self.claim = world.store.claim(self.slot, owner=FOREIGN_OWNER)
        self.kafka_id = f"{self.slot}.{self.claim.fence}"
        self.producer = TwoPhaseProducer(
            {
                "bootstrap.servers": world.bootstrap,
                "transactional.id": self.kafka_id,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self.producer.init_transactions()

    def produce(self, number):
        self.number = number
        self.producer.begin_transaction()
        self.producer.produce(self.world.topic, key=str(number), value=b"x")
        self.state = self.producer.flush_transaction()
        return self

    def decide(self):
        store, message = (
            self.world.store,
            Message(self.world.topic, b"x", str(self.number).encode(), -1, None, 0, ()),
        )
        local = store.begin()
        session = local.resource("session")
        session.execute(text(f"INSERT INTO {self.world.orders} VALUES ({self.number}, 'x')"))
        store.keep_messages(local.handle, self.slot, self.state, [encode(message)])
        store.remember(local.handle, self.slot, self.state, self.claim.fence)
        local.commit()
        return self

    def go_on(self):
        """Its Kafka commit was acknowledged; the next transaction is fenced by the database."""
        self.world.store.forget_messages(self.slot, self.state)
        if self.producer.transaction_version < 2:
            self.producer.bump_epoch()
        self.produce(self.number + 1)
        self.producer.abort_transaction()

    def die(self):
        self.producer.close(leave_open=True)
        return self

    def is_open(self):
        with TransactionAdmin({"bootstrap.servers": self.world.bootstrap}) as admin:
            found = admin.describe_transactions([self.kafka_id])[self.kafka_id]
        return found.state == "Ongoing"


@pytest.fixture
def either_world(broker, database_url):
    made = World(broker.bootstrap_servers, database_url)
    yield made
    made.close()


def in_doubt(world):
    """A decided transaction of which nothing proves what became of it: somebody took its id over."""
    crashed = CrashedInResume(world).produce(1).decide().die()
    take_id_over(crashed)
    return crashed


def take_id_over(crashed):
    foreign = TwoPhaseProducer(
        {"bootstrap.servers": crashed.world.bootstrap, "transactional.id": crashed.kafka_id}
    )
    foreign.init_transactions()
    foreign.close()


def resuming(world, **options):
    return world.writer(mode="resume", slots=1, **options)


def test_mode_is_found_by_asking_the_broker(world, broker, caplog):
    is_offered = broker.node.settings["transaction.version"] == 2
    with world.writer() as dw:
        assert dw.mode == ("2pc" if is_offered else "resume")
        with dw.transaction() as tx:
            world.order(tx, 1)

    assert ("event=resume_mode" in caplog.text) == (not is_offered)
    world.assert_agree([1])


def test_two_phase_commit_can_be_demanded(world, broker):
    if broker.node.settings["transaction.version"] == 2:
        pytest.skip("this broker can do it")
    with pytest.raises(UnsupportedByBroker):
        world.writer(mode="2pc").open()


def test_writes_in_a_row_agree_and_leave_no_copy(world):
    with resuming(world) as dw:
        assert dw.mode == "resume"
        for number in range(5):
            with dw.transaction() as tx:
                world.order(tx, number)
            assert tx.outcome.kafka == "committed"
        with pytest.raises(ZeroDivisionError), dw.transaction() as tx:
            world.order(tx, 99)
            raise ZeroDivisionError
        states = {row.state for row in world.store.rows(world.app)}
        assert len(states) == 1
        assert world.store.kept_messages(f"{world.app}-0", states.pop()) == []

    world.assert_agree(range(5))


def test_pairs_of_transactions_differ(world):
    """T5: without Transactions V2 the epoch does not move at commit, unless it is made to."""
    with resuming(world) as dw:
        seen = []
        for number in range(3):
            with dw.transaction() as tx:
                world.order(tx, number)
            seen.append(tx.outcome.txn)

    assert len(set(seen)) == 3


def test_decided_transaction_is_committed_by_its_pair(world):
    crashed = CrashedInResume(world).produce(1).decide().die()

    with resuming(world):
        world.assert_agree([1])
        assert world.store.kept_messages(crashed.slot, crashed.state) == []


def test_undecided_transaction_is_aborted_by_its_pair(world):
    crashed = CrashedInResume(world).produce(1).die()

    with resuming(world) as dw:
        assert not crashed.is_open()
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_decided_transaction_that_timed_out_is_sent_again_once(world, caplog):
    crashed = CrashedInResume(world, timeout_ms=200).produce(1).decide().die()
    wait_until(lambda: not crashed.is_open())
    assert world.records() == []

    with resuming(world) as dw:
        world.assert_agree([1])
        assert "event=sent_again" in caplog.text
        with dw.transaction() as tx:
            world.order(tx, 2)
    with resuming(world):
        world.assert_agree([1, 2])


def test_decided_transaction_whose_end_was_acknowledged_is_not_sent_again(world):
    """The crash came between Kafka's answer and the removal of the copy."""
    crashed = CrashedInResume(world).produce(1).decide()
    crashed.producer.commit_transaction()
    crashed.die()

    with resuming(world):
        world.assert_agree([1])


def test_writer_whose_decided_transaction_times_out_sends_its_own_copy(world, caplog):
    def is_open():
        with TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin:
            return admin.list_transactions(["Ongoing"], id_pattern=rf"{world.app}-.*")

    def on_step(name):
        if name == "committed":
            wait_until(lambda: not is_open())

    with resuming(world, config={"transaction.timeout.ms": 1_000}, on_step=on_step) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.kafka == "pending"

    world.assert_agree([1])
    assert "event=sent_again" in caplog.text


def test_recovery_that_dies_after_it_has_sent_again_does_not_do_it_twice(world, monkeypatch):
    crashed = CrashedInResume(world, timeout_ms=200).produce(1).decide().die()
    wait_until(lambda: not crashed.is_open())

    def die(*_):
        raise StoreUnavailable("its host is gone")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "forget_messages", die)
        with pytest.raises(StoreUnavailable):
            resuming(world).open()
    with resuming(world):
        world.assert_agree([1])


def test_copy_goes_when_kafka_has_committed_and_no_sooner(world, monkeypatch):
    """Until then it is what is left if the broker times the decided transaction out."""
    forget, states = world.store.forget_messages, []

    def watched(slot, state):
        with TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin:
            listed = admin.list_transactions(id_pattern=rf"{slot}\..*")
        states.extend(one.state for one in listed)
        forget(slot, state)

    monkeypatch.setattr(world.store, "forget_messages", watched)
    with resuming(world) as dw, dw.transaction() as tx:
        world.order(tx, 1)

    assert states == ["CompleteCommit"]


def test_closing_a_slot_s_producer_ends_nothing_that_may_be_decided(world):
    """Recovery does that first, and only it can know; close() alone would abort what is open."""
    crashed = CrashedInResume(world).produce(1).decide()

    steps.run(close_producer(SimpleNamespace(producer=crashed.producer)))

    assert crashed.is_open()
    with resuming(world):
        world.assert_agree([1])


def test_recoverer_that_was_overtaken_ends_nothing_of_its_successor(world):
    """Between its claim and its look at what is open another instance claims the slot and writes."""
    successor, was_open = [], []

    def on_step(name):
        if name == "claimed" and not successor:
            successor.append(CrashedInResume(world).produce(1))
        if name == "initialised" and not was_open:
            was_open.append(successor[0].is_open())

    with resuming(world):
        pass  # makes the row
    with resuming(world, on_step=on_step):
        pass
    successor[0].die()

    assert was_open == [True]


def test_doubt_is_an_alarm_and_never_a_resend(world, caplog):
    in_doubt(world)

    with caplog.at_level(logging.ERROR), resuming(world):
        assert world.records() == []

    assert "event=decided_but_not_proven" in caplog.text


def alarms(caplog, event="decided_but_not_proven"):
    return [r for r in caplog.records if getattr(r, "event", "") == event]


def test_messages_in_doubt_are_left_to_a_person_and_the_slot_goes_on(either_world, caplog):
    """The alarm comes once; the only copy of the messages outlives every later transaction."""
    world = either_world
    crashed = in_doubt(world)
    for number in (2, 3):
        with resuming(world) as dw, dw.transaction() as tx:
            world.order(tx, number)

    assert world.rows() == [1, 2, 3]
    assert world.records() == [2, 3]
    assert len(alarms(caplog)) == 1
    (known,) = world.store.heuristics(crashed.kafka_id)
    assert known.state == crashed.state
    assert f"1 message kept under {crashed.kafka_id}" in known.reason
    (copy,) = world.store.kept_messages(crashed.kafka_id, crashed.state)
    assert (decode(copy).topic, decode(copy).key) == (world.topic, b"1")

    def reasons():
        with TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin:
            return " ".join(look(world.store, admin, crashed.slot)[0].reasons)

    told = f"in doubt: {crashed.state} of {crashed.kafka_id}"
    assert told in reasons()
    world.store.forget_messages(crashed.kafka_id, crashed.state)  # a person has seen to it
    assert told not in reasons()


def test_recovery_that_dies_while_it_puts_a_copy_aside_loses_nothing(either_world, caplog):
    world, dying = either_world, [True]

    class DyingStore(SqlStore):
        def keep_messages(self, handle, transactional_id, state, messages):
            super().keep_messages(handle, transactional_id, state, messages)
            if dying and not messages:
                dying.pop()
                raise StoreUnavailable("its host is gone")

    crashed = in_doubt(world)
    store = DyingStore(world.engine, table=world.state_table)
    with pytest.raises(StoreUnavailable):
        resuming(world, store=store).open()
    assert world.store.kept_messages(crashed.kafka_id, crashed.state) == []
    for _ in range(2):
        with resuming(world, store=store):
            assert len(world.store.kept_messages(crashed.kafka_id, crashed.state)) == 1
    assert len(world.store.heuristics(crashed.kafka_id)) == 1
    assert len(alarms(caplog)) == 1


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_forced_end_is_not_taken_for_a_timeout(either_world, caplog, is_taken_over):
    """An operator's word stands: nothing is sent again, and the copy is left to a person.

    So it does when nothing in Kafka shows the abort any more; the operator needs no alarm.
    """
    world = either_world
    crashed = CrashedInResume(world).produce(1).decide().die()
    config = {"bootstrap.servers": world.bootstrap}
    with TransactionAdmin(config) as admin:
        terminate(config, world.store, admin, crashed.kafka_id, reason="readers wait")
    if is_taken_over:
        take_id_over(crashed)
    for number in (2, 3):
        with resuming(world) as dw, dw.transaction() as tx:
            world.order(tx, number)

    assert world.rows() == [1, 2, 3]
    assert world.records() == [2, 3]
    (known,) = world.store.heuristics()
    assert (known.transactional_id, known.reason) == (crashed.kafka_id, "readers wait")
    (copy,) = world.store.kept_messages(crashed.kafka_id, crashed.state)
    assert (decode(copy).topic, decode(copy).key) == (world.topic, b"1")
    assert world.store.kept_messages(crashed.slot, crashed.state) == []
    assert alarms(caplog) == []
    assert len(alarms(caplog, "heuristic_abort_known")) == 1


@pytest.mark.parametrize("times_out", [False, True])
def test_forced_end_that_was_written_down_and_not_done(world, times_out):
    """While it is open the database decides; what was aborted later is not sent again either."""
    crashed = CrashedInResume(world, timeout_ms=200 if times_out else 60_000)
    crashed.produce(1).decide().die()
    entry = Heuristic(
        transactional_id=crashed.kafka_id,
        state=crashed.state,
        action="abort",
        reason="readers wait",
        recorded_by="operator",
    )
    world.store.record_heuristic(entry)
    if times_out:
        wait_until(lambda: not crashed.is_open())
    with resuming(world):
        assert world.records() == ([] if times_out else [1])
    copies = world.store.kept_messages(crashed.kafka_id, crashed.state)
    assert len(copies) == times_out


def test_owner_that_goes_on_while_its_slot_is_recovered_is_not_taken_for_one_that_timed_out(world):
    """Without Transactions V2 its next transaction, aborted, looks like the decided one timed out."""

    class SeenEarly(SqlStore):
        def kept_messages(self, transactional_id, state):
            found = super().kept_messages(transactional_id, state)
            if transactional_id == owner.slot and not gone_on:
                gone_on.append(transactional_id)
                owner.go_on()
            return found

    owner = CrashedInResume(world).produce(1).decide()
    owner.producer.commit_transaction()
    gone_on = []
    store = SeenEarly(world.engine, table=world.state_table)
    with resuming(world, store=store) as dw, dw.transaction() as tx:
        world.order(tx, 3)

    assert gone_on
    owner.die()
    world.assert_agree([1, 3])


@pytest.fixture
def late(monkeypatch):
    """By how many seconds resume mode's clock is ahead."""
    ahead = [0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr("dualwrite.resume.time", clock)
    return ahead


@pytest.mark.parametrize("late_seconds", [20, 31])
@pytest.mark.parametrize("step", ["prepared", "remembered"])
def test_too_little_time_before_commit_undoes_both(world, late, step, late_seconds):
    """Half of the minute that the broker gives a transaction must be left when it is decided.

    The last statements count too: they may wait for a lock, or write many messages.
    """

    def on_step(name):
        if name == step:
            late[0] = late_seconds

    is_too_late = late_seconds > 30
    expected = pytest.raises(RetryableError) if is_too_late else nullcontext()
    with resuming(world, config={"transaction.timeout.ms": 60_000}, on_step=on_step) as dw:
        with expected, dw.transaction() as tx:
            world.order(tx, 1)

    assert world.rows() == ([] if is_too_late else [1])
    assert len(read_committed(world.bootstrap, world.topic)) == (0 if is_too_late else 1)


def test_too_little_time_before_a_resend_is_decided_undoes_it(world, late):
    class SlowStore(SqlStore):
        def keep_messages(self, *arguments):
            super().keep_messages(*arguments)
            late[0] += 451

    crashed = CrashedInResume(world, timeout_ms=200).produce(1).decide().die()
    wait_until(lambda: not crashed.is_open())
    with pytest.raises(RetryableError, match="too little"):
        resuming(world, store=SlowStore(world.engine, table=world.state_table)).open()
    assert world.store.row(crashed.slot).state == crashed.state
    assert world.records() == []
    with resuming(world):
        world.assert_agree([1])


@pytest.fixture
def strict_broker():
    """Its limit for a transaction's age is below what brokers usually have."""
    settings = {"transaction.version": 1, "transaction.max.timeout.ms": 200_000}
    with Broker(settings=settings) as running:
        yield running


@pytest.mark.parametrize("mode", ["auto", "resume"])
def test_broker_that_takes_no_usual_timeout_gets_the_next_smaller_one(
    strict_broker, tmp_path, late, caplog, mode
):
    world = World(strict_broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
    crashed = CrashedInResume(world).produce(1).decide().die()

    def on_step(name):
        if name == "remembered":
            late[0] += 61

    with world.writer(mode=mode, slots=2, on_step=on_step) as dw:
        assert dw.mode == "resume"
        with pytest.raises(RetryableError, match=r"timeout.ms \(120 s\)"), dw.transaction() as tx:
            world.order(tx, 2)
    world.assert_agree([1])
    told = [r for r in caplog.records if "event=resume_timeout" in r.getMessage()]
    assert "timeout_ms=120000" in told[-1].getMessage()
    with TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin:
        listed = [
            f.transactional_id for f in admin.list_transactions(id_pattern=rf"{world.app}-.*")
        ]
        used = {f.timeout_ms for f in admin.describe_transactions(listed).values()}
    assert used == {60_000, 120_000}  # what the dead one had been given, and ours
    assert crashed.kafka_id in listed
    world.close()


def test_timeout_that_was_given_is_taken_or_refused_as_it_stands(strict_broker, tmp_path):
    world = World(strict_broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
    with pytest.raises(ConfigurationError, match="INVALID_TRANSACTION_TIMEOUT"):
        resuming(world, config={"transaction.timeout.ms": 200_001}).open()
    with resuming(world, config={"transaction.timeout.ms": 200_000}) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
    world.assert_agree([1])
    world.close()


def test_broker_whose_limit_is_below_every_usual_timeout_is_told_so(tmp_path):
    settings = {"transaction.version": 1, "transaction.max.timeout.ms": 9_999}
    with Broker(settings=settings) as running:
        world = World(running.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
        with pytest.raises(ConfigurationError, match=r"transaction.max.timeout.ms.*mode='resume'"):
            world.writer().open()
        world.close()


def test_two_phase_mode_leaves_resume_mode_behind_on_such_a_broker_too(tmp_path):
    with Broker(settings={"transaction.max.timeout.ms": 200_000}) as running:
        world = World(running.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
        CrashedInResume(world).produce(1).decide().die()
        with world.writer(mode="2pc"):
            world.assert_agree([1])
        world.close()


def test_consumed_offsets_are_refused(world):
    with resuming(world) as dw:
        with pytest.raises(ConfigurationError), dw.transaction() as tx:
            tx.send_offsets({("t", 0): 1}, "group")
        with dw.transaction() as tx:
            world.order(tx, 1)

    world.assert_agree([1])


def test_async_writer_resumes_too(world):
    CrashedInResume(world).produce(1).decide().die()

    async def main():
        async with world.async_writer(mode="resume", slots=1) as dw:
            async with dw.transaction() as tx:
                await world.async_order(tx, 2)

    asyncio.run(main())
    world.assert_agree([1, 2])
