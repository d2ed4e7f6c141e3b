"""`KafkaSink`: the sink inside `foreachBatch`, for update mode and for dual writes per batch.

    sink = KafkaSink("orders", {"bootstrap.servers": "..."}, decisions=SqlStore(engine))
    df.writeStream.outputMode("update").foreachBatch(sink.foreach_batch(also=write_rows)).start()

`also(tx, batch_df, batch_id)` writes to the database of `decisions`, in the very transaction whose
commit decides the batch: rows and records become visible together or not at all.
"""

import logging
import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from dualwrite.errors import ConfigurationError, DualWriteError, RetryableError
from dualwrite.recipes.spark import task
from dualwrite.recipes.spark.columns import check_schema
from dualwrite.recipes.spark.coordinator import Attempt, Coordinator
from dualwrite.recipes.spark.decision_log import DecidingTransaction, DecisionLog, no_data
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.homes import holds_data
from dualwrite.recipes.spark.ledger import Decision, closing, deciding
from dualwrite.recipes.spark.names import check_sink
from dualwrite.recipes.spark.options import SinkOptions, check_producer
from dualwrite.recipes.spark.reports import BatchReport, TaskReport, join, nothing
from dualwrite.store import CommitUnknown

Also = Callable[[DecidingTransaction, DataFrame, int], object]
BatchFunction = Callable[[DataFrame, int], None]

log = logging.getLogger("dualwrite.spark")


class KafkaSink:
    """A Kafka sink of one driver; close it when its queries have ended."""

    engine_class = Engine

    def __init__(
        self,
        sink: str,
        config: Mapping[str, Any],
        decisions: Any = None,
        *,
        topic: str | None = None,
        mode: str = "2pc",
    ) -> None:
        """`config` has librdkafka's keys; `decisions` is a store, its URL, or None for a topic."""
        if not config.get("bootstrap.servers"):
            raise ConfigurationError("'bootstrap.servers' is missing")
        options = SinkOptions(
            sink=check_sink(sink), kafka=check_producer(config, mode), topic=topic, mode=mode
        )
        self._engine = self.engine_class(options, secrets.token_hex(8))
        self._home = decisions
        self._written: tuple[str | None, str, int] | None = None
        """Spark's run, the query and the number of the newest batch that went through here."""

    def foreach_batch(self, also: Also | None = None, *, checkpoint: bool = False) -> BatchFunction:
        """Make the function for `foreachBatch`.

        With `also` the batch is read twice, so it is persisted first. A plan that gives other rows
        when a lost part of it is computed again needs `checkpoint=True`, which makes such a loss
        fail the batch instead.
        """
        if also is not None and not holds_data(self._home):
            raise no_data("a topic" if self._home is None else "ZooKeeper")

        def write_batch(frame: DataFrame, batch_id: int) -> None:
            check_schema(frame.schema, self._engine.options.topic)
            with self._engine.decisions(self._home) as decisions:
                coordinator = self._engine.coordinator(decisions)
                attempt = coordinator.open().only("query:")
                work = _query_of(frame)
                place = (_run_of(frame), work, batch_id)
                self._require_first(place)
                if attempt.skips(work, batch_id):
                    # The plan must run all the same, or Spark's state stores miss this batch.
                    frame.write.format("noop").mode("overwrite").save()
                else:
                    batch = Batch(coordinator, decisions, attempt, work, batch_id)
                    with batch.given_up_on_error():
                        self._write(frame, batch, also, checkpoint)
                self._written = place

        return write_batch

    def close(self) -> None:
        """Finish or abort whatever attempts of stopped queries have left open."""
        with self._engine.decisions(self._home) as decisions:
            coordinator = self._engine.coordinator(decisions)
            if not coordinator.is_unknown():
                coordinator.recover()

    def __enter__(self) -> "KafkaSink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_first(self, place: tuple[str | None, str, int]) -> None:
        """Refuse a second frame: it would be taken for the batch that is decided, and dropped."""
        if place[0] is not None and place == self._written:
            raise DualWriteError(
                f"batch {place[2]} was written to sink {self._engine.options.sink} already, with"
                " another frame: a sink takes one frame of each batch. Give this frame a KafkaSink"
                " with an id of its own, and the batch will be completed; later, union works too"
            )

    def _write(self, frame: DataFrame, batch: "Batch", also: Also | None, checkpoint: bool) -> None:
        if also is None:
            batch.decide(batch.join(self._prepare(frame, batch.attempt)))
            return
        is_kept_by_user = frame.is_cached
        if checkpoint:
            kept = frame.localCheckpoint(eager=True)
        else:
            kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            batch.decide_with(batch.join(self._prepare(kept, batch.attempt)), kept, also)
        finally:
            if not is_kept_by_user:
                kept.unpersist()

    def _prepare(self, frame: DataFrame, attempt: Attempt) -> list[TaskReport]:
        engine = self._engine

        def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            report = task.write(
                batches,
                task.place_in_stream(),
                attempt,
                engine.options,
                engine.transactions(),
            )
            yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

        rows = frame.mapInArrow(write_partition, "report binary").collect()
        return [pickle.loads(row.report) for row in rows]


