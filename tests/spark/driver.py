"""The pipeline of the crash tests, also as a program of its own that can be killed.

python -m tests.spark.driver MASTER SERVERS NAME CHECKPOINT PARTITIONS
"""

import os
import sys
import tempfile
from pathlib import Path

from dualwrite.recipes.spark.data_source import make_source
from tests.spark.faults import FOLDER, FaultyEngine


def run_pipeline(spark, servers, name, checkpoint, partitions, **options):
    """Start a driver's life on topic `<name>-in`: a registration of its own, and a query."""
    spark.dataSource.register(make_source(FaultyEngine))
    source = (
        spark.readStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", f"{name}-in")
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        source.select("key", "value")
        .repartition(partitions)
        .writeStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", f"{name}-out")
        .option("dualwrite.sink.id", name)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def main(master, servers, name, checkpoint, partitions):
    from tests.spark.sessions import start

    with tempfile.TemporaryDirectory() as scratch:
        spark = start(master, Path(scratch))
        pid = spark._jvm.java.lang.ProcessHandle.current().pid()
        (Path(os.environ[FOLDER]) / "pid.jvm").write_text(str(pid))
        run_pipeline(spark, servers, name, checkpoint, int(partitions)).awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
