"""A world in virtual time: one broker on a disk that forgets, a network that loses, and processes.

Everything that happens is drawn from one `Random`, so a seed is a history. The broker is the real
`Node` on the real storage; only sockets, the disk and time are not.
"""

import heapq
from dataclasses import dataclass
from random import Random
from typing import Any

from dualwrite.broker.call import HANG_UP, NO_REPLY, Call, Everyone
from dualwrite.broker.clock import Now
from dualwrite.broker.node import Node
from dualwrite.broker.security.sasl import SaslConnection
from dualwrite.broker.settings import Settings
from dualwrite.broker.storage.errors import StorageFailed
from dualwrite.broker.storage.memory_disk import Fault, MemoryDisk, PowerLoss
from dualwrite.broker.storage.storage import Group
from dualwrite.broker.topics import Topic
from dualwrite.wire.api_keys import ApiKey

CONFIGS = {"segment.bytes": 4096, "retention.ms": -1}
WALL_START_MS = 1_700_000_000_000
TOPICS = {"orders": 2, "payments": 1, "input": 1}
IDS_MAX, TWO_PHASE_MAX = 6, 2
PER_PRINCIPAL = {  # where clients err
    "max.transactional.ids.per.principal": IDS_MAX,
    "max.open.two.phase.transactions.per.principal": TWO_PHASE_MAX,
}
PARTITIONS = [(name, index) for name, count in TOPICS.items() for index in range(count)]


class Violation(Exception):
    """The broker broke a promise."""


@dataclass(frozen=True, slots=True)
class Send:
    """A request; its process goes on with the response, or with None if none came in time."""

    key: int
    version: int
    request: Any
    timeout_ms: int = 5_000
    principal: str = "User:simulated"


@dataclass(frozen=True, slots=True)
class Sleep:
    ms: int


@dataclass(slots=True)
class Weather:
    """How bad this history is; every seed draws its own (swarm testing)."""

    loss: float
    duplication: float
    stall: float
    client_crashes: int
    zombies: int
    broker_crashes: int
    crashes_in_a_write: int
    clock_jumps: int
    long_sleeps: int
    offline: bool
    epoch_max: int
    reorders: bool
    sync_ms: int
    crash_after_read: float
    by_thread: float

    @classmethod
    def draw(cls, random: Random) -> "Weather":
        is_calm = random.random() < 0.1
        return cls(
            loss=0 if is_calm else random.choice([0, 0.02, 0.1]),
            duplication=0 if is_calm else random.choice([0, 0.05, 0.2]),
            stall=0 if is_calm else random.choice([0, 0.04, 0.1]),
            client_crashes=random.randint(0, 4),
            zombies=random.choice([0, 0, 1, 2]),
            broker_crashes=random.randint(0, 3),
            crashes_in_a_write=random.randint(0, 2),
            clock_jumps=random.choice([0, 0, 2]),
            long_sleeps=random.choice([0, 0, 1]),
            offline=random.random() < 0.1,
            epoch_max=random.choice([2, 3, 5, 32_767]),
            reorders=random.random() < 0.3,
            sync_ms=random.choice([3, 10, 60]),
            crash_after_read=random.choice([0, 0, 0.1, 0.3]),
            by_thread=random.choice([0, 0, 0.5]),
        )


class Line:
    """One connection, used for one request: replies come back over the network or not at all."""

    def __init__(self, world: "World", reply: Any, principal: str = "User:simulated") -> None:
        self.principal = principal
        self.host = "127.0.0.1"
        self.listener = "PLAINTEXT"
        self.sasl: SaslConnection | None = None
        self._world = world
        self._reply = reply
        self.served = 0  # which InitProducerId of its transactional id this was

    def deliver(self, call: Call[Any], response: Any) -> None:
        if call.key == ApiKey.INIT_PRODUCER_ID and not response.error_code:
            self._world.note_init(call, response, self.served)
        if response is not NO_REPLY and self._reply is not None:
            self._reply(None if response is HANG_UP else response)


