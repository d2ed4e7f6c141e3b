"""Consume into a database exactly once: the offsets lie beside the data, in the same transaction.

    consumer = DatabaseConsumer({"bootstrap.servers": "...", "group.id": "billing"}, engine, ["orders"])
    with consumer:
        consumer.run(lambda session, message: session.add(...), stop=event)

No Kafka transaction is needed: the database's COMMIT decides about data and position at once. On
assignment the consumer goes to the position in the database, whatever the group's offsets say. If the
records there are gone (retention, a topic made again), that is raised; with `auto.offset.reset` set to
`earliest` the consumer goes on with the first record that is left.

Between consumers stands a fence, as between writers. Every assignment bumps the fence of its
partitions' rows, and a position is only written under the own fence: a consumer that was paused while
its partitions were given away writes nothing. The group's generation could not do this, as it
begins anew when the group was empty.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    Integer,
    MetaData,
    Table,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dualwrite.adapters.sql.tables import BinaryText
from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.recipes.consume_transform_produce import (
    consumer_config,
    is_record,
    next_offsets,
)

TABLE = "kafka_consumer_position"
POLL_SECONDS = 0.5

Place = tuple[str, int]
Handler = Callable[[Session, Any], object]


class Positions:
    """How far a group has come, per partition, in the database of the data."""

    def __init__(self, engine: Engine, group: str, table: str = TABLE) -> None:
        self._engine = engine
        self._group = group
        self.table = self.in_metadata(MetaData(), table)

    @staticmethod
    def in_metadata(metadata: MetaData, table: str = TABLE) -> Table:
        """The table in the application's own `MetaData`, for Alembic."""
        return Table(
            table,
            metadata,
            Column("group_id", BinaryText(255), primary_key=True),
            Column("topic", BinaryText(255), primary_key=True),
            Column("partition_number", Integer, primary_key=True),
            Column("next_offset", BigInteger, nullable=False),
            Column("fence", BigInteger, nullable=False),
        )

    def create(self) -> None:
        self.table.metadata.create_all(self._engine)

    def claim(self, place: Place) -> tuple[int, int]:
        """Bump the fence of a partition; give it and the next offset (-1: none yet)."""
        with Session(self._engine) as session:
            try:
                with session.begin():
                    session.execute(insert(self.table).values(self._new_row(place)))
            except IntegrityError:
                session.rollback()  # it is there already, as it is at every start but the first
            with session.begin():
                where = self._where(place)
                fence = self.table.c.fence
                session.execute(update(self.table).where(where).values(fence=fence + 1))
                found = session.execute(select(fence, self.table.c.next_offset).where(where))
                row_fence, next_offset = found.one()
                return int(row_fence), int(next_offset)

    def advance(self, session: Session, place: Place, next_offset: int, fence: int) -> None:
        """Write a position in the caller's transaction; `Fenced` if the partition was given away."""
        where = self._where(place) & (self.table.c.fence == fence)
        statement = update(self.table).where(where).values(next_offset=next_offset)
        result: Any = session.execute(statement)
        if result.rowcount == 0:
            raise Fenced(f"{place[0]}-{place[1]} was given to another consumer of {self._group}")

    def _new_row(self, place: Place) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "topic": place[0],
            "partition_number": place[1],
            "next_offset": -1,
            "fence": 0,
        }

    def _where(self, place: Place) -> ColumnElement[bool]:
        columns = self.table.c
        return (
            (columns.group_id == self._group)
            & (columns.topic == place[0])
            & (columns.partition_number == place[1])
        )


class DatabaseConsumer:
    """A consumer whose position is part of the database."""

    def __init__(
        self,
        config: Mapping[str, Any],
        engine: Engine,
        topics: Sequence[str],
        *,
        table: str = TABLE,
        create: bool = False,
    ) -> None:
        if not config.get("group.id"):
            raise ConfigurationError("'group.id' is missing")
        self._engine = engine
        self._topics = list(topics)
        self._config = {"auto.offset.reset": "error", **consumer_config(config)}
        if self._config["auto.offset.reset"] in ("latest", "largest", "end"):
            raise ConfigurationError(
                "'auto.offset.reset' must be 'error' or 'earliest': from the end on it would leave out"
                " records that are there"
            )
        self.positions = Positions(engine, config["group.id"], table)
        self._fences: dict[Place, int] = {}
        self._consumer: Consumer | None = None
        if create:
            self.positions.create()

    def __enter__(self) -> "DatabaseConsumer":
        self._consumer = Consumer(self._config)
        self._consumer.subscribe(
            self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        return self

    def __exit__(self, *_: object) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def run(self, handle: Handler, *, stop: threading.Event, batch_size: int = 500) -> None:
        """Work until `stop` is set. What `handle` or the database raises is raised; nothing of that
        batch has happened or it has as a whole, and the next `run` goes on from the database."""
        while not stop.is_set():
            self.run_once(handle, batch_size)

    def run_once(self, handle: Handler, batch_size: int = 500) -> int:
        """Handle one batch; returns how many messages it had."""
        consumer = self._open_consumer()
        messages = [
            message
            for message in consumer.consume(batch_size, POLL_SECONDS)
            if is_record(message) and (message.topic(), message.partition()) in self._fences
        ]
        # Only after a poll does a consumer know what it owns: one that was fenced, or has failed,
        # claims again then, and what it had fetched before is read once more.
        for each in consumer.assignment():
            if (each.topic, each.partition) not in self._fences:
                consumer.seek(self._claimed(each))
        if messages:
            self._handle(handle, messages)
        return len(messages)

    def _handle(self, handle: Handler, messages: Sequence[Any]) -> None:
        positions = next_offsets(messages)
        try:
            with Session(self._engine) as session, session.begin():
                for message in messages:
                    handle(session, message)
                for place, offset in positions.items():
                    self.positions.advance(session, place, offset, self._fences[place])
        except BaseException as error:
            # Forget what we knew of these partitions: the database tells where to go on, also
            # after a COMMIT whose answer was lost.
            for place in positions:
                self._fences.pop(place, None)
            if not isinstance(error, Fenced):
                raise

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        claimed = [self._claimed(each) for each in partitions]
        if _is_cooperative(self._config):
            consumer.incremental_assign(claimed)
        else:
            consumer.assign(claimed)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._fences.pop((each.topic, each.partition), None)

    def _claimed(self, partition: TopicPartition) -> TopicPartition:
        place = (partition.topic, partition.partition)
        fence, next_offset = self.positions.claim(place)
        self._fences[place] = fence
        start = next_offset if next_offset >= 0 else OFFSET_BEGINNING
        return TopicPartition(*place, start)

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            raise ConfigurationError("the consumer is not open: use it as `with consumer:`")
        return self._consumer


def _is_cooperative(config: Mapping[str, Any]) -> bool:
    return "cooperative" in str(config.get("partition.assignment.strategy", ""))
