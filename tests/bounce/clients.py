"""The clients of the bounce test: each runs in a process of its own and may be killed at any moment.

What they do and see goes to one history (`tests.history`). A client that is started again gets a new
process name, so that nothing of its former life is mixed up with the new one.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite import (
    AsyncDualWriter,
    DualWriteError,
    DualWriter,
    OutcomeUnknown,
    Rollback,
    TwoPhaseProducer,
)
from dualwrite.adapters.sql import SqlStore
from tests.history.history import Consumed, Poll, Recorder, Send, Txn

APP = "bounce"
ORDERS = "orders"
COPIES = "copies"
COPIERS = "copiers"
PARTITIONS = 3
RECORDS_MAX = 32
BATCH_MAX = 100
ROLLBACK_CHANCE = 1 / 32
PAUSE_SECONDS = 0.1
INSERT = text("INSERT INTO orders VALUES (:name)")
CREATE = text("CREATE TABLE IF NOT EXISTS orders (name VARCHAR(60) PRIMARY KEY)")
EMPTY = text("DELETE FROM orders")
WRITER: dict[str, Any] = {"app": APP, "slots": 1, "lease_seconds": 5}
# A killed broker is back within a second or a few: clients wait for it rather than give up.
PATIENCE_MS = 20_000
SESSION_MS = 1_500
# librdkafka 2.16 can hang for ever in send_offsets_to_transaction after it has begun to bootstrap
# again (KIP-899), whatever timeout it was given.
LIBRDKAFKA = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}


@dataclass(frozen=True)
class Place:
    """Where clients write; travels to their processes."""

    bootstrap: str
    url: str
    history: Path
    stop: Path
    """Made at the end: the last offset of every partition, up to which a reader reads."""


def engine_of(place: Place) -> Engine:
    return create_engine(place.url, **_engine_options(place))


def async_engine_of(place: Place) -> AsyncEngine:
    url = make_url(place.url)
    driver = {"sqlite": "sqlite+aiosqlite"}.get(url.drivername, url.drivername)
    return create_async_engine(url.set(drivername=driver), **_engine_options(place))


def _engine_options(place: Place) -> dict[str, Any]:
    connect_args = {"timeout": 30} if place.url.startswith("sqlite") else {}
    return {"connect_args": connect_args, "pool_pre_ping": True}


def _writer_config(place: Place) -> dict[str, Any]:
    return {"bootstrap.servers": place.bootstrap, "max.block.ms": PATIENCE_MS, "linger.ms": 0}


def create_tables(engine: Engine) -> None:
    SqlStore(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(CREATE)
        connection.execute(EMPTY)


def rows_of(engine: Engine) -> list[str]:
    """The names of all orders whose row is there."""
    with engine.connect() as connection:
        return [name for (name,) in connection.execute(text("SELECT name FROM orders"))]


def writer_of(place: Place, store: SqlStore, **more: Any) -> DualWriter:
    return DualWriter(_writer_config(place), store=store, **WRITER, **more)


class Orders:
    """One writer's orders, each a row and a few records, and what became of them."""

    def __init__(self, place: Place, process: str, seed: int) -> None:
        self._recorder = Recorder(place.history)
        self._chance = random.Random(f"{seed} {process}")
        self._is_rolled_back = False
        self._txn = Txn(process, 0, is_dual=True)

    def on_step(self, name: str) -> None:
        if name == "committing":
            self._recorder.ask(self._txn)

    @contextmanager
    def one(self) -> Iterator[Txn]:
        """Invent an order and record how the block that writes it ends."""
        chance = self._chance
        txn = self._txn = Txn(self._txn.process, self._txn.number + 1, is_dual=True)
        txn.sends = self._draw(txn.name, chance)
        self._is_rolled_back = chance.random() < ROLLBACK_CHANCE
        self._recorder.invoke(txn)
        try:
            yield txn
            txn.status = "fail" if self._is_rolled_back else "ok"
        except OutcomeUnknown:
            txn.status = "info"
        except Exception:  # noqa: BLE001 - the contract: any other error means that nothing happened
            txn.status = "fail"
        self._recorder.complete(txn)

    def _draw(self, name: str, chance: random.Random) -> list[Send]:
        return [
            Send(f"{ORDERS}/{chance.randrange(PARTITIONS)}", f"{name}:{n}")
            for n in range(chance.randint(1, RECORDS_MAX))
        ]

    def produce(self, tx: Any) -> None:
        """The order's records; some orders change their mind after them."""
        is_told_offsets = self._chance.random() < 0.5  # else the records go as batches
        for send in self._txn.sends:
            topic, partition = send.key.split("/")
            tell = learns(send) if is_told_offsets else None
            tx.produce(topic, send.value, partition=int(partition), on_delivery=tell)
        if self._is_rolled_back:
            raise Rollback

    @property
    def pause(self) -> float:
        """What to wait before the next order: whoever was refused does not hurry."""
        return 0.0 if self._is_rolled_back or self._txn.status == "ok" else PAUSE_SECONDS


