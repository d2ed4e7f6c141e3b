"""Spark's own Kafka connector, as a pipeline would use it: write, read, and a stream between topics."""

import json
import sys
import tempfile

from pyspark.sql import SparkSession

bootstrap, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")


def kafka(builder, **options):
    builder = builder.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        builder = builder.option(name, value)
    return builder


rows = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
kafka(rows.write, topic="connector-in").save()
stream = kafka(
    spark.readStream, subscribe="connector-in", startingOffsets="earliest",
    **{"kafka.isolation.level": "read_committed"},
).load()  # fmt: skip
with tempfile.TemporaryDirectory() as checkpoint:
    kafka(stream.select("key", "value").writeStream, topic="connector-out").option(
        "checkpointLocation", checkpoint
    ).trigger(availableNow=True).start().awaitTermination()
found = kafka(spark.read, subscribe="connector-out", startingOffsets="earliest").load()
values = [row.value.decode() for row in found.select("value").collect()]
print(json.dumps({"step": "out", "values": sorted(values, key=int)}))
spark.stop()
