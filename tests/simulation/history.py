"""One history: draw a world, let clients and faults run, heal, and check.

python -m tests.simulation.history SEED [MUTANT]          prints what happened
python -m tests.simulation.history --seeds A:B[:STEP]     many of them, on all cores
"""

import argparse
import sys
from typing import Any, NamedTuple

import pytest

from dualwrite.wire.api_keys import ApiKey
from tests.simulation.checks import check_end
from tests.simulation.clients import Quota, copier, dual_writer, stray, version_1_producer
from tests.simulation.clumsy import bystander
from tests.simulation.database import Database
from tests.simulation.ledger import Ledger
from tests.simulation.mutants import MUTANTS
from tests.simulation.neighbours import neighbours
from tests.simulation.observer import Observer
from tests.simulation.world import IDS_MAX, Process, Violation, World

FAULTS_UNTIL_MS = 4_000
HEALED_LIMIT_MS = 30 * 60_000
DAY_MS = 86_400_000
# Behind which request the broker crashes, and about how many of them there are.
CRASHES = (
    (ApiKey.PRODUCE, 30),
    (ApiKey.END_TXN, 15),
    (ApiKey.INIT_PRODUCER_ID, 6),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 12),
    (ApiKey.ADD_OFFSETS_TO_TXN, 4),
    (ApiKey.TXN_OFFSET_COMMIT, 4),
    (ApiKey.OFFSET_FETCH, 8),
)


class Result(NamedTuple):
    seed: int
    violation: str | None
    requests: int
    transactions: int
    restarts: int


class Slot:
    """A transactional id, its quota and its incarnations, of which one is the newest."""

    def __init__(self, history: "History", transactional_id: str, quota: Quota, make: Any) -> None:
        self._history = history
        self._make = make
        self.id = transactional_id
        self.quota = quota
        self.processes: list[Process] = []
        self.is_in_order = transactional_id.startswith("plain")

    @property
    def newest(self) -> Process:
        return self.processes[-1]

    def spawn(self) -> None:
        world = self._history.world
        world.note(f"{self.id} starts incarnation {len(self.processes) + 1}")
        process = Process(world, self.id, self._make(), in_order=self.is_in_order)
        self.processes.append(process)
        process.start()