def write(place: Place, process: str, seed: int, **more: Any) -> None:
    """Dual writes without end."""
    write_all(place, Orders(place, process, seed), **more)


def write_all(place: Place, orders: Orders, **more: Any) -> None:
    store = SqlStore(engine_of(place))
    more["on_step"] = orders.on_step
    while True:
        # Whatever goes wrong while opening has happened to no transaction.
        with contextlib.suppress(Exception), writer_of(place, store, **more) as writer:
            while True:
                with orders.one() as order, writer.transaction() as tx:
                    tx.session.execute(INSERT, {"name": order.name})
                    orders.produce(tx)
                time.sleep(orders.pause)
        time.sleep(PAUSE_SECONDS)


def write_async(place: Place, process: str, seed: int) -> None:
    """The same on an event loop."""
    asyncio.run(_write_async(place, Orders(place, process, seed)))


async def _write_async(place: Place, orders: Orders) -> None:
    more = {"store": SqlStore(async_engine_of(place)), "on_step": orders.on_step, **WRITER}
    while True:
        with contextlib.suppress(Exception):
            async with AsyncDualWriter(_writer_config(place), **more) as writer:
                while True:
                    with orders.one() as order:
                        async with writer.transaction() as tx:
                            await tx.session.execute(INSERT, {"name": order.name})
                            orders.produce(tx)
                    await asyncio.sleep(orders.pause)
        await asyncio.sleep(PAUSE_SECONDS)


WRITERS: tuple[Callable[[Place, str, int], None], ...] = (
    write,
    partial(write, kafka_commit="background"),
    write_async,
)


def learns(send: Send) -> Callable[[Any, Any], None]:
    """A delivery callback that notes the offset."""

    def delivered(error: Any, message: Any) -> None:
        send.offset = -1 if error else message.offset()

    return delivered


class OurTransactions:
    """A copier's transactions through our producer."""

    errors = DualWriteError

    def __init__(self, place: Place, transactional_id: str) -> None:
        self._producer = TwoPhaseProducer(
            {
                "bootstrap.servers": place.bootstrap,
                "transactional.id": transactional_id,
                "max.block.ms": PATIENCE_MS,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions()

    def fill(self, sends: list[Send], offsets: list[TopicPartition], consumer: Consumer) -> None:
        self._producer.begin_transaction()
        for send in sends:
            partition = int(send.key.split("/")[1])
            self._producer.produce(
                COPIES, send.value, partition=partition, on_delivery=learns(send)
            )
        self._producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        self._producer.flush()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def close(self) -> None:
        with contextlib.suppress(DualWriteError):
            self._producer.close(0)


class LibrdkafkaTransactions:
    """The same through confluent-kafka."""

    errors = KafkaException

    def __init__(self, place: Place, transactional_id: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": place.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 0,
                **LIBRDKAFKA,
            }
        )
        self._producer.init_transactions(PATIENCE_MS / 1000)

    def fill(self, sends: list[Send], offsets: list[TopicPartition], consumer: Consumer) -> None:
        self._producer.begin_transaction()
        for send in sends:
            partition = int(send.key.split("/")[1])
            self._producer.produce(
                COPIES, send.value, partition=partition, on_delivery=learns(send)
            )
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_MS / 1000)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_MS / 1000)

    def close(self) -> None:
        """librdkafka's producer ends with its last reference."""


