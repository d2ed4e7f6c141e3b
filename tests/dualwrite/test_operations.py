"""What an operator does about one id, while its owner goes on, and in resume mode."""

import pytest

from dualwrite import Fenced, HeuristicAbort, TransactionAdmin, TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker
from dualwrite.operations import Refusal, look, look_at_all, resolve, terminate
from tests.dualwrite.crashed import CrashedInstance
from tests.dualwrite.test_resume import CrashedInResume


class OvertakenAdmin(TransactionAdmin):
    """One of its looks at an id is outdated by the time anybody acts on it."""

    def __init__(self, config, meanwhile, look=1):
        super().__init__(config)
        self._meanwhile, self._looks_left = meanwhile, look

    def describe_transactions(self, ids):
        found = super().describe_transactions(ids)
        self._looks_left -= 1
        if self._looks_left == 0:
            self._meanwhile()
        return found


def test_forced_end_is_decided_from_what_is_open_behind_the_claim(sqlite_world):
    """Between the operator's look and the claim the owner ends one transaction and decides the next."""
    world = sqlite_world
    owner = CrashedInstance(world, f"{world.app}-0").prepare(1)

    def go_on():
        owner.decide()
        owner.producer.complete_transaction(owner.state)
        owner.prepare(2).decide()

    config = {"bootstrap.servers": world.bootstrap}
    with OvertakenAdmin(config, go_on) as admin, pytest.raises(Refusal, match="has committed"):
        terminate(config, world.store, admin, owner.transactional_id)
    owner.die()
    with world.writer():
        world.assert_agree([1, 2])


def test_forced_end_never_strikes_what_a_peer_has_decided_behind_the_claim(sqlite_world):
    """An operator has no lease, so a peer may take over from him, end the one and decide the next."""
    world = sqlite_world
    owner = CrashedInstance(world, f"{world.app}-0").prepare(1)
    peers = []

    def take_over():
        peer = CrashedInstance(world, owner.transactional_id)
        peer.producer.complete_transaction("")
        peers.append(peer.prepare(2).decide())

    config = {"bootstrap.servers": world.bootstrap}
    with (
        OvertakenAdmin(config, take_over, look=2) as admin,
        pytest.raises(Refusal, match="claimed"),
    ):
        terminate(config, world.store, admin, owner.transactional_id)
    owner.die()
    peers[0].die()
    with world.writer():
        world.assert_agree([2])


def test_forced_end_of_what_has_ended_meanwhile_is_refused(sqlite_world):
    world = sqlite_world
    owner = CrashedInstance(world, f"{world.app}-0").prepare(1)
    config = {"bootstrap.servers": world.bootstrap}
    end = owner.producer.abort_transaction
    with OvertakenAdmin(config, end) as admin, pytest.raises(Refusal, match="nothing open"):
        terminate(config, world.store, admin, owner.transactional_id)
    owner.die()
    assert world.store.row(owner.transactional_id).owner == ""


@pytest.mark.parametrize("is_decided", [True, False])
def test_forced_end_is_no_end_by_the_client(sqlite_world, is_decided):
    """The KIP's own recipe, with a bare producer, must not take it for "completed long ago"."""
    world = sqlite_world
    owner = CrashedInstance(world, f"{world.app}-0").prepare(1)
    if is_decided:
        owner.decide()
    owner.die()
    config = {"bootstrap.servers": world.bootstrap}
    with TransactionAdmin(config) as admin:
        terminate(config, world.store, admin, owner.transactional_id, reason="readers wait")
    restarted = TwoPhaseProducer(
        {
            **config,
            "transactional.id": owner.transactional_id,
            "transaction.two.phase.commit.enable": True,
        }
    )
    with restarted:
        restarted.init_transactions(keep_prepared_txn=True)
        with pytest.raises(HeuristicAbort, match="forced"):
            restarted.complete_transaction(owner.state)
    assert world.records() == []


def test_forced_end_never_strikes_a_peer_that_came_behind_its_last_look(sqlite_world):
    """The store says that the claim is still the newest; then a peer takes over and decides."""
    world = sqlite_world
    peers = []

    class SeenEarly(SqlStore):
        def recall(self, name, fence):
            found = super().recall(name, fence)
            peer = CrashedInstance(world, name)
            peer.producer.complete_transaction("")
            peers.append(peer.prepare(2).decide())
            return found

    owner = CrashedInstance(world, f"{world.app}-0").prepare(1)
    owner.die()
    config = {"bootstrap.servers": world.bootstrap}
    store = SeenEarly(world.engine, table=world.state_table)
    with TransactionAdmin(config) as admin, pytest.raises(Fenced):
        terminate(config, store, admin, owner.transactional_id)
    peers[0].die()
    with world.writer():
        world.assert_agree([2])


def test_another_cluster_s_transaction_is_refused_before_anything_is_claimed(world):
    """T11: the row is of one cluster, the operator has named another where the same id is in use."""
    with world.writer(slots=1, lease_seconds=60), Broker() as other:
        elsewhere = {"bootstrap.servers": other.bootstrap_servers}
        before = world.store.row(f"{world.app}-0")
        left = TwoPhaseProducer(
            {
                **elsewhere,
                "transactional.id": before.transactional_id,
                "transaction.two.phase.commit.enable": True,
            }
        )
        left.init_transactions()
        left.begin_transaction()
        left.produce(world.topic, b"x")
        left.prepare_transaction()
        left.close()
        with TransactionAdmin(elsewhere) as admin:
            explanation, described = look(world.store, admin, before.transactional_id)
            assert explanation.advice == "look"
            assert before.cluster_id in explanation.reasons[-1]
            with pytest.raises(Refusal, match="--bootstrap-servers"):
                resolve(elsewhere, world.store, explanation, before.transactional_id, now=True)
            assert look_at_all([before], admin) == {before.transactional_id: explanation}
            with pytest.raises(Refusal, match="--bootstrap-servers"):
                terminate(elsewhere, world.store, admin, before.transactional_id, reason="x")
            assert described.state == "Ongoing"
            assert look(world.store, admin, before.transactional_id) == (explanation, described)
        assert world.store.row(before.transactional_id) == before
        assert world.store.heuristics() == []


@pytest.mark.parametrize("is_asked_by_slot", [True, False])
def test_resume_mode_is_explained_and_resolved_by_slot_and_by_id(sqlite_world, is_asked_by_slot):
    world = sqlite_world
    crashed = CrashedInResume(world).produce(1).decide().die()
    name = crashed.slot if is_asked_by_slot else crashed.kafka_id
    config = {"bootstrap.servers": world.bootstrap}
    with TransactionAdmin(config) as admin:
        explanation, described = look(world.store, admin, name)
        assert explanation.advice == "commit"
        assert described.transactional_id == crashed.kafka_id
        assert look_at_all(world.store.rows(), admin) == {crashed.slot: explanation}
        assert resolve(config, world.store, explanation, name) == "commit"
        assert look(world.store, admin, name)[0].advice == "nothing"
    world.assert_agree([1])
