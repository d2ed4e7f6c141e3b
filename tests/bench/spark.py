"""Rows per second of one Spark task: our sink and source beside confluent-kafka by hand.

    python -m tests.bench.spark [--rows 300000] [--bytes 100]

Every figure is taken inside the task, from its first rows to its last acknowledgement, so Spark's
own scheduling is left out. Prints the ratio to what people write today: foreachBatch with a plain
(idempotent, not transactional) confluent-kafka producer, goal G8. Figures of different runs must not
be compared.
"""

import argparse
import json
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dualwrite.broker import BrokerProcess
from dualwrite.recipes.spark import task
from dualwrite.recipes.spark.coordinator import Attempt
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.options import SinkOptions
from dualwrite.recipes.spark.source import KafkaBatchReader

ROUNDS = 3


def by_hand(servers: str, topic: str) -> Any:
    """What a foreachBatch function does with confluent-kafka in each partition."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        rows, began = 0, None
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        for batch in batches:
            began = began or time.perf_counter()
            keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            for key, value in zip(keys, values, strict=True):
                while True:
                    try:
                        producer.produce(topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.01)
            producer.poll(0)
            rows += batch.num_rows
        producer.flush()
        yield answer(rows, time.perf_counter() - (began or 0))

    return write


def by_sink(engine: Engine, attempt: Attempt, turn: int) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = task.place_in_job("job:bench", turn)
        report = task.write(batches, place, attempt, engine.options, engine.transactions())
        yield answer(pickle.dumps(report), report.millis / 1000)

    return write


def answer(what: object, seconds: float) -> pa.RecordBatch:
    body = pickle.dumps((what, seconds))
    return pa.record_batch([pa.array([body], pa.binary())], names=["answer"])


def run(frame: Any, function: Any) -> tuple[Any, float]:
    (row,) = frame.mapInArrow(function, "answer binary").collect()
    what, seconds = pickle.loads(row.answer)
    return what, float(seconds)


def bench_sink(frame: Any, servers: str, rows: int) -> dict[str, Any]:
    kafka = {"bootstrap.servers": servers}
    engine = Engine(SinkOptions(sink="bench", kafka=kafka, topic="sink"), "bench")
    ours, theirs, ends = [], [], []
    for turn in range(ROUNDS + 1):
        with engine.decisions() as decisions:
            coordinator = engine.coordinator(decisions)
            attempt = coordinator.open()
            report, seconds = run(frame, by_sink(engine, attempt, turn))
            began = time.perf_counter()
            coordinator.commit([pickle.loads(report)], turn)
            ended = time.perf_counter() - began
        _, plain = run(frame, by_hand(servers, "hand"))
        if turn:  # the first turn warms everything up
            ours.append(seconds)
            theirs.append(plain)
            ends.append(ended)
    sink, hand = statistics.median(ours), statistics.median(theirs)
    return {
        "sink_rows_per_second": round(rows / sink),
        "confluent_rows_per_second": round(rows / hand),
        "sink_to_confluent": round(hand / sink, 2),
        "decide_and_complete_ms": round(statistics.median(ends) * 1000, 1),
    }


def bench_source(servers: str, rows: int) -> dict[str, Any]:
    """Both readers in this process, as a task would run them."""
    from confluent_kafka import Consumer, TopicPartition

    from tests.spark.test_source import SCHEMA

    options = {
        "kafka.bootstrap.servers": servers,
        "assign": '{"hand": [0]}',
        "endingOffsets": json.dumps({"hand": {"0": rows}}),
    }
    ours, theirs = [], []
    for turn in range(ROUNDS + 1):
        reader = KafkaBatchReader(options, SCHEMA)
        (share,) = reader.partitions()
        began = time.perf_counter()
        read = sum(batch.num_rows for batch in reader.read(share))
        seconds = time.perf_counter() - began
        assert read == rows
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
        began = time.perf_counter()
        consumer.assign([TopicPartition("hand", 0, 0)])
        found: list[Any] = []
        while len(found) < rows:
            messages = consumer.consume(min(10_000, rows - len(found)), 1.0)
            found += [(m.key(), m.value(), m.offset(), m.timestamp()) for m in messages]
        plain = time.perf_counter() - began
        consumer.close()
        if turn:
            ours.append(seconds)
            theirs.append(plain)
    source, hand = statistics.median(ours), statistics.median(theirs)
    return {
        "source_rows_per_second": round(rows / source),
        "consumer_rows_per_second": round(rows / hand),
        "source_to_consumer": round(hand / source, 2),
    }


def main() -> None:
    from pyspark.sql import functions as F

    from tests.spark.sessions import start

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=300_000)
    arguments.add_argument("--bytes", type=int, default=100)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch, BrokerProcess() as broker:
        spark = start("local[2]", Path(scratch))
        frame = (
            spark.range(asked.rows, numPartitions=1)
            .select(
                F.col("id").cast("string").cast("binary").alias("key"),
                F.rpad(F.col("id").cast("string"), asked.bytes, "x").cast("binary").alias("value"),
            )
            .cache()
        )
        frame.count()
        servers = broker.bootstrap_servers
        print(json.dumps(bench_sink(frame, servers, asked.rows), indent=2))
        print(json.dumps(bench_source(servers, asked.rows), indent=2))
        spark.stop()


if __name__ == "__main__":
    main()
