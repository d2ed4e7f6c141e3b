"""Two instances, one slot: the fence decides who may write, and no clock does (T1, T8)."""

import threading

import pytest
from sqlalchemy import text

from dualwrite import Fenced, PreparedTxnState, RetryableError, TwoPhaseProducer
from dualwrite.slot_pool import SlotPool
from dualwrite.steps import run
from dualwrite.store import CannotDecideYet
from tests.dualwrite.crashed import CrashedInstance
from tests.dualwrite.waiting import wait_until


def recover(world, transactional_id, expect=None):
    """Recovery by the bare parts, as another instance would do it."""
    claim = world.store.claim(transactional_id, expect, owner="other")
    producer = producer_of(world, transactional_id)
    producer.init_transactions(keep_prepared_txn=True)
    state = world.store.recall(transactional_id, claim.fence)
    completion = producer.complete_transaction(state)
    producer.close()
    return completion


def producer_of(world, transactional_id):
    return TwoPhaseProducer(
        {
            "bootstrap.servers": world.bootstrap,
            "transactional.id": transactional_id,
            "transaction.two.phase.commit.enable": True,
        }
    )


# T1: the zombie is an instance that is paused; the recoverer runs meanwhile. ------------------


def test_t1_zombie_with_an_open_state_write_makes_recovery_wait_and_then_commit(postgres_world):
    world = postgres_world
    zombie = CrashedInstance(world, f"{world.app}-0").prepare(1).write()
    results = []

    thread = threading.Thread(
        target=lambda: results.append(recover(world, zombie.transactional_id))
    )
    thread.start()
    wait_until(lambda: waits_for_a_lock(world))
    zombie.local.commit()
    thread.join()

    assert results == ["committed"]
    zombie.die()
    world.assert_agree([1])


def test_t1_zombie_that_never_goes_on_is_no_reason_to_guess(postgres_world):
    world = postgres_world
    zombie = CrashedInstance(world, f"{world.app}-0").prepare(1).write()

    with pytest.raises(CannotDecideYet):
        recover(world, zombie.transactional_id)

    zombie.local.rollback()
    assert recover(world, zombie.transactional_id) == "aborted"
    zombie.die()
    world.assert_agree_on_nothing()


def test_t1_zombie_that_writes_after_the_claim_writes_nothing(world):
    zombie = CrashedInstance(world, f"{world.app}-0").prepare(1)
    assert recover(world, zombie.transactional_id) == "aborted"

    with pytest.raises(Fenced):
        zombie.write()

    zombie.local.rollback()
    zombie.die()
    world.assert_agree_on_nothing()


def test_t1_zombie_of_the_first_transaction_ever_has_a_row_to_lock(postgres_world):
    """The slot's row exists before the first transaction, so there is something to wait for."""
    world = postgres_world
    zombie = CrashedInstance(world, f"{world.app}-0")
    assert world.store.row(zombie.transactional_id) is not None
    zombie.prepare(1).write()

    with pytest.raises(CannotDecideYet):
        world.store.claim(zombie.transactional_id)

    zombie.local.commit()
    assert recover(world, zombie.transactional_id) == "committed"
    zombie.die()
    world.assert_agree([1])


def test_t1_zombie_that_was_decided_before_the_claim_is_committed_by_the_recoverer(world):
    zombie = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()

    assert recover(world, zombie.transactional_id) == "committed"

    with pytest.raises(Fenced):
        zombie.producer.complete_transaction(zombie.state)
    zombie.die()
    world.assert_agree([1])


def test_t1_plain_read_by_a_recoverer_would_have_diverged(postgres_world):
    """The check on the checks: without a claim, the recipe decides from a stale read."""
    world = postgres_world
    zombie = CrashedInstance(world, f"{world.app}-0").prepare(1).write()
    stale = world.store.row(zombie.transactional_id).state
    producer = producer_of(world, zombie.transactional_id)
    producer.init_transactions(keep_prepared_txn=True)
    assert producer.complete_transaction(stale) == "aborted"
    producer.close()

    zombie.local.commit()
    zombie.die()

    assert world.rows() == [1]
    assert world.records() == []


def test_t1_recoverer_that_is_paused_after_its_claim_cannot_decide_from_it(world):
    """The seventh variant: between claim and init another instance claims, recovers and writes."""
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    slow = world.store.claim(crashed.transactional_id, owner="slow")

    successor = CrashedInstance(world, crashed.transactional_id)
    state = world.store.recall(crashed.transactional_id, successor.claim.fence)
    assert successor.producer.complete_transaction(state) == "committed"
    successor.prepare(2)

    producer = producer_of(world, crashed.transactional_id)
    producer.init_transactions(keep_prepared_txn=True)
    with pytest.raises(Fenced):
        world.store.recall(crashed.transactional_id, slow.fence)
    producer.close()  # it stops here, and ends nothing

    successor.decide()
    with pytest.raises(Fenced):
        successor.producer.complete_transaction(successor.state)
    successor.die()
    with world.writer():
        world.assert_agree([1, 2])


