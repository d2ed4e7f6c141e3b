"""One history: writers that live, stop, die and come back, and what both sides hold in the end.

python -m tests.interleavings.history SEED [BUG]     prints what happened
"""

import asyncio
import contextlib
import functools
import logging
import sys
from collections import Counter
from dataclasses import dataclass
from random import Random
from unittest import mock

from sqlalchemy.util import await_only, greenlet_spawn

from dualwrite import (
    AsyncDualWriter,
    DualWriter,
    OutcomeUnknown,
    async_dual_writer,
    dual_writer,
    owner,
    recovery,
    resume,
    slot_queue,
    write_path,
)
from dualwrite.errors import DualWriteError, InvalidTxnState, RetryableError
from dualwrite.surroundings import Surroundings
from tests.interleavings.database import Database, Refused, Store
from tests.interleavings.kafka import Access, AwaitableAccess, Cluster
from tests.interleavings.network import CALM, IS_MAIN_THREAD, Network, Rates
from tests.interleavings.virtual import Clock, Killed, Process, Threads, VirtualLoop, now, sleep

APP, CONFIG = "app", {"bootstrap.servers": "nowhere"}
LEASE_SECONDS = 3
TIMEOUT_SECONDS = 8
IDLE_SECONDS = 6
FAULTS_SECONDS = 25
ALARMS = {
    "heuristic_abort",
    "database_behind",
    "forgotten",
    "new_database",
    "decided_but_not_proven",
}


class Violation(Exception):
    pass


class Mistake(Exception):
    """The application's own."""


@dataclass
class Attempt:
    """One block, and what its author was told: committed, not, or unknown."""

    number: int
    size: int
    told: str = "unknown"

    @property
    def records(self):
        return [f"{self.number}/{place}" for place in range(self.size)]


class Instance:
    """One incarnation of an application, with a writer for threads or for an event loop."""

    def __init__(self, history, name):
        random = self.random = history.random
        self.history = history
        self.process = Process(name)
        self.name = random.choice(history.names)
        self.slots = random.randint(1, 3)
        self.has_threads = random.random() < 0.6
        mode = random.choice(history.modes)
        config = dict(CONFIG)
        if mode == "resume":
            config["transaction.timeout.ms"] = TIMEOUT_SECONDS * 1000
        made = DualWriter if self.has_threads else AsyncDualWriter
        self.writer = made(
            config,
            store=Store(history.database),
            app=APP,
            slots=self.slots,
            lease_seconds=LEASE_SECONDS,
            kafka_commit=random.choice(("wait", "background")),
            slot_timeout=5,
            instance=self.name,
            mode=mode,
        )

    def __str__(self):
        settings = self.writer.settings
        kind = "threads" if self.has_threads else "asyncio"
        return f"{self.process} {kind} {settings.mode} {settings.kafka_commit} {self.slots} slots"

    def start(self, work, *args):
        return self.process.start(work, *args)

    def done(self, calls):
        """What an awaitable method gives, or a blocking one."""
        return calls if self.has_threads else await_only(calls)

    def live(self):
        """Open, write from several threads or tasks; True if it is still open afterwards."""
        try:
            self.done(self.writer.open())
        except (DualWriteError, TimeoutError) as error:
            self.history.network.note(f"could not open: {error!r}")
            return False
        tasks = [self.start(self.write_some) for _ in range(self.random.randint(1, self.slots + 1))]
        await_only(asyncio.wait(tasks))
        for task in tasks:
            task.result()
        return True

    def write_some(self):
        IS_MAIN_THREAD.set(self.has_threads)
        for _ in range(self.random.randint(1, 5)):
            sleep(self.random.choice((0, 0.01, 0.2, 1.5)))
            self.write(self.history.attempt())

    def write(self, attempt, pause=lambda: None):
        """One block; `pause` is called when its slot is taken."""
        network = self.history.network
        is_mistaken = network.chance(network.rates.commit_refused)
        tx = self.writer.transaction()
        attempt.told = "not"
        try:
            if self.has_threads:
                with tx:
                    self._block(tx, attempt, is_mistaken, pause)
            else:
                await_only(self._cancelled_at_times(tx, attempt, is_mistaken, pause))
            attempt.told = "committed"
        except OutcomeUnknown:
            attempt.told = "unknown"
        except (RetryableError, Refused, Mistake) as error:
            network.note(f"attempt {attempt.number} failed: {error!r}")
        except BaseException as error:
            attempt.told = _outcome(tx)
            if not isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, Killed)):
                raise
            self.process.check()
        network.note(f"attempt {attempt.number}: {attempt.told}")
        if attempt.told == "committed" and tx.outcome.kafka == "committed":
            self.history.require_visible(attempt)

    async def _cancelled_at_times(self, tx, attempt, is_mistaken, pause):
        async def write():
            async with tx:
                await greenlet_spawn(self._block, tx, attempt, is_mistaken, pause)

        task = asyncio.ensure_future(write())
        if self.history.network.chance(5 * self.history.network.rates.interrupted):
            loop = asyncio.get_running_loop()
            loop.call_later(self.random.uniform(0, 0.04), task.cancel)
        await task

    def _block(self, tx, attempt, is_mistaken, pause):
        pause()
        tx.session.append(attempt.number)
        for record in attempt.records:
            tx.produce("orders", value=record)
        if is_mistaken:
            raise Mistake

    def write_with_every_slot(self):
        """All slots at once: a slot that was lost on the way is missed here."""
        for _ in range(10):
            barrier = asyncio.Barrier(self.slots)
            attempts = [self.history.attempt() for _ in range(self.slots)]
            enter = functools.partial(_enter, barrier)
            tasks = [self.start(self.write, attempt, enter) for attempt in attempts]
            await_only(asyncio.wait(tasks))
            if all(attempt.told == "committed" for attempt in attempts):
                return
            sleep(LEASE_SECONDS)
        raise Violation(f"{self} does not get its slots back")

    def close(self):
        self.done(self.writer.close())

    def kill(self):
        self.history.network.note(f"{self} is killed")
        self.process.kill()
        self.history.database.disconnect(self.process)


