"""`format("dualwrite")`: the Kafka sink and source as a Python data source of Spark.

Which process runs what is Spark's choice, and decides the shape of this file. For every micro-batch
`streamWriter` is called twice: in a process that plans the write, where the data source has just
been constructed, and in one that commits, where it was unpickled. Only the first opens an attempt,
and only the writer that it returns reaches the tasks; to the commit, the tasks' messages carry what
it needs to know.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.recipes.spark import task
from dualwrite.recipes.spark.columns import check_names, check_schema
from dualwrite.recipes.spark.coordinator import Attempt
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.options import parse_sink
from dualwrite.recipes.spark.reports import TaskReport
from dualwrite.recipes.spark.source import KafkaBatchReader, KafkaStreamReader, source_schema

NAME = "dualwrite"

log = logging.getLogger("dualwrite.spark")


class DualWriteSource(DataSource):
    """Reads and writes Kafka; `register` makes the subclass that Spark gets to know."""

    token: ClassVar[str] = ""
    """The driver's, by which its runs are told from those of an older driver."""
    engine_class: ClassVar[type[Engine]] = Engine

    def __init__(self, options: Any) -> None:
        self.options = options
        self._is_unpickled = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_unpickled = True

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return KafkaStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        engine = self._engine(schema, overwrite)
        with engine.decisions() as decisions:
            attempt = engine.coordinator(decisions).open()
        return BatchWriter(engine, attempt)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        engine = self._engine(schema, overwrite)
        if engine.options.job is not None:
            raise ConfigurationError("dualwrite.job.id is for df.write; a query has its own id")
        if self._is_unpickled:
            return StreamWriter(engine, None)
        with engine.decisions() as decisions:
            return StreamWriter(engine, engine.coordinator(decisions).open().only("query:"))

    def _engine(self, schema: StructType, overwrite: bool) -> Engine:
        if overwrite:
            raise ConfigurationError(
                "a topic cannot be overwritten: use mode('append'), or outputMode('append')."
                " For update or complete mode there is KafkaSink.foreach_batch"
            )
        if not self.token:
            raise ConfigurationError("use dualwrite.recipes.spark.register(spark)")
        options = parse_sink(self.options)
        check_schema(schema, options.topic)
        check_names(schema)
        return self.engine_class(options, self.token)


@dataclass
class Message(WriterCommitMessage):
    """A task's report on its way to the driver."""

    report: TaskReport


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes and commits micro-batches."""

    def __init__(self, engine: Engine, attempt: Attempt | None) -> None:
        self._engine = engine
        self._attempt = attempt

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._attempt is None:
            raise DualWriteError("this writer was made to commit, not to write")
        place = task.place_in_stream()
        return Message(_write(self._engine, self._attempt, place, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._engine, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._engine, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes and commits one job; Spark sends this very object to the tasks and to the commit."""

    def __init__(self, engine: Engine, attempt: Attempt) -> None:
        self._engine = engine
        job = engine.options.job
        self._work = task.UNNAMED_JOBS if job is None else f"job:{job}"
        self._number = 0 if job is not None else attempt.decided_upto.get(task.UNNAMED_JOBS, -1) + 1
        self._attempt = attempt.only(self._work)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        place = task.place_in_job(self._work, self._number)
        return Message(_write(self._engine, self._attempt, place, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._engine, messages, self._number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with self._engine.decisions() as decisions:
            self._engine.coordinator(decisions).abandon(self._attempt.nonce)


def _write(
    engine: Engine, attempt: Attempt, place: task.Place, batches: Iterator[pa.RecordBatch]
) -> TaskReport:
    return task.write(batches, place, attempt, engine.options, engine.transactions())


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, Message)]


def _commit(engine: Engine, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    reports = _reports(messages)
    if len(reports) != len(messages):
        raise DualWriteError(f"Spark commits batch {batch}, but not every task has reported")
    with engine.decisions() as decisions:
        engine.coordinator(decisions).commit(reports, batch)


def _abort(engine: Engine, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give the batch up. Spark calls this after a failed commit too, with the same messages.

    Without any message nothing tells which attempt it was; tasks may still be running then, and
    the next attempt aborts whatever they leave.
    """
    nonces = {report.attempt for report in _reports(messages)}
    if not nonces:
        return
    with engine.decisions() as decisions:
        coordinator = engine.coordinator(decisions)
        for nonce in nonces:
            coordinator.abandon(nonce)


def make_source(engine_class: type[Engine] = Engine) -> type[DualWriteSource]:
    """Make the class for one driver. Being made here, it is sent to workers with its token in it."""

    class RegisteredSource(DualWriteSource):
        token = secrets.token_hex(8)

    RegisteredSource.engine_class = engine_class
    return RegisteredSource


def register(spark: SparkSession) -> None:
    """Let this session read and write `format("dualwrite")`, as a driver of its own.

    Call it once per driver. A sink belongs to the driver that wrote to it last: an older one is
    refused from then on.
    """
    spark.dataSource.register(make_source())