class Batch:
    """One attempt at one micro-batch, from its reports to its end."""

    def __init__(
        self,
        coordinator: Coordinator,
        decisions: DecisionLog,
        attempt: Attempt,
        work: str,
        number: int,
    ) -> None:
        self._coordinator = coordinator
        self._decisions = decisions
        self.attempt = attempt
        self._work = work
        self.number = number

    def join(self, reports: Sequence[TaskReport]) -> BatchReport:
        """Put the reports together; a plan that Spark finds empty has no tasks at all."""
        if not reports:
            return nothing(self.attempt.nonce, self._work, self.number)
        joined = join(reports, self.number)
        if (joined.attempt, joined.work) != (self.attempt.nonce, self._work):
            raise DualWriteError("the tasks report another attempt or query than this one")
        return joined

    def decide(self, joined: BatchReport) -> None:
        self._coordinator.decide(
            joined, lambda decision: self._decisions.update(deciding(decision))
        )

    def decide_with(self, joined: BatchReport, frame: DataFrame, also: Also) -> None:
        """Let the user write, count the rows once more, and commit both with the decision."""

        def record(decision: Decision) -> None:
            try:
                with self._decisions.transaction() as transaction:
                    also(transaction, frame, self.number)
                    rows = frame.count()
                    if rows != joined.rows:
                        raise DualWriteError(
                            f"batch {self.number} has {rows} rows now and had {joined.rows} when it"
                            " was written to Kafka: its plan is not deterministic, use"
                            " foreach_batch(checkpoint=True)"
                        )
                    transaction.update(deciding(decision))
            except CommitUnknown as error:
                self._resolve(decision, error)

        self._coordinator.decide(joined, record)

    def _resolve(self, decision: Decision, error: CommitUnknown) -> None:
        """Find out whether a commit without an answer has decided, and shut the door if not."""
        found = self._decisions.update(closing(decision.attempt)).decisions.get(decision.work)
        if found is None or (found.batch, found.attempt) != (decision.batch, decision.attempt):
            raise RetryableError(f"batch {self.number} was rolled back: {error}") from error

    @contextmanager
    def given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            try:
                self._coordinator.abandon(self.attempt.nonce)
            except Exception as error:  # noqa: BLE001 - the next attempt does it; report the first
                log.warning("batch %s was not cleaned up: %s", self.number, error)
            raise


def _query_of(frame: DataFrame) -> str:
    query = frame.sparkSession.sparkContext.getLocalProperty(task.QUERY_ID)
    if query is None:
        raise ConfigurationError(
            "foreach_batch works only inside writeStream.foreachBatch, in the thread that Spark calls"
        )
    return f"query:{query}"


def _run_of(frame: DataFrame) -> str | None:
    run: str | None = frame.sparkSession.sparkContext.getLocalProperty(task.RUN_ID)
    return run
