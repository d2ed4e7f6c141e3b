"""Rows of one Spark task, timed from its first rows to its last acknowledgement.

Taken inside the task, so that Spark's own scheduling is left out.
"""

import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dualwrite.recipes.spark import task
from dualwrite.recipes.spark.coordinator import Attempt
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.options import SinkOptions
from dualwrite.recipes.spark.source import KafkaBatchReader, source_schema

ROUNDS = 5
HAND_TOPIC = "bench-hand"
SINK_TOPIC = "bench-sink"

Batches = Iterator[pa.RecordBatch]
Mapping = Callable[[Batches], Batches]


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds for the same rows: the median of several rounds, in turn."""

    ours: float
    theirs: float


def start_session(scratch: str) -> SparkSession:
    # Spark would take the first python3 of the path, which need not be ours.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("dualwrite-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        # Spark looks through the error of a query that is stopped by a regular expression which
        # overflows the usual stack, and prints a thousand lines of it.
        .config("spark.driver.extraJavaOptions", "-Xss16m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.local.dir", f"{scratch}/local")
        .getOrCreate()
    )


def make_rows(session: SparkSession, rows: int, value_bytes: int) -> DataFrame:
    """A frame of one partition, computed before anything is timed."""
    text = F.col("id").cast("string")
    frame = session.range(rows, numPartitions=1).select(
        text.cast("binary").alias("key"),
        F.rpad(text, value_bytes, "x").cast("binary").alias("value"),
    )
    frame.cache().count()
    return frame


def send_by_hand(batches: Batches, servers: str) -> float:
    """What a foreachBatch function does with confluent-kafka in each partition; its seconds.

    Not idempotent: a new producer often waits half a second for its id, by a timer of librdkafka,
    and in small batches that would be all there is to see. Connecting is not counted.
    """
    producer, began = Producer({"bootstrap.servers": servers}), None
    for batch in batches:
        began = began or time.perf_counter()
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(HAND_TOPIC, value, key)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    return time.perf_counter() - began if began else 0.0


def by_hand(servers: str) -> Mapping:
    def write(batches: Batches) -> Batches:
        yield _answer(send_by_hand(batches, servers))

    return write


def by_sink(engine: Engine, attempt: Attempt, turn: int) -> Mapping:
    def write(batches: Batches) -> Batches:
        place = task.place_in_job("job:bench", turn)
        yield _answer(task.write(batches, place, attempt, engine.options, engine.transactions()))

    return write


def _answer(what: object) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(what)], pa.binary())], names=["answer"])


def _run(frame: DataFrame, function: Mapping) -> Any:
    (row,) = frame.mapInArrow(function, "answer binary").collect()
    return pickle.loads(row.answer)


def sink(frame: DataFrame, servers: str) -> Beside:
    """Both writers in turn, in tasks of the same frame; the first turn only warms up."""
    options = SinkOptions(sink="bench", kafka={"bootstrap.servers": servers}, topic=SINK_TOPIC)
    engine = Engine(options, "bench")
    ours, theirs = [], []
    for turn in range(ROUNDS + 1):
        with engine.decisions() as decisions:
            coordinator = engine.coordinator(decisions)
            report = _run(frame, by_sink(engine, coordinator.open(), turn))
            coordinator.commit([report], turn)
        ours.append(report.millis / 1000)
        theirs.append(_run(frame, by_hand(servers)))
    return Beside(statistics.median(ours[1:]), statistics.median(theirs[1:]))


def source(servers: str, rows: int) -> Beside:
    """Both readers of what `sink` wrote by hand, in this process, as a task would run them."""
    options = {
        "kafka.bootstrap.servers": servers,
        "assign": json.dumps({HAND_TOPIC: [0]}),
        "endingOffsets": json.dumps({HAND_TOPIC: {"0": rows}}),
    }
    schema = StructType.fromDDL(source_schema(options))
    ours, theirs = [], []
    for _ in range(ROUNDS + 1):
        reader = KafkaBatchReader(options, schema)
        (share,) = reader.partitions()
        began = time.perf_counter()
        read = sum(batch.num_rows for batch in reader.read(share))
        ours.append(time.perf_counter() - began)
        assert read == rows
        theirs.append(_read_by_hand(servers, rows))
    return Beside(statistics.median(ours[1:]), statistics.median(theirs[1:]))


def _read_by_hand(servers: str, rows: int) -> float:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    began = time.perf_counter()
    consumer.assign([TopicPartition(HAND_TOPIC, 0, 0)])
    found: list[Any] = []
    while len(found) < rows:
        messages = consumer.consume(min(10_000, rows - len(found)), 1.0)
        found += [(m.key(), m.value(), m.offset(), m.timestamp()) for m in messages]
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds
