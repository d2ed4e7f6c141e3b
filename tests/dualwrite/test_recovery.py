"""Whatever a crash left in doubt is ended as the database has decided."""

import dataclasses
import logging
import subprocess
import sys

import pytest
from sqlalchemy import text

from dualwrite import (
    ConfigurationError,
    HeuristicAbort,
    PreparedTxnState,
    TransactionAdmin,
    TwoPhaseProducer,
)
from dualwrite.adapters.sql import SqlStore
from dualwrite.owner import Owner
from dualwrite.store import Heuristic, Lease, StoreUnavailable
from tests.dualwrite.crashed import FOREIGN_OWNER, CrashedInstance
from tests.dualwrite.waiting import wait_until


def admin_of(world):
    return TransactionAdmin({"bootstrap.servers": world.bootstrap})


def is_open(world, transactional_id):
    with admin_of(world) as admin:
        description = admin.describe_transactions([transactional_id])[transactional_id]
    return description is not None and description.state == "Ongoing"


def test_decided_transaction_is_committed_on_opening(world):
    CrashedInstance(world, f"{world.app}-0").prepare(1).decide().die()

    with world.writer():
        world.assert_agree([1])


def test_undecided_transaction_is_aborted_on_opening(world):
    CrashedInstance(world, f"{world.app}-0").prepare(1).die()

    with world.writer() as dw:
        assert not is_open(world, f"{world.app}-0")
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_second_recovery_does_nothing(world):
    CrashedInstance(world, f"{world.app}-0").prepare(1).decide().die()

    for _ in range(2):
        with world.writer():
            world.assert_agree([1])


def test_later_undecided_transaction_does_not_touch_the_earlier_decided_one(world):
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.producer.complete_transaction(crashed.state)
    crashed.prepare(2).die()

    with world.writer():
        world.assert_agree([1])


def test_t21_slots_above_a_shrunken_pool_are_recovered_and_released(world):
    world.store.claim(f"{world.app}-0")
    CrashedInstance(world, f"{world.app}-7").prepare(1).decide().die()
    CrashedInstance(world, f"{world.app}-12").prepare(2).die()

    with world.writer(slots=1):
        world.assert_agree([1])
        assert not is_open(world, f"{world.app}-12")
        assert world.store.row(f"{world.app}-7").owner == ""
        assert world.store.row(f"{world.app}-12").owner == ""


def test_t21_released_slots_are_left_in_peace(world):
    """A slot that was recovered and released is finished: no round claims it again."""
    world.store.claim(f"{world.app}-0")
    CrashedInstance(world, f"{world.app}-7").prepare(1).decide().die()
    rounds = []

    with world.writer(slots=1, lease_seconds=0.5) as dw:
        fence = world.store.row(f"{world.app}-7").fence
        upkeep = dw._opened.upkeep
        wait_until(lambda: rounds.append(upkeep._rounds) or upkeep._rounds >= rounds[0] + 5)
        row = world.store.row(f"{world.app}-7")

    assert (row.fence, row.owner) == (fence, "")


def test_t21_open_transaction_without_a_row_gets_its_row_and_is_aborted(world):
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": world.bootstrap,
            "transactional.id": f"{world.app}-40",
            "transaction.two.phase.commit.enable": True,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(world.topic, key="1", value="x")
    producer.prepare_transaction()
    producer.close()

    with world.writer():
        assert not is_open(world, f"{world.app}-40")
        assert world.store.row(f"{world.app}-40") is not None


def test_t21_app_whose_name_begins_alike_is_left_alone(world):
    """`orders` must never touch `orders-1-0`, which is slot 0 of `orders-1`."""
    other = CrashedInstance(world, f"{world.app}-1-0").prepare(1).decide()
    letters = CrashedInstance(world, f"{world.app}-x").prepare(2)

    with world.writer():
        assert is_open(world, other.transactional_id)
        assert is_open(world, letters.transactional_id)
        assert world.store.row(other.transactional_id).fence == other.claim.fence

    assert other.producer.complete_transaction(other.state) == "committed"
    letters.producer.abort_transaction()
    other.die()
    letters.die()


def test_t20_live_instance_keeps_its_slots(world):
    """A rolling deploy: the new instance opens while the old one is in the middle of a block."""
    with world.writer(slots=2) as old:
        with old.transaction() as tx:
            with world.writer(slots=2) as new:
                assert new.is_open
                held = {row.owner for row in world.store.rows(world.app)}
                assert len(held) == 2
                assert len(world.store.rows(world.app)) == 4
            world.order(tx, 1)
        assert tx.outcome.kafka == "committed"
        with old.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([1, 2])


def test_t18_peer_takes_over_within_the_lease(world):
    with world.writer(lease_seconds=1) as dw:
        world.store.lease(FOREIGN_OWNER, 0.2)
        crashed = CrashedInstance(world, f"{world.app}-5").prepare(1).decide()
        crashed.die()

        wait_until(lambda: not is_open(world, crashed.transactional_id))

        assert dw.is_open
    world.assert_agree([1])


def test_t18_lease_that_was_lost_is_taken_again(world):
    """Else every peer would take the slots of a living instance over, again and again."""
    with world.writer(slots=1, lease_seconds=1):
        (row,) = world.store.rows(world.app)
        world.store.end_lease(row.owner)

        wait_until(lambda: world.store.rows(world.app)[0].lease is Lease.LIVE)


def test_t18_idle_slot_that_a_peer_took_and_died_with_is_taken_back(world):
    """Our lease had run out; whoever took the slot is dead now, and it does not count as ours."""
    with world.writer(slots=1, lease_seconds=1) as dw:
        (row,) = world.store.rows(world.app)
        world.store.lease(FOREIGN_OWNER, 0.2)
        crashed = CrashedInstance(world, row.transactional_id).prepare(1).decide()
        crashed.die()

        wait_until(lambda: not is_open(world, crashed.transactional_id))

        with dw.transaction() as tx:
            world.order(tx, 2)
    world.assert_agree([1, 2])


def test_t18_live_lease_of_another_host_is_respected(world):
    world.store.lease(FOREIGN_OWNER, 60)
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()

    with world.writer() as dw:
        assert is_open(world, crashed.transactional_id)
        with dw.transaction() as tx:
            assert tx.slot != crashed.transactional_id

    assert crashed.producer.complete_transaction(crashed.state) == "committed"
    crashed.die()


def test_t18_dead_process_of_this_host_is_known_at_once(world):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead = dataclasses.replace(Owner.of_this_process(), pid=child.pid, started="1")
    world.store.lease(str(dead), 3600)
    CrashedInstance(world, f"{world.app}-0", str(dead)).prepare(1).decide().die()

    with world.writer():
        world.assert_agree([1])


def test_t18_instance_name_lets_a_restarted_instance_claim_its_rows(world):
    earlier = dataclasses.replace(Owner.parse(FOREIGN_OWNER), instance="pod-3")
    world.store.lease(str(earlier), 3600)
    CrashedInstance(world, f"{world.app}-0", str(earlier)).prepare(1).decide().die()

    with world.writer(instance="pod-4"):
        assert is_open(world, f"{world.app}-0")
    with world.writer(instance="pod-3"):
        world.assert_agree([1])


def test_t6_forced_end_against_the_database_is_an_alarm_once(world, caplog):
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    with admin_of(world) as admin:
        admin.force_terminate_transaction(crashed.transactional_id)

    with pytest.raises(HeuristicAbort, match=str(crashed.state)):
        world.writer().open()

    recorded = world.store.heuristics(crashed.transactional_id)
    assert [(entry.state, entry.action) for entry in recorded] == [(crashed.state, "abort")]
    assert "event=heuristic_abort" in caplog.text
    with world.writer() as dw, dw.transaction() as tx:
        world.order(tx, 2)
    assert world.rows() == [1, 2]
    assert world.records() == [2]


