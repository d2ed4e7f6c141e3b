"""What one task does: write its rows into one Kafka transaction and prepare it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.columns import BatchLimits, RowSender
from dualwrite.recipes.spark.coordinator import Attempt
from dualwrite.recipes.spark.options import SinkOptions
from dualwrite.recipes.spark.reports import TaskReport
from dualwrite.recipes.spark.transactions import TaskTransaction, Transactions

# Spark's names (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY, the job group of
# StreamExecution and its IS_CONTINUOUS_PROCESSING). They are internal to it, so a contract test looks.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
IS_CONTINUOUS = "__is_continuous_processing"
UNNAMED_JOBS = "jobs"
"""Jobs without an id of their own are numbered under this name."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of which batch a task writes."""

    work: str
    batch: int
    partition: int
    attempt_number: int


def place_in_stream() -> Place:
    """Ask Spark which micro-batch of which query this task belongs to; never guess."""
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if context.getLocalProperty(IS_CONTINUOUS) == "true":
        raise ConfigurationError("continuous processing has no batches; use a micro-batch trigger")
    if query is None or batch is None:
        raise ConfigurationError(
            f"this Spark does not tell tasks their query and batch ({QUERY_ID}, {BATCH_ID}):"
            " exactly once is not possible with it"
        )
    return Place(f"query:{query}", int(batch), context.partitionId(), context.attemptNumber())


def place_in_job(work: str, number: int) -> Place:
    context = _context()
    if work == UNNAMED_JOBS and context.getLocalProperty(BATCH_ID) is not None:
        raise ConfigurationError(
            "df.write inside foreachBatch would write a batch that is run again twice: use"
            " KafkaSink.foreach_batch, or give each batch a dualwrite.job.id of its own"
        )
    return Place(work, number, context.partitionId(), context.attemptNumber())


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("the sink writes only inside a Spark task")
    return context


def write(
    batches: Iterator[pa.RecordBatch],
    place: Place,
    attempt: Attempt,
    options: SinkOptions,
    transactions: Transactions,
) -> TaskReport:
    """Write everything and prepare, or read and drop it if the batch is decided already.

    Dropped rows are still read: Spark's state stores must see the whole batch.
    """
    report = TaskReport(
        attempt=attempt.nonce, work=place.work, batch=place.batch, partition=place.partition
    )
    if attempt.skips(place.work, place.batch):
        for _ in batches:
            pass
        return replace(report, is_skipped=True)
    began = time.monotonic()
    transaction: TaskTransaction | None = None
    try:
        rows = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if transaction is None:
                # Not before the first row: an empty transaction must not be prepared.
                transaction = transactions.begin(place.partition, place.attempt_number)
                limits = BatchLimits.of(options.kafka)
                sender = RowSender(options.topic, transaction, limits)
            rows += sender.send(batch)
        if transaction is None:
            return report
        participant = transaction.prepare()
        millis = round((time.monotonic() - began) * 1000, 3)
        return replace(
            report, rows=rows, participant=participant, busy=transaction.busy, millis=millis
        )
    finally:
        if transaction is not None:
            transaction.close()
