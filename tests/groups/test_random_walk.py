"""Classic groups under random joins, departures, deaths, delays and restarts, with simulated clients."""

import random

import pytest

from dualwrite.wire.error_codes import ErrorCode as E
from tests.groups.harness import Broker

SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Client:
    """Does what a consumer does: joins, syncs, and starts again when it is told to."""

    def __init__(self, world, instance):
        self.world, self.instance = world, instance
        self.member, self.generation = "", -1
        self.assignment = None
        self.join()

    @property
    def is_stable(self):
        return self.assignment is not None

    def join(self):
        self.assignment = None
        self.request = "join"
        self.token = self.world.broker.join(
            self.member, instance=self.instance, session=SESSION_MS, rebalance=REBALANCE_MS
        )

    def step(self):
        """Look at the reply that is there, or send a heartbeat."""
        broker = self.world.broker
        if self.is_stable:
            error = broker.heartbeat(self.member, self.generation, instance=self.instance)
            self.react(error)
        elif self.token in broker.replies:
            reply = broker.replies[self.token]
            self.on_join(reply) if self.request == "join" else self.on_sync(reply)

    def on_join(self, reply):
        if reply.error_code == E.MEMBER_ID_REQUIRED:
            self.member = reply.member_id
            self.join()
        elif reply.error_code:
            self.react(reply.error_code)
        else:
            self.member, self.generation = reply.member_id, reply.generation_id
            members = {m.member_id for m in reply.members}
            assignments = None
            if reply.leader == self.member and members:
                self.world.note_generation(self.generation, members)
                assignments = {m: f"{self.generation}:{m}".encode() for m in members}
            self.request = "sync"
            self.token = self.world.broker.sync(
                self.member, self.generation, assignments, group_instance_id=self.instance
            )

    def on_sync(self, reply):
        if reply.error_code:
            self.react(reply.error_code)
        else:
            self.assignment = reply.assignment
            self.world.check_assignment(self)

    def react(self, error):
        if error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.member, self.generation = "", -1
        if error:
            assert error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS)
            self.join()

    def reconnect(self):
        """The broker was restarted: what was parked is lost, so ask again."""
        if not self.is_stable:
            self.join()


class World:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.broker = Broker(**{"group.initial.rebalance.delay.ms": self.rng.choice([0, 500])})
        self.clients = []
        self.generations = {}

    def note_generation(self, number, members):
        # A static member that returns takes the place of its former id within a generation.
        assert len(self.generations.setdefault(number, members)) == len(members)

    def check_assignment(self, client):
        generation, _, owner = client.assignment.decode().partition(":")
        assert int(generation) == client.generation
        if client.instance is None:
            assert owner == client.member

    def step(self):
        choice = self.rng.random()
        if choice < 0.03 and len(self.clients) < 6:
            taken = {client.instance for client in self.clients}
            names = [n for n in (None, None, "a", "b") if n is None or n not in taken]
            self.clients.append(Client(self, self.rng.choice(names)))
        elif choice < 0.045 and self.clients:
            gone = self.clients.pop(self.rng.randrange(len(self.clients)))
            if gone.member and gone.instance is None and self.rng.random() < 0.5:
                self.broker.leave(gone.member)  # the others just fall silent
        elif choice < 0.06:
            self.broker.restart()
            for client in self.clients:
                client.reconnect()
        elif choice < 0.3:
            self.broker.pass_time(self.rng.choice([10, 500, 2_000]))
        elif self.clients:
            self.rng.choice(self.clients).step()

    def settle(self):
        """Everybody goes on for longer than any timeout; in the end the group has agreed."""
        for _ in range(4 * REBALANCE_MS // 500):
            self.broker.pass_time(500)
            for client in self.clients:
                client.step()


@pytest.mark.parametrize("seed", range(30))
def test_members_agree_in_the_end(seed):
    world = World(seed)
    for _ in range(600):
        world.step()
    world.settle()

    described = world.broker.groups.describe_group("g", 5)
    if not world.clients:
        assert described.group_state in ("Empty", "Dead")
        return
    assert described.group_state == "Stable"
    assert all(client.is_stable for client in world.clients)
    assert len({client.generation for client in world.clients}) == 1
    assert {m.member_id for m in described.members} == {c.member for c in world.clients}