def test_t6_forced_end_that_was_written_down_is_not_raised_again(world):
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    world.store.record_heuristic(
        Heuristic(
            transactional_id=crashed.transactional_id,
            state=crashed.state,
            action="abort",
            reason="the readers could not wait",
            recorded_by="operator",
        )
    )
    with admin_of(world) as admin:
        admin.force_terminate_transaction(crashed.transactional_id)

    with world.writer() as dw, dw.transaction() as tx:
        world.order(tx, 2)

    (recorded,) = world.store.heuristics(crashed.transactional_id)
    assert recorded.recorded_by == "operator"
    assert world.records() == [2]


def test_t6_foreign_use_of_an_id_is_noticed(world):
    """Another program inits with the same id, which aborts what the database has decided."""
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    foreign = TwoPhaseProducer(
        {"bootstrap.servers": world.bootstrap, "transactional.id": crashed.transactional_id}
    )
    foreign.init_transactions()
    foreign.close()

    with pytest.raises(HeuristicAbort):
        world.writer().open()


def test_t11_database_that_was_restored_from_a_backup_is_refused(world):
    with world.writer(slots=1) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        backup = world.backup()
        with dw.transaction() as tx:
            world.order(tx, 2)
    world.restore(backup)

    with pytest.raises(ConfigurationError, match="restored"):
        world.writer(slots=1).open()
    with world.writer(slots=1, adopt=True) as dw, dw.transaction() as tx:
        world.order(tx, 3)
    with world.writer(slots=1):
        assert world.records() == [1, 2, 3]


def test_slot_that_is_refused_keeps_no_other_from_recovery(world):
    with world.writer(slots=1) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        backup = world.backup()
        with dw.transaction() as tx:
            world.order(tx, 2)
    world.restore(backup)
    crashed = CrashedInstance(world, f"{world.app}-1").prepare(3).decide()
    crashed.die()

    with pytest.raises(ConfigurationError, match="restored"):
        world.writer(slots=1).open()

    assert not is_open(world, crashed.transactional_id)


def test_t11_copy_of_another_environment_is_refused_before_it_can_fence_anyone(world):
    with world.writer(slots=1) as dw, dw.transaction() as tx:
        world.order(tx, 1)
    row = world.store.row(f"{world.app}-0")
    world.store.bind_cluster(row.transactional_id, row.fence, "another-cluster")

    with pytest.raises(ConfigurationError, match="another-cluster"):
        world.writer(slots=1).open()
    assert world.store.row(row.transactional_id).fence == row.fence

    with world.writer(slots=1, adopt=True):
        pass
    with world.writer(slots=1):
        pass


def test_t12_kafka_that_has_forgotten_an_id_is_an_alarm(world, caplog):
    claim = world.store.claim(f"{world.app}-0")
    local = world.store.begin()
    world.store.remember(local.handle, f"{world.app}-0", PreparedTxnState(123456, 7), claim.fence)
    local.commit()

    with caplog.at_level(logging.ERROR), world.writer():
        pass

    assert "event=forgotten" in caplog.text


def test_new_database_with_a_used_app_name_starts_with_a_warning(world, caplog):
    with world.writer(slots=1) as dw, dw.transaction() as tx:
        world.order(tx, 1)
    with world.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {world.state_table}"))

    with world.writer(slots=1) as dw, dw.transaction() as tx:
        world.order(tx, 2)

    assert "event=new_database" in caplog.text
    world.assert_agree([1, 2])


class OnceUnavailable(SqlStore):
    """One claim gets no answer; it has arrived (`is_made`) or not."""

    failing_id = ""
    is_made = False

    def claim(self, id, expect=None, *, owner=None):
        if id != self.failing_id:
            return super().claim(id, expect, owner=owner)
        if self.is_made:
            super().claim(id, expect, owner=owner)
        self.failing_id = ""
        raise StoreUnavailable("the database did not answer")