class Process:
    """A generator that yields `Send` and `Sleep`; it can be killed, or paused and become a zombie."""

    def __init__(self, world: "World", name: str, steps: Any, *, in_order: bool = False) -> None:
        self.world = world
        self.name = name
        self.is_done = False
        self.in_order = in_order
        self._steps = steps
        self._waits_for = 0
        self._paused_until = 0

    def start(self) -> "Process":
        self._resume(self._waits_for, None)
        return self

    def kill(self) -> None:
        self.is_done = True
        self._steps.close()

    def pause(self, ms: int) -> None:
        self._paused_until = self.world.now_ms + ms

    def wake(self) -> None:
        self._paused_until = 0

    def _resume(self, ticket: int, value: Any) -> None:
        if self.is_done or ticket != self._waits_for:
            return
        if self._paused_until > self.world.now_ms:
            self.world.at(self._paused_until, lambda: self._resume(ticket, value))
            return
        self._waits_for += 1
        try:
            wish = self._steps.send(value)
        except StopIteration:
            self.is_done = True
            return
        ticket = self._waits_for
        if isinstance(wish, Sleep):
            self.world.after(wish.ms, lambda: self._resume(ticket, None))
            return
        self.world.send(wish, lambda reply: self._resume(ticket, reply), in_order=self.in_order)
        self.world.after(wish.timeout_ms, lambda: self._resume(ticket, None))


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.weather = Weather.draw(self.random)
        self.now_ms = 0
        self.is_healed = False
        self.is_clumsy = seed % 7 == 2  # clients err now and then
        # Some of those meet a broker of an older feature level, or one without two-phase commit.
        self.is_old = seed % 21 == 9
        self.allows_two_phase = not self.is_old or seed % 63 != 9
        self.transaction_version = seed // 63 % 2 if self.is_old and self.allows_two_phase else 2
        self.trace: list[str] = []
        self._events: list[tuple[int, int, Any]] = []
        self._number = 0
        self._disk = MemoryDisk(seed=seed)
        # In every other history the coordinators' logs are compacted all the time.
        segment_bytes = 1_100 if seed % 2 else 100 << 20
        self._settings = Settings.of(
            {
                "transaction.state.log.num.partitions": 1,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.segment.bytes": segment_bytes,
                "offsets.topic.segment.bytes": segment_bytes,
                "log.cleaner.backoff.ms": 400,
                "log.cleaner.min.cleanable.ratio": 0.01,
                "journal.file.bytes": 131_072,
                "journal.reserve.bytes": 0,
                "checkpoint.interval.ms": self.random.choice([500, 5_000, 30_000]),
                "producer.epoch.max": self.weather.epoch_max,
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
                "auto.create.topics.enable": False,
                "offsets.retention.minutes": 2**30,
                "log.message.timestamp.before.max.ms": 2**62,
                "log.message.timestamp.after.max.ms": 2**62,
                "transaction.version": self.transaction_version,
                "transaction.two.phase.commit.enable": self.allows_two_phase,
                **(PER_PRINCIPAL if self.is_clumsy else {}),
            }
        )
        self.node: Node | None = None
        self.restarts = 0
        self.requests = 0
        self.served: dict[int, int] = {}  # API key -> requests
        self.crashes_at: set[tuple[int, int]] = set()  # API key, number of its request
        self.inits: dict[str, int] = {}  # transactional id -> InitProducerId served
        self.given: dict[tuple[int, int], int] = {}  # pair -> by which of them
        self.answered: dict[str, int] = {}  # transactional id -> the newest that was answered
        self.instances: list[tuple[str, int, tuple[int, int]]] = []  # id, by which of them, pair
        self._opened_ms = 0
        self._steady_at_open = 0
        self._wall_jump = 0
        self._flushes = False
        self._open()
        self._make_topics()

    # Time

    def at(self, when_ms: int, run: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_ms, self._number, run))

    def after(self, ms: int, run: Any) -> None:
        self.at(self.now_ms + ms, run)

    def run(self, until_ms: int, is_over: Any = None) -> None:
        """Let time pass until `until_ms`, or until `is_over()`."""
        while self._events and self._events[0][0] <= until_ms:
            if is_over is not None and is_over():
                return
            when_ms, _, happen = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, when_ms)
            happen()
        if is_over is None or not is_over():
            self.now_ms = max(self.now_ms, until_ms)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms:>9} {text}")

    @property
    def clock(self) -> Now:
        """The broker's two clocks: one may jump, the other stands still while it is down."""
        return Now(
            WALL_START_MS + self.now_ms + self._wall_jump,
            self._steady_at_open + self.now_ms - self._opened_ms,
        )

    def errs(self) -> bool:
        """Whether a client makes a mistake now."""
        return self.is_clumsy and self.random.random() < 0.3

    def jump_wall_clock(self) -> None:
        self._wall_jump += self.random.choice([-86_400_000, -3_600_000, 3_600_000, 10**11])
        self.note("wall clock jumps")

    # The broker

    def _open(self) -> None:
        self._disk.attach()
        wall_ms = WALL_START_MS + self.now_ms + self._wall_jump
        node = Node.open(self._disk, self._settings, wall_ms)
        self.node = node
        self._opened_ms = self.now_ms
        self._steady_at_open = node.storage.steady_ms
        self._flushes = False
        self._tick_later(node, 300)

    def _make_topics(self) -> None:
        assert self.node is not None
        for name, count in TOPICS.items():
            topic_id = self.node.new_topic_id()
            self.node.create_topic(Topic(name, topic_id, count, dict(CONFIGS)), self.clock)
        self.node.flush(self.clock)

    def _tick_later(self, node: Node, interval_ms: int) -> None:
        served = self.requests

        def tick() -> None:
            if self.node is node:
                if not self._flushes:  # the server waits for a group that is being written
                    self._guarded(lambda: node.tick(self.clock))
                    self._flush_soon()
                # While nothing happens time is cheap.
                is_idle = self.requests == served
                self._tick_later(node, min(2 * interval_ms, 7_200_000) if is_idle else 300)

        self.after(interval_ms, tick)

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except (PowerLoss, StorageFailed) as error:
            self.note(f"stopped in a write: {error}")
            self.crash_broker(restart_after_ms=self.random.choice([5, 200, 3_000]))

    def note_init(self, call: Call[Any], response: Any, served: int) -> None:
        """From now on everybody with an older pair is fenced."""
        name = call.request.transactional_id
        if name is None:
            return
        self.given[response.producer_id, response.producer_epoch] = served
        self.answered[name] = max(served, self.answered.get(name, 0))
        self.instances.append((name, served, (response.producer_id, response.producer_epoch)))

    def arrive(self, call: Call[Any]) -> None:
        node = self.node
        if node is None:
            return
        call.now = self.clock
        self.requests += 1
        if call.key == ApiKey.INIT_PRODUCER_ID:
            name = call.request.transactional_id
            assert isinstance(call.connection, Line)
            self.inits[name] = call.connection.served = self.inits.get(name, 0) + 1
        storage = node.storage
        position = storage.position
        is_behind = position > storage.durable
        self._guarded(lambda: node.handle(call))
        self._flush_soon()
        # A read of something that is not durable: whatever is told now a crash can take back.
        is_daring = is_behind and storage.position == position and not self.is_healed
        if is_daring and self.random.random() < self.weather.crash_after_read:
            self.crash_broker(self.random.choice([5, 200]))
        number = self.served[call.key] = self.served.get(call.key, 0) + 1
        if (call.key, number) in self.crashes_at and not self.is_healed:
            # Before what was just done is durable, or soon after its reply has left.
            delay, rest = self.random.choice([0, 0, 2, 9]), self.random.choice([5, 200, 6_000])
            self.after(delay, lambda: self.crash_broker(rest))

    def _flush_soon(self) -> None:
        node = self.node
        if node is None or self._flushes:
            return
        self._flushes = True
        by_thread = self.random.random() < self.weather.by_thread
        step = self._begin_group if by_thread else self._flush
        self.after(self.random.choice([0, 1, 3, self.weather.sync_ms]), lambda: step(node))

    def _flush(self, node: Node) -> None:
        """As the server syncs small groups."""
        if self.node is node:
            self._flushes = False
            self._guarded(lambda: node.flush(self.clock))

    def _begin_group(self, node: Node) -> None:
        """As the server syncs large groups: others are served while a thread writes."""
        if self.node is not node:
            return
        group = node.storage.next_group()
        if group is None:
            self._flush(node)
            return

        def write() -> None:
            if self.node is node:
                self._flushes = False
                self._guarded(lambda: self._finish_group(node, group))

        self.after(self.random.choice([1, 5, self.weather.sync_ms]), write)

    def _finish_group(self, node: Node, group: Group) -> None:
        node.storage.write_group(group)
        node.storage.finish_group(group)
        node.release(self.clock)
        self._flush_soon()

    def crash_broker(self, restart_after_ms: int) -> None:
        """The power goes: everything in memory and a part of what was not synced is lost."""
        if self.node is None:
            return
        self.node = None
        self.restarts += 1
        how = self.random.random()
        if how < 0.2:
            self._disk.kill()
        elif how < 0.4:
            self._disk.crash()
        else:
            self._disk.crash(self.random, reorder=self.weather.reorders)
        self.note("broker is down")
        self.after(restart_after_ms, self._restart)

    def _restart(self) -> None:
        if self.node is not None:
            return
        if not self.is_healed and self.random.random() < 0.1:
            self.plan_crash_in_a_write(self.random.randint(1, 10))
        try:
            self._open()
        except (PowerLoss, StorageFailed):
            self.note("stopped while starting")
            self._disk.crash(self.random, reorder=self.weather.reorders)
            self.after(self.random.choice([5, 200]), self._restart)
            return
        self.note("broker is up")

    def plan_crash_in_a_write(self, operations: int) -> None:
        target = self._disk.operations + operations
        fault = self.random.choice([Fault.STOP_BEFORE, Fault.STOP_HALFWAY, Fault.STOP_AFTER])

        def plan(number: int, operation: str, path: str) -> Fault | None:
            return fault if number >= target else None

        self._disk.fault = plan

    def take_partition_offline(self) -> None:
        """Until the next start of the broker."""
        if self.node is not None:
            name, index = self.random.choice(PARTITIONS)
            log = self.node.find_log(name, index)
            assert log is not None
            log.take_offline("simulated damage")
            self.note(f"{name}-{index} goes offline")

    def heal(self) -> None:
        """No more faults; a last restart brings back what was offline."""
        self.is_healed = True
        self.weather.loss = self.weather.duplication = self.weather.stall = 0
        self._disk.fault = None
        if self.node is None:
            self.after(10, self._restart)
        else:
            self.crash_broker(restart_after_ms=10)
        self.note("healed")

    # The network

    def send(self, wish: Send, reply: Any, *, in_order: bool) -> None:
        """Carry a request to the broker and its response back, each with its own fate.

        `in_order`: as old clients need it. Nothing arrives after its sender has given up.
        """
        random, weather = self.random, self.weather
        copies = 2 if not in_order and random.random() < weather.duplication else 1
        for copy in range(copies):
            if random.random() < weather.loss:
                continue
            delay = random.choice([0, 1, 2, 5])
            if copy or random.random() < weather.stall:
                delay = random.choice([3, 30, 400, 3_000, 30_000])
            if in_order:
                delay = min(delay, wish.timeout_ms // 2)
            line = Line(self, self._reply_over_network(reply, in_order), wish.principal)
            call = Call(
                wish.key, wish.version, 0, "sim", wish.request, line, Everyone(), self.clock
            )
            self.after(delay, lambda call=call: self.arrive(call))

    def _reply_over_network(self, reply: Any, in_order: bool) -> Any:
        def deliver(response: Any) -> None:
            random, weather = self.random, self.weather
            if random.random() < weather.loss:
                return
            delay = random.choice([0, 1, 2, 5])
            if not in_order and random.random() < weather.stall:
                delay = random.choice([30, 400, 3_000, 30_000])
            self.after(delay, lambda: reply(response))

        return deliver
