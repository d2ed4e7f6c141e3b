"""Processes that run a recipe on a topic until somebody kills them."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from dualwrite import DualWriter
from dualwrite.adapters.sql import SqlStore
from dualwrite.recipes import consume_transform_produce
from dualwrite.recipes.consume_to_db import DatabaseConsumer, Positions
from dualwrite.recipes.idempotent_consumer import SeenMessages, message_id_of

BATCH = 5
"""Small: there are many decisions to be killed at."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Place:
    """Where the workers of one test work; travels to them."""

    bootstrap: str
    url: str
    name: str
    """Of the group, the app, the topics and the tables."""

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        return f"{self.name}-out"

    def table(self, what: str) -> str:
        return f"{what}_{self.name}"

    def engine(self) -> Engine:
        waits = {"timeout": 60} if self.url.startswith("sqlite") else {}
        return create_engine(self.url, connect_args=waits)

    def store(self, engine: Engine) -> SqlStore:
        return SqlStore(engine, table=self.table("state"))

    def create(self, engine: Engine) -> None:
        """Effects have no key: what has happened twice is there twice."""
        self.store(engine).create_tables()
        Positions(engine, self.name, self.table("position")).create()
        SeenMessages(engine, self.table("seen"), create=True)
        with engine.begin() as connection:
            columns = "number INTEGER NOT NULL, worker VARCHAR(20) NOT NULL"
            connection.execute(text(f"CREATE TABLE {self.table('effect')} ({columns})"))

    def act(self, worker: str, session: Session, message: Any) -> None:
        """The effect of a message."""
        values = {"number": int(message.key()), "worker": worker}
        statement = f"INSERT INTO {self.table('effect')} VALUES (:number, :worker)"
        session.execute(text(statement), values)
        session.info["has acted"] = True

    def effects(self, engine: Engine, worker: str = "%") -> list[int]:
        with engine.connect() as connection:
            statement = f"SELECT number FROM {self.table('effect')} WHERE worker LIKE :worker"
            return sorted(connection.execute(text(statement), {"worker": worker}).scalars())

    def consumer_config(self, worker: str) -> dict[str, Any]:
        """With a name of its own: who comes back under it need not wait until it has died."""
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.name,
            "group.instance.id": worker,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }


@contextlib.contextmanager
def subscribed(place: Place, config: dict[str, Any]) -> Iterator[Consumer]:
    consumer = Consumer(config)
    consumer.subscribe([place.source])
    try:
        yield consumer
    finally:
        consumer.close()


def die_behind_a_commit(recipe: Callable[[Place, str], None], place: Place, worker: str) -> None:
    """Run a recipe until its first effect is committed, and not a step longer."""

    def strike(session: Session) -> None:
        if session.info.get("has acted"):
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Session, "after_commit", strike)
    recipe(place, worker)


def consume_to_database(place: Place, worker: str) -> None:
    config, table = place.consumer_config(worker), place.table("position")
    with DatabaseConsumer(config, place.engine(), [place.source], table=table) as consumer:
        consumer.run(partial(place.act, worker), stop=threading.Event(), batch_size=BATCH)


def transform_and_produce(place: Place, worker: str) -> None:
    def transform(tx: Any, message: Any) -> None:
        place.act(worker, tx.session, message)
        tx.produce(place.output, key=message.key(), value=message.value())

    config = {"bootstrap.servers": place.bootstrap}
    store = place.store(place.engine())
    consuming = consume_transform_produce.consumer_config(place.consumer_config(worker))
    with (
        subscribed(place, consuming) as consumer,
        DualWriter(config, store=store, app=place.name, slots=1) as writer,
    ):
        consume_transform_produce.run(
            consumer, writer, transform, stop=threading.Event(), batch_size=BATCH
        )


def act_once(place: Place, worker: str) -> None:
    """Offsets are committed now and then, behind what was done."""
    engine = place.engine()
    seen = SeenMessages(engine, place.table("seen"))
    config = place.consumer_config(worker)
    config |= {"enable.auto.offset.store": False, "auto.commit.interval.ms": 200}
    with subscribed(place, config) as consumer:
        while True:
            for message in consumer.consume(BATCH, 0.5):
                if message.error() is not None:
                    continue
                with Session(engine) as session, session.begin():
                    if seen.first_time(session, "worker", message_id_of(message)):
                        place.act(worker, session, message)
                # A partition that was taken away keeps what its last owner has stored.
                with contextlib.suppress(KafkaException):
                    consumer.store_offsets(message)
