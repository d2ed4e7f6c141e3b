"""Every interleaving with few changes of turn: drivers, their tasks, zombies and crashes."""

import itertools

import pytest

from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.reports import TaskReport
from tests.spark.model import ModelKafka, ModelLog, Scheduler

QUERY, BATCH, PARTITIONS = "query:q", 0, 2


class World:
    """One sink, one batch of one row per partition, and whoever tries to write it."""

    def __init__(self, **kafka):
        self.log, self.kafka, self.scheduler = ModelLog(), ModelKafka("s", **kafka), Scheduler()
        # Zombies are tasks of an earlier driver.
        Coordinator("s", "earlier", self.kafka, self.log).open()

    def drive(self, token, partitions=PARTITIONS):
        """The life of a driver: recovery, the tasks, the decision, the end of it."""

        def run():
            coordinator = Coordinator("s", token, self.kafka, self.log, parallel=1)
            attempt = coordinator.open()
            if attempt.skips(QUERY, BATCH):
                return
            reports = [self.task(attempt.nonce, p, 0) for p in range(partitions)]
            coordinator.commit(reports, BATCH)

        return run

    def task(self, nonce, partition, attempt_number):
        task = self.kafka.begin(partition, attempt_number)
        task.send(f"row {partition}")
        return TaskReport(
            attempt=nonce, work=QUERY, batch=BATCH, partition=partition, rows=1,
            participant=task.prepare(), busy=task.busy,
        )  # fmt: skip

    def zombie(self):
        """A task that Spark has given up on; it runs whenever it likes and reports to nobody."""
        self.task("gone", 0, 0)

    def settle(self):
        """What an operator's recovery does at the end."""
        Coordinator("s", "operator", self.kafka, self.log).recover()
        last = Coordinator("s", "last", self.kafka, self.log)
        attempt = last.open()
        if not attempt.skips(QUERY, BATCH):
            last.commit([self.task(attempt.nonce, p, 0) for p in range(PARTITIONS)], BATCH)

    def check(self):
        assert sorted(self.kafka.committed) == [f"row {p}" for p in range(PARTITIONS)]
        assert [name for name, one in self.kafka.ids.items() if one.ongoing is not None] == []


def steps_of(work_of):
    world = World()
    world.scheduler.add("only", work_of(world))
    count = 0
    while world.scheduler.step("only"):
        count += 1
    return count + 1


def run(world, turns):
    """Follow `turns` (who, how many steps), then let everybody finish in the given order."""
    for name, count in turns:
        for _ in range(count):
            if not world.scheduler.step(name):
                break


def schedules(steps, switches):
    """Who runs for how long: every order of turns with at most `switches` changes.

    `steps` says of each how long a turn can be.
    """
    for order in itertools.product(steps, repeat=switches):
        if any(a == b for a, b in itertools.pairwise(order)):
            continue
        for counts in itertools.product(*(range(1, steps[name] + 1) for name in order)):
            yield list(zip(order, counts, strict=True))


def test_two_live_drivers_and_a_zombie_write_every_row_once():
    steps = steps_of(lambda world: world.drive("a"))
    # A zombie passes over the slots of two others at most, by three steps and one for each.
    zombies = steps_of(lambda world: world.zombie) + 2
    explored = 0
    for turns in schedules({"a": steps, "b": steps, "zombie": zombies}, 2):
        for last in (("a", "b", "zombie"), ("zombie", "b", "a")):
            world = World()
            world.scheduler.add("a", world.drive("a"))
            world.scheduler.add("b", world.drive("b"))
            world.scheduler.add("zombie", world.zombie)
            run(world, turns)
            for name in last:
                world.scheduler.finish(name)
            world.settle()
            world.check()
            explored += 1
    assert explored > 1000


def test_a_driver_killed_anywhere_is_finished_by_the_next():
    steps = steps_of(lambda world: world.drive("a"))
    for killed_at, zombie_at in itertools.product(range(steps + 1), repeat=2):
        world = World()
        world.scheduler.add("a", world.drive("a"))
        world.scheduler.add("zombie", world.zombie)
        world.scheduler.add("b", world.drive("b", partitions=PARTITIONS))
        run(world, [("a", killed_at)])
        world.scheduler.kill("a")
        run(world, [("b", zombie_at)])
        world.scheduler.finish("zombie")
        world.scheduler.finish("b")
        world.settle()
        world.check()


def test_a_recovery_killed_anywhere_is_finished_by_the_next():
    """What is decided stays written down until every transaction of it has ended."""
    steps = steps_of(lambda world: world.drive("a"))
    for killed_at, recovery_killed_at in itertools.product(range(steps + 1), repeat=2):
        world = World()
        world.scheduler.add("a", world.drive("a"))
        world.scheduler.add("b", world.drive("b"))
        for name, count in (("a", killed_at), ("b", recovery_killed_at)):
            run(world, [(name, count)])
            world.scheduler.kill(name)
        world.settle()
        world.check()


def test_the_same_driver_restarting_its_query_cannot_decide_twice():
    """The old query's commit may still be running when the new one opens the sink."""
    steps = steps_of(lambda world: world.drive("a"))
    for turns in schedules({"old": steps, "new": steps}, 3):
        world = World()
        world.scheduler.add("old", world.drive("same"))
        world.scheduler.add("new", world.drive("same"))
        run(world, turns)
        world.scheduler.finish("new")
        world.scheduler.finish("old")
        world.settle()
        world.check()


def test_without_keep_prepared_a_zombie_destroys_a_decided_batch():
    """The model can fail: this is the scheme that must not be used."""
    steps = steps_of(lambda world: world.drive("a"))
    lost = 0
    for killed_at in range(steps + 1):
        world = World(keeps_prepared=False)
        world.scheduler.add("a", world.drive("a"))
        world.scheduler.add("zombie", world.zombie)
        run(world, [("a", killed_at)])
        world.scheduler.finish("zombie")
        world.scheduler.finish("a")
        world.settle()
        try:
            world.check()
        except AssertionError:
            lost += 1
    assert lost > 0


def test_a_driver_that_was_overtaken_is_refused_for_ever():
    world = World()
    for token in ("a", "b"):
        Coordinator("s", token, world.kafka, world.log).open()

    with pytest.raises(Exception, match="newer driver"):
        Coordinator("s", "a", world.kafka, world.log).open()
