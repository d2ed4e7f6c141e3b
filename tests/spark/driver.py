"""The pipelines of the crash tests, also as a program of its own that can be killed.

python -m tests.spark.driver MASTER SERVERS NAME CHECKPOINT PARTITIONS [DATABASE]
"""

import os
import sys
import tempfile
from pathlib import Path

from sqlalchemy import text

from dualwrite.adapters.sql import SqlStore
from dualwrite.recipes.spark.data_source import make_source
from dualwrite.recipes.spark.foreach_batch import KafkaSink
from tests.spark.faults import FOLDER, FaultyEngine


class FaultySink(KafkaSink):
    engine_class = FaultyEngine


def rows_of(spark, servers, name, partitions):
    """Read topic `<name>-in` as a driver's new life: a registration of its own."""
    spark.dataSource.register(make_source(FaultyEngine))
    source = (
        spark.readStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", f"{name}-in")
        .option("startingOffsets", "earliest")
        .load()
    )
    return source.select("key", "value").repartition(partitions)


def run_pipeline(spark, servers, name, checkpoint, partitions, **options):
    """Start the query from topic to topic."""
    return (
        rows_of(spark, servers, name, partitions)
        .writeStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", f"{name}-out")
        .option("dualwrite.sink.id", name)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def run_with_table(spark, servers, name, checkpoint, partitions, database):
    """Run the query from topic to topic and to table `<name>`, in one decision, to its end."""

    def write_rows(transaction, frame, batch):
        rows = [{"value": int(row.value), "batch": batch} for row in frame.collect()]
        if rows:
            insert = text(f"INSERT INTO {name} (value, batch) VALUES (:value, :batch)")
            transaction.connection.execute(insert, rows)

    store = SqlStore(database, create=True)
    config = {"bootstrap.servers": servers}
    sink = FaultySink(name, config, decisions=store, topic=f"{name}-out")
    try:
        (
            rows_of(spark, servers, name, partitions)
            .writeStream.foreachBatch(sink.foreach_batch(also=write_rows))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        # Not after a failure: what that leaves is for the next driver.
        sink.close()
    finally:
        store.close()


def main(master, servers, name, checkpoint, partitions, database=None):
    from tests.spark.sessions import start

    with tempfile.TemporaryDirectory() as scratch:
        spark = start(master, Path(scratch))
        pid = spark._jvm.java.lang.ProcessHandle.current().pid()
        (Path(os.environ[FOLDER]) / "pid.jvm").write_text(str(pid))
        place = (spark, servers, name, checkpoint, int(partitions))
        if database is None:
            run_pipeline(*place).awaitTermination()
        else:
            run_with_table(*place, database)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
