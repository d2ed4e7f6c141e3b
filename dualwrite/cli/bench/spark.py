"""Our Spark sink and source beside what people write today: foreachBatch with confluent-kafka.

The peer is a plain producer, which writes rows twice when a task or a request is run again. It sends
from Arrow columns, which is faster than the loop over rows that most people write.
"""

import importlib.util
import tempfile
from typing import TYPE_CHECKING

from dualwrite.cli.bench.report import Report, Row
from dualwrite.errors import ConfigurationError

if TYPE_CHECKING:
    from dualwrite.cli.bench.spark_tasks import Beside

SECTION = "Spark"
ROWS_PER_SECOND = 75_000
"""Rows for each second that a measurement may take: fewer than any machine writes."""
VALUE_BYTES = 100
BATCH_ROWS = 20
SINK_PEER = "foreachBatch + confluent-kafka"
SOURCE_PEER = "confluent-kafka consumer"


def missing() -> str | None:
    """Why Spark cannot run here, or None."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'dualwrite[spark]'"
    from dualwrite.recipes.spark.java import ensure_java

    try:
        ensure_java()
    except ConfigurationError as error:
        return str(error)
    return None


def run(report: Report, seconds: float) -> None:
    reason = missing()
    if reason is not None:
        report.notes.append(f"Spark left out: {reason}")
        return
    from dualwrite.broker import BrokerProcess
    from dualwrite.cli.bench import spark_batches, spark_tasks

    rows = max(1000, round(ROWS_PER_SECOND * seconds))
    with tempfile.TemporaryDirectory() as scratch, BrokerProcess() as broker:
        session = spark_tasks.start_session(scratch)
        try:
            frame = spark_tasks.make_rows(session, rows, VALUE_BYTES)
            sink = spark_tasks.sink(frame, broker.bootstrap_servers)
            source = spark_tasks.source(broker.bootstrap_servers, rows)
            batches = spark_batches.overheads(session, broker.bootstrap_servers, scratch, seconds)
        finally:
            session.stop()
    _add_tasks(report, rows, sink, source)
    _add_batches(report, batches)


def _add_tasks(report: Report, rows: int, sink: "Beside", source: "Beside") -> None:
    for work, found, peer in (
        ("sink", sink, SINK_PEER),
        ("source", source, SOURCE_PEER),
    ):
        report.extend(
            [
                Row(section=SECTION, work=f"{work}, one task", value=rows / found.ours,
                    unit="rows/s", ratio=found.theirs / found.ours, against=peer, goal=">= 1x"),
                Row(section=SECTION, work=f"{peer}, one task", value=rows / found.theirs,
                    unit="rows/s"),
            ]
        )  # fmt: skip


def _add_batches(report: Report, batches: dict[str, float]) -> None:
    base = batches[SINK_PEER]
    for work, seconds in batches.items():
        ratio = None if work == SINK_PEER else seconds / base
        report.add(
            Row(section=SECTION, work=f"micro-batch of {BATCH_ROWS} rows: {work}", value=seconds * 1e3,
                unit="ms p50", ratio=ratio, against="" if ratio is None else SINK_PEER)
        )  # fmt: skip