def test_t1_writer_that_is_overtaken_after_its_claim_ends_nothing(world):
    """The same with the writer's own recovery: what it has read with its claim is history."""
    successors = []

    def on_step(name):
        if name == "claimed" and not successors:
            successor = CrashedInstance(world, crashed.transactional_id)
            successors.append(successor)
            state = world.store.recall(crashed.transactional_id, successor.claim.fence)
            assert successor.producer.complete_transaction(state) == "committed"
            successor.prepare(2).decide()
            successor.die()

    with world.writer(slots=1):
        pass  # makes the row
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    with world.writer(slots=1, on_step=on_step):
        pass
    with world.writer(slots=1):
        world.assert_agree([1, 2])


def waits_for_a_lock(world):
    with world.engine.connect() as connection:
        return connection.execute(
            text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        ).scalar_one()


# The writer itself. -----------------------------------------------------------------------------


def test_t8_fenced_before_the_decision_is_retryable_and_another_slot_is_leased(world):
    with world.writer(slots=1) as dw:
        with pytest.raises(Fenced), dw.transaction() as tx:
            world.store.claim(tx.slot, owner="another-instance")
            world.order(tx, 1)
        assert (tx.outcome.database, tx.outcome.kafka) == ("rolled_back", "aborted")
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_overtaken_writer_of_resume_mode_does_not_wait_for_its_successor_s_messages(postgres_world):
    """It learns from the state row that it is overtaken, before it touches the copy of anybody."""
    world = postgres_world
    with world.writer(slots=1, mode="resume", lease_seconds=3600) as dw:
        with pytest.raises(Fenced), dw.transaction() as tx:
            successor = world.store.begin()
            world.store.claim(tx.slot, owner="another-instance")
            world.store.keep_messages(successor.handle, tx.slot, PreparedTxnState(1, 1), [b"x"])
            world.order(tx, 1)
        successor.rollback()

    assert world.rows() == []


def test_t8_fenced_after_the_decision_is_success_with_completion_pending(world):
    def on_step(name):
        if name == "committed" and not recovered:
            recovered.append(recover(world, f"{world.app}-0"))

    recovered = []
    with world.writer(slots=1, on_step=on_step) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert (tx.outcome.database, tx.outcome.kafka) == ("committed", "pending")
        assert recovered == ["committed"]
        world.assert_agree([1])
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([1, 2])


def test_owner_that_only_kafka_fences_recovers_its_own_slot(world):
    """Somebody inits with our id: our transactions fail, and the slot heals by itself."""
    with world.writer(slots=1) as dw:
        with pytest.raises(Fenced), dw.transaction() as tx:
            world.order(tx, 1)
            foreign = producer_of(world, tx.slot)
            foreign.init_transactions(keep_prepared_txn=True)
        with dw.transaction() as tx:
            world.order(tx, 2)
        foreign.close()

    world.assert_agree([2])


def test_slot_that_recovers_while_it_is_given_back_is_given_once(world):
    """Twice in the queue, one transaction's end would be another one's."""

    class Overtaken(SlotPool):
        __slots__ = ()

        def take_back(self, slot):
            super().take_back(slot)
            overtaking = threading.Thread(target=lambda: run(upkeep.round()))
            overtaking.start()
            overtaking.join()

    with world.writer(slots=1, slot_timeout=0, lease_seconds=3600) as dw:
        upkeep = dw._opened.upkeep
        with pytest.raises(Fenced), dw.transaction() as tx:
            world.order(tx, 1)
            foreign = producer_of(world, tx.slot)
            foreign.init_transactions(keep_prepared_txn=True)
            upkeep.pool.__class__ = Overtaken
        foreign.close()
        upkeep.pool.__class__ = SlotPool
        first = dw.begin()
        with pytest.raises(RetryableError, match="no slot"):
            dw.begin()
        first.rollback()
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_decided_transaction_that_kafka_fenced_is_committed_by_our_own_recovery(world):
    def on_step(name):
        if name == "committed" and not taken:
            producer = producer_of(world, f"{world.app}-0")
            producer.init_transactions(keep_prepared_txn=True)
            taken.append(producer)

    taken = []
    with world.writer(slots=1, on_step=on_step) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        assert tx.outcome.kafka == "pending"
        with dw.transaction() as tx:
            world.order(tx, 2)
    taken[0].close()

    world.assert_agree([1, 2])


def test_lease_that_ran_out_while_the_instance_stood_still_costs_a_retry_only(world):
    with world.writer(slots=1, lease_seconds=3600) as stopped:
        owner = world.store.row(f"{world.app}-0").owner
        world.store.end_lease(owner)
        with world.writer(slots=1) as successor:
            with successor.transaction() as tx:
                assert tx.slot == f"{world.app}-0"
                world.order(tx, 1)
            with pytest.raises(Fenced), stopped.transaction() as tx:
                world.order(tx, 2)
            stopped.run(lambda tx: world.order(tx, 3))

    world.assert_agree([1, 3])