class History:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = world = World(seed)
        self.random = world.random
        self.ledger = Ledger()
        self.database = Database(world.random)
        self.observer = Observer(world, self.ledger, self.database)
        self.slots: list[Slot] = []
        self.neighbours: list[Process] = []
        for number in range(self.random.randint(1, 2) if not world.is_old else 0):
            self._add_dual(f"dual-{number}")
        for number in range(self.random.choice([0, 1, 1]) if not world.is_old else 2):
            self._add_plain(f"plain-{number}")
        if self.random.random() < 0.5:
            self._add_copier(self.random.choice([3, 5]) if not world.is_old else 3)

    def _add_dual(self, name: str) -> None:
        quota = Quota(self.random.randint(2, 5))
        self.slots.append(
            Slot(
                self,
                name,
                quota,
                lambda: dual_writer(self.world, self.ledger, self.database, name, quota),
            )
        )

    def _add_plain(self, name: str) -> None:
        quota = Quota(self.random.randint(2, 4))
        dialect = self.random.choice([0, 3])
        self.slots.append(
            Slot(
                self,
                name,
                quota,
                lambda: version_1_producer(self.world, self.ledger, name, quota, dialect),
            )
        )

    def _add_copier(self, version: int) -> None:
        name = "copy" if version == 5 else "plain-copy"
        quota = Quota(self.random.randint(2, 5))
        self.slots.append(
            Slot(self, name, quota, lambda: copier(self.world, self.ledger, name, quota, version))
        )

    def run(self) -> None:
        world = self.world
        self.watcher = Process(world, "observer", self.observer.steps()).start()
        for slot in self.slots:
            slot.spawn()
        strays = []
        if self.seed % 5 == 3:
            strays.append(Process(world, "stray", stray(world)).start())
        if world.is_clumsy:
            makers = neighbours(world)
            names = {slot.id for slot in self.slots} | makers.keys()
            names |= {f"greedy-{number}" for number in range(IDS_MAX)}
            self.neighbours = [
                Process(world, name, make(world), in_order=True).start()
                for name, make in makers.items()
            ]
            strays.append(Process(world, "bystander", bystander(world, names)).start())
        self._plan_faults()
        self._supervise()
        world.run(FAULTS_UNTIL_MS)
        for process in strays:
            process.kill()
        if world.weather.long_sleeps:
            self._sleep_long()
        self._heal()
        if world.is_clumsy and world.weather.long_sleeps:
            # What was used in between is not forgotten when its first alarm goes off.
            self.watcher.kill()
            world.run(world.now_ms + 4 * DAY_MS)
        check_end(world, self.ledger, self.database, self.observer)

    def _plan_faults(self) -> None:
        world, random, weather = self.world, self.random, self.world.weather

        def some_time() -> int:
            return random.randint(1, FAULTS_UNTIL_MS)

        for _ in range(weather.client_crashes):
            world.at(some_time(), self._crash_client)
        for _ in range(weather.zombies):
            world.at(some_time(), self._make_zombie)
        for _ in range(weather.broker_crashes):
            world.at(some_time(), lambda: world.crash_broker(random.choice([5, 100, 1_000, 6_000])))
        for _ in range(weather.crashes_in_a_write):
            world.at(some_time(), lambda: world.plan_crash_in_a_write(random.randint(1, 12)))
        for _ in range(weather.clock_jumps):
            world.at(some_time(), world.jump_wall_clock)
        if weather.offline:
            world.at(some_time(), world.take_partition_offline)

    def _crash_client(self) -> None:
        slot = self.random.choice(self.slots)
        if not slot.newest.is_done:
            self.world.note(f"{slot.id} crashes")
            slot.newest.kill()

    def _make_zombie(self) -> None:
        """The newest instance seems to be dead, is replaced, and comes back."""
        slot = self.random.choice(self.slots)
        if not slot.newest.is_done:
            self.world.note(f"{slot.id} is paused")
            slot.newest.pause(self.random.choice([300, 2_000, 8_000]))
            slot.spawn()

    def _supervise(self) -> None:
        """Start a new instance where the last one is gone before its time."""
        if self.world.now_ms >= FAULTS_UNTIL_MS:
            return
        for slot in self.slots:
            if slot.newest.is_done and slot.quota.left > 0:
                slot.spawn()
        self.world.after(self.random.choice([50, 300, 900]), self._supervise)

    def _sleep_long(self) -> None:
        """Nobody comes back for minutes or weeks: what is prepared must wait."""
        world = self.world
        for slot in self.slots:
            for process in slot.processes:
                process.kill()
        world.note("long sleep")
        short = 5 * DAY_MS if world.is_clumsy else 20 * 60_000
        until = world.now_ms + self.random.choice([short, 8 * DAY_MS])
        self.watcher.pause(until - world.now_ms)
        world.run(until)

    def _heal(self) -> None:
        world = self.world
        world.heal()
        world.run(world.now_ms + 50)
        for slot in self.slots:
            for process in slot.processes:
                process.wake()
            slot.spawn()
        processes = [*self.neighbours, *(p for slot in self.slots for p in slot.processes)]
        world.run(world.now_ms + HEALED_LIMIT_MS, lambda: all(p.is_done for p in processes))
        stuck = [process.name for process in processes if not process.is_done]
        if stuck:
            raise Violation(f"never finish: {stuck}")


def run_history(seed: int) -> Result:
    """Run a seed; what went wrong, an error inside the broker too, is in the result."""
    history = History(seed)
    violation = None
    try:
        history.run()
    except Violation as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001
        violation = f"{type(error).__name__} inside the broker: {error}"
    world = history.world
    return Result(seed, violation, world.requests, len(history.ledger.intents), world.restarts)


def main() -> None:
    parser = argparse.ArgumentParser()
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("seed", type=int, nargs="?", help="prints what happens in one history")
    what.add_argument("--seeds", metavar="A:B[:STEP]", help="runs many on all cores, B excluded")
    parser.add_argument(
        "mutant", choices=MUTANTS, nargs="?", metavar="MUTANT", help="planted in it"
    )
    options = parser.parse_args()
    if options.seeds is not None:
        from tests.simulation import many  # it runs what is defined here

        raise SystemExit(many.main(options.seeds))
    history = History(options.seed)
    with pytest.MonkeyPatch.context() as patch:
        if options.mutant is not None:
            MUTANTS[options.mutant].plant(patch)
        try:
            history.run()
        finally:
            sys.stdout.write("\n".join([str(history.world.weather), *history.world.trace, ""]))


if __name__ == "__main__":
    main()