@pytest.fixture
def once_unavailable(world):
    return OnceUnavailable(world.engine, table=world.state_table, lock_timeout=2)


def test_takeover_that_fails_half_way_is_finished_by_a_later_round(world, once_unavailable):
    """The first of two slots is ours by then, and nobody else would ever end what it has open."""
    with world.writer(lease_seconds=1, store=once_unavailable):
        once_unavailable.failing_id = f"{world.app}-6"
        world.store.lease(FOREIGN_OWNER, 3600)
        for number in (5, 6):
            CrashedInstance(world, f"{world.app}-{number}").prepare(number).decide().die()
        world.store.end_lease(FOREIGN_OWNER)

        wait_until(lambda: world.records() == [5, 6])
        wait_until(lambda: world.store.row(f"{world.app}-5").owner == "")
        assert once_unavailable.failing_id == ""


def test_slot_whose_claim_was_made_unnoticed_is_claimed_again(world, once_unavailable):
    """The fence has moved by our own hand: the slot is not lost to anybody."""

    def on_step(name):
        if name == "committed" and armed:
            armed.clear()
            once_unavailable.failing_id = f"{world.app}-0"
            once_unavailable.is_made = True
            raise KeyboardInterrupt  # the slot is left to recovery, which claims it

    armed = [True]
    with world.writer(lease_seconds=1, slots=1, store=once_unavailable, on_step=on_step) as dw:
        with pytest.raises(KeyboardInterrupt), dw.transaction() as tx:
            world.order(tx, 1)

        wait_until(lambda: world.records() == [1])


def test_slot_that_was_lost_before_its_first_recovery_is_replaced(world):
    """An instance stood still between its first claim and what follows, and was overtaken."""

    class Overtaken(SqlStore):
        def bind_cluster(self, transactional_id, fence, cluster_id):
            if not overtaken:
                overtaken.append(transactional_id)
                self.lease(FOREIGN_OWNER, 3600)
                self.claim(transactional_id, owner=FOREIGN_OWNER)
            super().bind_cluster(transactional_id, fence, cluster_id)

    overtaken = []
    store = Overtaken(world.engine, table=world.state_table)
    with world.writer(store=store, slots=1, lease_seconds=0.5) as dw, dw.transaction() as tx:
        world.order(tx, 1)

    assert tx.outcome.slot not in overtaken
    world.assert_agree([1])


class FailingTwice(SqlStore):
    """Two calls in a row get no answer."""

    failing = ""

    def _once_more(self, name):
        if self.failing == name and self.failures < 2:
            self.failures += 1
            raise StoreUnavailable("the database did not answer")

    failures = 0

    def record_heuristic(self, heuristic):
        self._once_more("record_heuristic")
        super().record_heuristic(heuristic)

    def forget_messages(self, transactional_id, state):
        self._once_more("forget_messages")
        super().forget_messages(transactional_id, state)


def test_heuristic_abort_that_could_not_be_written_down_is_found_again(world):
    def on_step(name):
        if name == "committed" and not store.failing:
            store.failing = "record_heuristic"
            with admin_of(world) as admin:
                admin.force_terminate_transaction(f"{world.app}-0")

    store = FailingTwice(world.engine, table=world.state_table)
    with world.writer(store=store, slots=1, lease_seconds=0.5, on_step=on_step) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.kafka == "pending"
        with dw.transaction() as other:
            world.order(other, 2)

    assert store.failures == 2
    assert [str(each.state) for each in world.store.heuristics()] == [tx.outcome.txn]
    assert world.records() == [2]


def test_slot_of_resume_mode_whose_recovery_fails_half_way_comes_back(world):
    store = FailingTwice(world.engine, table=world.state_table)
    store.failing = "forget_messages"
    with world.writer(store=store, slots=1, lease_seconds=0.5, mode="resume") as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.kafka == "pending"
        with dw.transaction() as tx:
            world.order(tx, 2)

    assert store.failures == 2
    world.assert_agree([1, 2])