Transactions = Callable[[Place, str], OurTransactions | LibrdkafkaTransactions]
KINDS: tuple[Transactions, ...] = (OurTransactions, LibrdkafkaTransactions)


def consumer_of(place: Place, group: str, **more) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": SESSION_MS // 4,
            "fetch.wait.max.ms": 100,
            **LIBRDKAFKA,
            **more,
        }
    )


def copy(place: Place, process: str, index: int) -> None:
    """Consume orders, produce copies with the consumed offsets in one transaction (KIP-447)."""
    recorder = Recorder(place.history)
    consumer = consumer_of(place, COPIERS)
    consumer.subscribe([ORDERS], on_assign=lambda *_: recorder.assign(process))
    kind = KINDS[index % len(KINDS)]
    transactional_id = f"copier-{index}"
    number = 0
    transactions: OurTransactions | LibrdkafkaTransactions | None = None
    while True:
        try:
            if transactions is None:
                renewed = kind(place, transactional_id)  # ends what the last one left open
                _go_back(consumer)
                recorder.assign(process)
                transactions = renewed
        except (DualWriteError, KafkaException):
            time.sleep(PAUSE_SECONDS)
            continue
        messages = [m for m in consumer.consume(BATCH_MAX, 0.2) if m.error() is None]
        if messages:
            number += 1
            txn = _copy_batch(transactions, consumer, recorder, Txn(process, number), messages)
            if txn.status != "ok":
                transactions.close()
                transactions = None


def _go_back(consumer: Consumer) -> None:
    """Go on where the group really is."""
    assigned = consumer.assignment()
    if assigned:
        for partition in consumer.committed(assigned, PATIENCE_MS / 1000):
            partition.offset = max(partition.offset, 0)
            consumer.seek(partition)


def _copy_batch(transactions, consumer: Consumer, recorder: Recorder, txn: Txn, messages) -> Txn:
    by_partition = defaultdict(list)
    for message in messages:
        by_partition[message.partition()].append((message.offset(), message.value().decode()))
    for partition, seen in sorted(by_partition.items()):
        key = f"{ORDERS}/{partition}"
        txn.polls.append(Poll(key, seen))
        txn.consumed.append(Consumed(COPIERS, key, seen[0][0], seen[-1][0] + 1))
        for _, value in seen:
            txn.sends.append(Send(f"{COPIES}/{partition}", f"{txn.name}|{value}"))
    offsets = [TopicPartition(ORDERS, p, seen[-1][0] + 1) for p, seen in by_partition.items()]
    recorder.invoke(txn)
    try:
        transactions.fill(txn.sends, offsets, consumer)
    except transactions.errors:
        txn.status = "fail"  # nobody has asked for its commit, and the next init aborts it
    else:
        recorder.ask(txn)
        try:
            transactions.commit()
            txn.status = "ok"
        except transactions.errors:
            txn.status = "info"
    recorder.complete(txn)
    return txn


def read(place: Place, process: str, from_start: bool) -> None:
    """A read_committed reader beside everything; ends when it has seen what `stop` names."""
    recorder = Recorder(place.history)
    consumer = consumer_of(place, process)
    start = 0 if from_start else OFFSET_END
    places = [(topic, p) for topic in (ORDERS, COPIES) for p in range(PARTITIONS)]
    consumer.assign([TopicPartition(topic, p, start) for topic, p in places])
    recorder.assign(process, from_start=from_start)
    number = 0
    last: dict[str, int] = {}
    while not _has_seen_all(place, last):
        seen = defaultdict(list)
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                key = f"{message.topic()}/{message.partition()}"
                seen[key].append((message.offset(), message.value().decode()))
                last[key] = message.offset()
        if seen:
            number += 1
            polls = [Poll(key, found) for key, found in seen.items()]
            recorder.complete(Txn(process, number, "ok", polls=polls))
    consumer.close()


def _has_seen_all(place: Place, last: dict[str, int]) -> bool:
    if not place.stop.exists():
        return False
    ends = json.loads(place.stop.read_text())
    return all(last.get(key, -1) >= end for key, end in ends.items())