def _enter(barrier):
    try:
        await_only(asyncio.wait_for(barrier.wait(), 30))
    except (TimeoutError, asyncio.BrokenBarrierError):
        raise RetryableError("the others did not come") from None


def _outcome(tx):
    try:
        return "committed" if tx.outcome.database == "committed" else "not"
    except InvalidTxnState:
        return "unknown"


class History:
    def __init__(self, seed):
        self.random = random = Random(seed)
        self.network = Network(random, Rates.drawn(random))
        self.database = Database(self.network)
        self.modes, version, epoch_max = random.choice(
            (
                (["2pc", "auto"], 2, 32767),
                (["2pc", "auto"], 2, 4),
                (["resume"], 2, 32767),
                (["resume", "auto"], 1, 32767),
                (["2pc", "resume"], 2, 32767),
            )
        )
        self.cluster = Cluster(self.network, version=version, epoch_max=epoch_max)
        self.names = random.choice(([""], [""], ["pod-0", "pod-1"], ["pod-0"]))
        self.attempts, self.alarms, self.instances = [], [], []
        self.tester = Process("tester")

    def token(self, size):
        return f"{self.random.getrandbits(8 * size):0{2 * size}x}"

    def attempt(self):
        self.attempts.append(Attempt(len(self.attempts), self.random.randint(1, 3)))
        return self.attempts[-1]

    def run(self):
        """The whole, as blocking code."""
        until = now() + FAULTS_SECONDS
        places = [self.tester.start(self._place, name, until) for name in ("one", "two")]
        operator = Process("operator").start(self._operate, until)
        await_only(asyncio.wait([*places, operator]))
        operator.result()
        last = [place.result() for place in places]
        self.network.note("peace")
        self.network.rates = CALM
        sleep(TIMEOUT_SECONDS + LEASE_SECONDS)
        last = [instance for instance in last if instance is not None]
        self.cluster.time_out()
        # A writer in two-phase mode that was overtaken by one in resume mode is fenced by the database
        # only: what it begins after that and leaves open is ended by the next opening.
        is_one_mode = self.modes != ["2pc", "resume"]
        if last and is_one_mode and (open_ids := self.cluster.open_ids()):
            raise Violation(f"{last[0]} lives, and nobody has ended {open_ids}")
        for instance in last:
            # Two of the same name take each other's slots for as long as both live.
            if not instance.name or [each.name for each in last].count(instance.name) == 1:
                instance.write_with_every_slot()
            instance.start(instance.close)
            sleep(LEASE_SECONDS)
        self._settle()
        self._judge()

    def _place(self, name, until):
        """Incarnations one after the other; the last that opened, if it lives."""
        number = 0
        while True:
            number += 1
            instance = Instance(self, f"{name}.{number}")
            self.network.note(f"{instance} starts")
            task = instance.start(instance.live)
            deadline = min(until, now() + self.random.choice((1, 5, 30)))
            while not task.done() and now() < deadline:
                sleep(self.random.uniform(0.1, 2))
                seconds = self.random.choice((0.1, 0.5, 4, 10))
                match self.random.randrange(16):
                    case 0:
                        self.network.note(f"{instance} stands still")
                        instance.process.stopped_until = now() + seconds
                    case 1:
                        self.network.note(f"{instance} is cut off")
                        instance.process.cut_off_until = now() + seconds
            if now() >= until:
                await_only(asyncio.wait([task], timeout=100))
                return instance if task.result() else None
            if task.done() and task.result() and self.random.random() < 0.5:
                await_only(asyncio.wait([instance.start(instance.close)]))
            else:
                instance.kill()

    def _operate(self, until):
        """Somebody who looks after the dead now and then, or takes a slot whoever has it."""
        while self.random.random() < 0.9 and now() < until:
            sleep(self.random.uniform(1, 8))
            options = {"store": Store(self.database), "mode": self.random.choice(self.modes)}
            try:
                if self.random.random() < 0.5:
                    recovery.recover(CONFIG, app=APP, **options)
                else:
                    recovery.resolve(CONFIG, f"{APP}-{self.random.randrange(4)}", **options)
            except DualWriteError as error:
                self.network.note(f"the operator did not get through: {error!r}")

    def _settle(self):
        """Whoever opens next recovers everything; what only a timeout ends has ended by then."""
        for mode in self.modes:
            sleep(TIMEOUT_SECONDS + 1)
            store = Store(self.database)
            writer = DualWriter(
                CONFIG, store=store, app=APP, slots=1, lease_seconds=LEASE_SECONDS, mode=mode
            )
            writer.open()
            writer.close()
        self.cluster.time_out()

    def require_visible(self, attempt):
        if not set(attempt.records) <= set(self.cluster.visible):
            raise Violation(f"{attempt} is said to be visible")

    def _judge(self):
        orders = Counter(self.database.orders)
        visible = Counter(self.cluster.visible)
        for attempt in self.attempts:
            count = orders[attempt.number]
            if count > 1 or any(visible[record] != count for record in attempt.records):
                raise Violation(f"{attempt}: {count} rows, {[visible[r] for r in attempt.records]}")
            if attempt.told != "unknown" and (attempt.told == "committed") != bool(count):
                raise Violation(f"{attempt}: {count} rows")
        if open_ids := self.cluster.open_ids():
            raise Violation(f"still open: {open_ids}")
        if self.alarms:
            raise Violation(f"false alarms: {self.alarms}")


