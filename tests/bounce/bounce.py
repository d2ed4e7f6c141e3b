"""Kills everything at random while clients work, then heals, recovers and looks at what is left.

python -m tests.bounce.bounce --seconds 600 --seed 7

A long run has rounds, each with its trouble, its peace and its verdict, so that its histories fit into
memory; broker and database stay the same over all of them.
"""

import argparse
import json
import math
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import Engine

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import BrokerProcess
from tests.bounce import clients
from tests.bounce.clients import COPIERS, COPIES, ORDERS, PARTITIONS, WRITERS, Place
from tests.bounce.work import Work
from tests.faults.random_acts import act_for
from tests.faults.tight_settings import tight_settings
from tests.history.checker import Anomaly, check
from tests.history.history import History, Recorder, load
from tests.history.leftovers import unfinished
from tests.history.lives import Client
from tests.history.watermarks import Watcher, ends
from tests.servers.postgres import PostgresServer

COPIER_COUNT = 3
# Between one fault and the next of its kind; a broker that starts again takes a second or two more.
BROKER_PAUSE = (0.3, 2.0)
CLIENT_PAUSE = (1.0, 2.5)
DATABASE_PAUSE = (20.0, 40.0)
# Some brokers die while they start, that is, in recovery; starting takes half a second.
STARTING_CHANCE = 0.3
STARTING_SECONDS = (0.0, 0.6)
ROUND_SECONDS = 600.0
BAR_SECONDS = 60
BAR_KILLS = 20
BAR_RECORDS = 20_000
"""A minute's broker kills and orders that a run is held against."""
KILLS_MIN = {"broker": BAR_KILLS, "clients": 10, "database": 1}
"""By the end of a run of a minute or more: it goes on until they are done."""
ORDERS_MIN = BAR_RECORDS
"""A run, however short, goes on until twice as many offsets are in use: markers and copies have some."""
OVERTIME_SECONDS_MAX = 400.0
"""How much longer a run may take on a machine that has much else to do."""
HEAL_SECONDS_MAX = 180.0
KEYS = [f"{topic}/{p}" for topic in (ORDERS, COPIES) for p in range(PARTITIONS)]


@dataclass
class Report:
    """What a run did and what the checks found."""

    seed: int
    database: str
    asked_seconds: float = BAR_SECONDS
    seconds: float = 0
    """What it has taken."""
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    in_trouble: dict[str, Counter[str]] = field(default_factory=dict)
    """What each client has done before peace came, over all its lives: commits and records seen.

    Peace alone would let every client come to its end, so what it did there shows nothing.
    """
    watermarks: int = 0
    """Answers about last stable offsets and high watermarks, all in trouble."""
    orders: int = 0
    copies: int = 0
    rows: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of the {name}" for name, count in sorted(self.kills.items()))
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        committed = self._done("committed")
        seen = self._done("seen")
        return (
            f"seed {self.seed}, {self.database}, {self.seconds:.0f} s: kills: {kills};"
            f" transactions: {outcomes} (ok in trouble: {committed}); read in trouble: {seen};"
            f" {self.watermarks} looks at the watermarks;"
            f" {self.rows} rows, {self.orders} orders, {self.copies} copies,"
            f" {len(self.anomalies)} anomalies; {self.against_the_bar()}"
        )

    def _done(self, what: str) -> str:
        counts = ((name, done[what]) for name, done in sorted(self.in_trouble.items()))
        return ", ".join(f"{name} {count}" for name, count in counts if count)

    def idle(self) -> list[str]:
        """Who has not done before peace came what it is there for."""
        wanted = {f"w{n}": "committed" for n in range(len(WRITERS))}
        wanted |= {f"c{n}": "committed" for n in range(COPIER_COUNT)}
        wanted |= dict.fromkeys(("whole", "late"), "seen")
        done = self.in_trouble
        return [name for name, what in wanted.items() if not done.get(name, Counter())[what]]

    def __add__(self, later: "Report") -> "Report":
        """Both as one, under the seed of the first."""
        names = {*self.in_trouble, *later.in_trouble}
        mine, its = self.in_trouble, later.in_trouble
        return Report(
            self.seed,
            self.database,
            asked_seconds=self.asked_seconds + later.asked_seconds,
            seconds=self.seconds + later.seconds,
            kills=self.kills + later.kills,
            outcomes=self.outcomes + later.outcomes,
            in_trouble={n: mine.get(n, Counter()) + its.get(n, Counter()) for n in names},
            watermarks=self.watermarks + later.watermarks,
            orders=self.orders + later.orders,
            copies=self.copies + later.copies,
            rows=self.rows + later.rows,
            anomalies=self.anomalies + later.anomalies,
        )

    def kills_wanted(self) -> dict[str, int]:
        """Who has to die how often; fewer times in a run that is meant to be short."""
        share = min(1, self.asked_seconds / BAR_SECONDS)
        wanted = {name: int(count * share) for name, count in KILLS_MIN.items()}
        if self.database == "sqlite":  # it dies with its client
            del wanted["database"]
        return wanted

    def kills_missing(self) -> list[str]:
        return [name for name, count in self.kills_wanted().items() if self.kills[name] < count]

    def against_the_bar(self) -> str:
        share = self.seconds / BAR_SECONDS
        return (
            f"{self.kills['broker']} broker kills (the bar for so long a run:"
            f" {BAR_KILLS * share:.0f}), {self.orders} records (the bar: {BAR_RECORDS * share:.0f})"
        )


