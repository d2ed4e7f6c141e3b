"""What an operator does about one id, while its owner goes on, and in resume mode."""

import pytest

from dualwrite import TransactionAdmin
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
