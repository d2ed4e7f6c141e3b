"""What a micro-batch costs besides its rows: streams of small batches, one sink after the other."""

import statistics
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from dualwrite.cli.bench.spark import BATCH_ROWS, SINK_PEER
from dualwrite.cli.bench.spark_tasks import SINK_TOPIC, by_hand
from dualwrite.recipes.spark import KafkaSink, register

BATCHES = 12
WARM_UP = 4
PARTITIONS = 2

ToSink = Callable[[DataStreamWriter], DataStreamWriter]


def overheads(
    session: SparkSession, servers: str, scratch: str, seconds: float
) -> dict[str, float]:
    """Median seconds of a micro-batch, by sink. The peer runs first and last, so that whatever gets
    warm on the way is to nobody's advantage.
    """
    register(session)
    kafka_sink = KafkaSink("bench-frames", {"bootstrap.servers": servers}, topic=SINK_TOPIC)
    count = WARM_UP + max(2, round(seconds / 4 * (BATCHES - WARM_UP)))

    def write_by_hand(frame: DataFrame, _: int) -> None:
        frame.mapInArrow(by_hand(servers), "answer binary").collect()

    sinks: list[tuple[str, ToSink]] = [
        (SINK_PEER, lambda writer: writer.foreachBatch(write_by_hand)),
        ('format("dualwrite")', lambda writer: _to_data_source(writer, servers)),
        ("KafkaSink", lambda writer: writer.foreachBatch(kafka_sink.foreach_batch())),
        (SINK_PEER, lambda writer: writer.foreachBatch(write_by_hand)),
    ]
    found: dict[str, list[float]] = {}
    for number, (name, to_sink) in enumerate(sinks):
        writer = to_sink(_small_batches(session).writeStream)
        query = writer.option("checkpointLocation", f"{scratch}/{number}").start()
        found.setdefault(name, []).extend(_durations(query, count))
    kafka_sink.close()
    return {name: statistics.median(values) for name, values in found.items()}


def _small_batches(session: SparkSession) -> DataFrame:
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
    value = F.col("value").cast("string").cast("binary")
    return (
        source.option("numPartitions", PARTITIONS)
        .load()
        .select(value.alias("key"), value.alias("value"))
    )


def _to_data_source(writer: DataStreamWriter, servers: str) -> DataStreamWriter:
    return writer.format("dualwrite").options(
        **{
            "kafka.bootstrap.servers": servers,
            "topic": SINK_TOPIC,
            "dualwrite.sink.id": "bench-batches",
        }
    )


def _durations(query: StreamingQuery, count: int) -> list[float]:
    """Run that many micro-batches and stop; seconds of those after the warm-up."""
    try:
        while len(query.recentProgress) < count and query.isActive:
            time.sleep(0.05)
        progress = query.recentProgress[WARM_UP:count]
    finally:
        query.stop()
    return [one["durationMs"]["triggerExecution"] / 1000 for one in progress]