class Bounce:
    """The broker, the database, the clients, and those who kill them."""

    def __init__(
        self, directory: Path, seed: int, broker: BrokerProcess, postgres: PostgresServer | None
    ) -> None:
        self._seed = seed
        self._broker = broker
        self._postgres = postgres
        self._recorder = Recorder(directory / "history")
        self._work = Work(directory / "history")
        url = postgres.url if postgres else f"sqlite:///{directory / 'orders.db'}"
        self.place = Place(broker.bootstrap_servers, url, directory / "history", directory / "stop")
        self._watcher = Watcher(self._recorder, broker.bootstrap_servers, KEYS)
        self.report = Report(seed, "postgresql" if postgres else "sqlite")
        self._create()
        self.clients = [
            *(Client(w, f"w{n}", self.place, seed * 1000 + n) for n, w in enumerate(WRITERS)),
            *(Client(clients.copy, f"c{n}", self.place, n) for n in range(COPIER_COUNT)),
            Client(clients.read, "late", self.place, False),
        ]
        self.reader = Client(clients.read, "whole", self.place, True)

    def _create(self) -> None:
        """The topics, empty, and the tables: what an earlier round has left in them is gone."""
        admin = AdminClient({"bootstrap.servers": self.place.bootstrap})
        topics = {ORDERS, COPIES}
        if there := topics & set(admin.list_topics(timeout=30).topics):
            for future in admin.delete_topics([*there]).values():
                future.result(30)
        made = admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in sorted(topics)])
        for future in made.values():
            future.result(30)
        with self._database() as engine:
            clients.create_tables(engine)

    @contextmanager
    def _database(self) -> Iterator[Engine]:
        engine = clients.engine_of(self.place)
        try:
            yield engine
        finally:
            engine.dispose()

    # Trouble

    def run(self, seconds: float) -> None:
        """Let everything work and die for so long, and until enough has been done."""
        acts = {
            "broker": (BROKER_PAUSE, self._bounce_broker),
            "client": (CLIENT_PAUSE, self._bounce_client),
            "database": (DATABASE_PAUSE, self._bounce_database),
            "watermarks": ((0.3, 0.3), self._watcher.look),
        }
        self.report.asked_seconds = seconds
        self.report.seconds = act_for(
            seconds, self._seed, acts, until=self._is_enough, overtime=OVERTIME_SECONDS_MAX
        )
        self._work.look()
        self.report.in_trouble = dict(self._work.done)
        self.report.watermarks = self._watcher.answers
        for client in (*self.clients, self.reader):
            assert client.process.is_alive(), f"{client.name} ended by itself"

    def _is_enough(self) -> bool:
        self._work.look()
        self.report.in_trouble = dict(self._work.done)
        written = sum(n for key, n in self._watcher.high.items() if key.startswith(ORDERS))
        missing = self.report.kills_missing() + self.report.idle()
        return missing == [] and written >= 2 * ORDERS_MIN

    def _bounce_broker(self, chance: random.Random) -> None:
        self._broker.kill()
        self.report.kills["broker"] += 1
        while chance.random() < STARTING_CHANCE:
            self._kill_while_starting(chance.uniform(*STARTING_SECONDS))
        self._broker.start()

    def _kill_while_starting(self, seconds: float) -> None:
        self._broker.start(ready=False)
        time.sleep(seconds)
        self._broker.kill()
        self.report.kills["starting broker"] += 1

    def _bounce_client(self, chance: random.Random) -> None:
        victim = chance.choice(self.clients)
        victim.kill()
        code = victim.process.exitcode
        assert code == -signal.SIGKILL, f"{victim.name} had ended with {code} before"
        self.report.kills["clients"] += 1
        victim.start()

    def _bounce_database(self, chance: random.Random) -> None:
        if self._postgres is not None:
            self._postgres.crash()
            self.report.kills["database"] += 1

    # Peace

    def heal(self) -> None:
        """End the writers, recover what they left, and let the others come to the end."""
        for client in self.clients:
            if client.name.startswith("w"):
                client.kill()
        with self._database() as engine, clients.writer_of(self.place, SqlStore(engine)):
            pass  # opening recovers everything that a dead instance left
        admin = AdminClient({"bootstrap.servers": self.place.bootstrap})
        orders = ends(admin, KEYS, IsolationLevel.READ_COMMITTED)
        self._wait("copiers", lambda: self._is_copied(orders))
        for client in self.clients:
            client.kill()
        for n in range(COPIER_COUNT):
            producer = TwoPhaseProducer(
                {"bootstrap.servers": self.place.bootstrap, "transactional.id": f"copier-{n}"}
            )
            producer.init_transactions(timeout=30)
            producer.close()
        self._read_everything()
        self.reader.process.join(HEAL_SECONDS_MAX)
        if self.reader.process.exitcode != 0:
            self.report.anomalies.append(Anomaly("reader-stuck", "it never came to the end"))

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HEAL_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                for client in self.clients:
                    client.show_stacks()
                self.report.anomalies.append(Anomaly("stuck", f"{what} did not finish"))
                return
            time.sleep(0.2)

    def _committed(self) -> list[TopicPartition]:
        """How far the copiers' group has come."""
        consumer = clients.consumer_of(self.place, COPIERS)
        try:
            asked = [TopicPartition(ORDERS, p) for p in range(PARTITIONS)]
            return list(consumer.committed(asked, 20))
        finally:
            consumer.close()

    def _is_copied(self, wanted: dict[str, int]) -> bool:
        """Whether the group has committed everything: the rest of a partition are markers alone."""
        try:
            for partition in self._committed():
                end = wanted[f"{ORDERS}/{partition.partition}"]
                if partition.offset < end and self._has_records(partition, end):
                    return False
            return True
        except KafkaException:
            return False

    def _has_records(self, partition: TopicPartition, end: int) -> bool:
        start = max(partition.offset, 0)
        seen = records_between(self.place, partition.topic, partition.partition, start, end)
        return bool(seen)

    def _read_everything(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.place.bootstrap})
        limits = ends(admin, KEYS, IsolationLevel.READ_UNCOMMITTED)
        last = {}
        for key in KEYS:
            topic, partition = key.split("/")
            seen = records_between(self.place, topic, int(partition), 0, limits[key])
            self._recorder.write("final", key=key, seen=seen)
            last[key] = seen[-1][0] if seen else -1
        with self._database() as engine:
            names = clients.rows_of(engine)
        self._recorder.write("rows", txns=names)
        self.report.rows = len(names)
        for partition in self._committed():
            key = f"{ORDERS}/{partition.partition}"
            offset = max(partition.offset, -1)
            self._recorder.write("committed", group=COPIERS, key=key, offset=offset)
        unfinished = self.place.stop.with_suffix(".new")
        unfinished.write_text(json.dumps(last))
        unfinished.rename(self.place.stop)

    # The verdict

    def judge(self) -> Report:
        self._recorder.close()
        with self.place.history.open() as lines:
            history = load(lines)
        report = self.report
        writes = [(txn.process.split(".")[0], txn.status) for txn in history.txns if txn.sends]
        report.outcomes = Counter(status for _, status in writes)
        final = {poll.key: poll.seen for poll in history.final or []}
        report.orders = sum(len(final[key]) for key in KEYS if key.startswith(ORDERS))
        report.copies = sum(len(final[key]) for key in KEYS if key.startswith(COPIES))
        report.anomalies += check(history)
        report.anomalies += order_of(final)
        report.anomalies += copies_of(final)
        report.anomalies += whole_reader(history, final)
        report.anomalies += unfinished(self.place.bootstrap, KEYS)
        return report