class _Alarms(logging.Handler):
    def __init__(self, history):
        super().__init__()
        self._history = history

    def emit(self, record):
        event = getattr(record, "event", "")
        self._history.network.note(f"log: {record.getMessage()}")
        if event in ALARMS:
            self._history.alarms.append(record.getMessage())


@contextlib.contextmanager
def _in_this_world(history):
    """The writers, with the modules' doors to the outside leading here."""
    log = logging.getLogger("dualwrite")
    alarms = _Alarms(history)
    access = functools.partial(Access, history.cluster)
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (dual_writer, "threading", Threads),
            (slot_queue, "threading", Threads),
            (dual_writer, "time", Clock),
            (async_dual_writer, "time", Clock),
            (write_path, "time", Clock),
            (resume, "time", Clock),
            (dual_writer, "Surroundings", functools.partial(Surroundings, pause=sleep)),
            (dual_writer, "KafkaAccess", access),
            (recovery, "KafkaAccess", access),
            (recovery, "Surroundings", functools.partial(Surroundings, pause=sleep)),
            (async_dual_writer, "AsyncKafkaAccess", lambda s: AwaitableAccess(access(s))),
            (dual_writer, "IDLE_SECONDS_MAX", IDLE_SECONDS),
            (async_dual_writer, "IDLE_SECONDS_MAX", IDLE_SECONDS),
            (owner, "secrets", mock.Mock(token_hex=history.token)),
            (log, "propagate", False),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        log.addHandler(alarms)
        try:
            yield
        finally:
            log.removeHandler(alarms)


def run_history(seed):
    """Give what went wrong, or None, and what happened."""
    history = History(seed)
    loop = VirtualLoop()
    try:
        with _in_this_world(history):
            loop.run_until_complete(_run(history))
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed shows it again
        return f"{type(error).__name__}: {error}", history
    finally:
        loop.close()
    return None, history


async def _run(history):
    await history.tester.start(history.run)


if __name__ == "__main__":
    problem, history = run_history(int(sys.argv[1]))
    print(*history.network.trace, sep="\n")
    print(f"{len(history.attempts)} attempts, {len(history.database.orders)} rows, {problem}")