def records_between(
    place: Place, topic: str, partition: int, start: int, end: int
) -> list[tuple[int, str]]:
    """What a new read_committed reader sees in [start, end)."""
    consumer = clients.consumer_of(place, "verifier", **{"enable.partition.eof": True})
    seen: list[tuple[int, str]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while start < end:
            message = consumer.poll(HEAL_SECONDS_MAX)
            assert message is not None, f"{topic}/{partition} cannot be read"
            if message.error() is not None:
                break  # the end
            seen.append((message.offset(), message.value().decode()))
            start = message.offset() + 1
    finally:
        consumer.close()
    return seen


def _origin(value: str) -> tuple[str, tuple[int, int]]:
    """Process of an order, and its place among what that process has written."""
    name, n = value.rsplit(":", 1)
    process, number = name.split("/")
    return process, (int(number), int(n))


def order_of(final: dict[str, list[tuple[int, str]]]) -> Iterator[Anomaly]:
    """Within a partition the orders of one writer come in the order in which it wrote them."""
    for key in KEYS:
        last: dict[str, tuple[int, int]] = {}
        for offset, value in final[key]:
            process, place = _origin(value.rpartition("|")[2])
            if place <= last.get(process, (-1, -1)):
                yield Anomaly("order", f"{value} in {key}@{offset} after {last[process]}")
            last[process] = place


def copies_of(final: dict[str, list[tuple[int, str]]]) -> Iterator[Anomaly]:
    """Every order was copied exactly once, in the same order."""
    for partition in range(PARTITIONS):
        orders = [value for _, value in final[f"{ORDERS}/{partition}"]]
        copies = [value.rpartition("|")[2] for _, value in final[f"{COPIES}/{partition}"]]
        for value, count in (Counter(copies) - Counter(orders)).items():
            yield Anomaly("copied-twice", f"{value}: {count} too many in {COPIES}/{partition}")
        for value in (Counter(orders) - Counter(copies)).elements():
            yield Anomaly("copy-lost", f"{value} of {ORDERS}/{partition}")
        if Counter(orders) == Counter(copies) and orders != copies:
            yield Anomaly("copy-order", f"{COPIES}/{partition} is in another order")


def whole_reader(history: History, final: dict[str, list[tuple[int, str]]]) -> Iterator[Anomaly]:
    """The reader that ran beside everything has seen what is there at the end, no more and no less."""
    seen: dict[str, list[tuple[int, str]]] = {key: [] for key in KEYS}
    for txn in history.txns:
        if txn.process.startswith("whole"):
            for poll in txn.polls:
                seen[poll.key] += poll.seen
    for key in KEYS:
        if seen[key] != final[key]:
            detail = f"{key}: saw {len(seen[key])} records, {len(final[key])} are there"
            yield Anomaly("reader-differs", detail)


@contextmanager
def servers(
    directory: Path, seed: int, database: str
) -> Iterator[tuple[BrokerProcess, PostgresServer | None]]:
    postgres = None
    if database == "postgresql":
        postgres = PostgresServer()
        postgres.start()
    try:
        with BrokerProcess(directory / "data", settings=tight_settings(seed)) as broker:
            yield broker, postgres
    finally:
        if postgres is not None:
            postgres.remove()


def run(directory: Path, seed: int, seconds: float, database: str) -> Iterator[Report]:
    """The report of every round, of which each has a seed, clients and a history of its own."""
    count = max(math.ceil(seconds / ROUND_SECONDS), 1)
    with servers(directory, seed, database) as (broker, postgres):
        for number in range(count):
            folder = directory / f"round-{number}"
            folder.mkdir()
            world = Bounce(folder, seed + number, broker, postgres)
            try:
                world.run(seconds / count)
                world.heal()
                report = world.judge()
            finally:
                for client in (*world.clients, world.reader):
                    client.kill()
            if not report.anomalies:
                shutil.rmtree(folder)
            yield report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="dualwrite-bounce-"))
    print(f"seed {options.seed}, history in {directory}", flush=True)
    total = None
    for report in run(directory, options.seed, options.seconds, options.database):
        print(report, flush=True)
        for anomaly in report.anomalies[:50]:
            print(f"  {anomaly.kind}: {anomaly.detail}", flush=True)
        total = report if total is None else total + report
    assert total is not None
    print(f"in all: {total}")
    raise SystemExit(1 if total.anomalies else 0)


if __name__ == "__main__":
    main()
