"""The sink in a real Spark against a real broker: batches, jobs, frames, restarts."""

import json
import shutil
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text

from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import BrokerProcess
from dualwrite.recipes.spark import KafkaSink, register
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.names import slot_id
from dualwrite.recipes.spark.options import parse_sink
from tests.spark import kafka
from tests.spark.driver import run_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def sink_options(servers, name):
    return {
        "kafka.bootstrap.servers": servers,
        "topic": f"{name}-out",
        "dualwrite.sink.id": name,
    }


@pytest.fixture
def source(spark, servers, name):
    """A topic of three partitions, and a stream that reads it in small batches."""
    kafka.create_topic(servers, f"{name}-in", 3)

    def read(rows_max=30):
        return (
            spark.readStream.format("dualwrite")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", f"{name}-in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", rows_max)
            .load()
            .select("key", "value")
        )

    return read


def run(frame, options, checkpoint):
    query = (
        frame.writeStream.format("dualwrite")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def ledger(options):
    with Engine(parse_sink(options), "-").decisions() as log:
        return log.read()


def test_a_stream_is_written_once_in_batches(spark, source, servers, name, sink_options, tmp_path):
    register(spark)
    kafka.fill(servers, f"{name}-in", range(100), partitions=3)

    query = run(source(), sink_options, tmp_path / "cp")
    kafka.fill(servers, f"{name}-in", range(100, 150), partitions=3)
    run(source().repartition(4), sink_options, tmp_path / "cp")

    assert kafka.values(servers, f"{name}-out") == list(range(150))
    assert kafka.open_ids(servers, name) == []
    assert len(query.recentProgress) >= 4
    assert len(kafka.slot_ids(servers, name)) == 4
    found = ledger(sink_options)
    assert found.pending == []
    (decision,) = found.decisions.values()
    assert decision.metrics["rows"] > 0
    assert found.head.run == 1


@pytest.mark.parametrize(
    "home", ["topic", "postgres", pytest.param("zookeeper", marks=pytest.mark.long)]
)
def test_a_replayed_batch_is_skipped_wherever_decisions_are(
    spark, source, servers, name, sink_options, tmp_path, home, request
):
    """Without its file in commits/, Spark runs the last batch again under the same number."""
    if home == "postgres":
        sink_options["dualwrite.decisions"] = request.getfixturevalue("postgres_url")
    elif home == "zookeeper":
        hosts = request.getfixturevalue("zookeeper").hosts
        sink_options["dualwrite.decisions"] = f"zookeeper://{hosts}/{name}"
    register(spark)
    kafka.fill(servers, f"{name}-in", range(20), partitions=3)
    run(source(rows_max=1000), sink_options, tmp_path / "cp")
    for file in (tmp_path / "cp" / "commits").glob("*0*"):
        file.unlink()

    register(spark)
    kafka.fill(servers, f"{name}-in", range(20, 30), partitions=3)
    run(source(rows_max=1000).repartition(2), sink_options, tmp_path / "cp")

    assert kafka.values(servers, f"{name}-out") == list(range(30))
    assert ledger(sink_options).head.run == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_query_of_a_hundred_partitions_and_few_epochs(spark, faults_folder, name, tmp_path):
    """Every slot runs out of epochs on the way, and one batch is replayed."""
    with BrokerProcess(settings={"producer.epoch.max": 6}) as broker:
        servers = broker.bootstrap_servers
        kafka.create_topic(servers, f"{name}-in", 3)
        kafka.create_topic(servers, f"{name}-out", 5)
        for batch in range(4):
            values = range(1000 * batch, 1000 * (batch + 1))
            kafka.fill(servers, f"{name}-in", values, partitions=3)
            run_pipeline(spark, servers, name, tmp_path / "cp", 100).awaitTermination()
            if batch == 1:
                for file in (tmp_path / "cp" / "commits").glob("*1*"):
                    file.unlink()

        assert kafka.values(servers, f"{name}-out") == list(range(4000))
        assert kafka.open_ids(servers, name) == []
        assert kafka.slot_ids(servers, name) == sorted(slot_id(name, p, 0) for p in range(100))


def test_a_new_checkpoint_skips_nothing(spark, source, servers, name, sink_options, tmp_path):
    register(spark)
    kafka.fill(servers, f"{name}-in", range(5), partitions=3)
    run(source(), sink_options, tmp_path / "one")
    run(source(), sink_options, tmp_path / "two")

    assert kafka.values(servers, f"{name}-out") == sorted([*range(5), *range(5)])


def test_a_job_with_an_id_runs_once(spark, servers, name, sink_options):
    register(spark)
    frame = spark.range(10).select(F.col("id").cast("string").alias("value"))
    for job in ("monday", "monday", "tuesday", None, None):
        options = {**sink_options, **({"dualwrite.job.id": job} if job else {})}
        frame.write.format("dualwrite").options(**options).mode("append").save()

    assert kafka.values(servers, f"{name}-out") == sorted(list(range(10)) * 4)
    assert set(ledger(sink_options).decided_upto) == {"job:monday", "job:tuesday", "jobs"}


def test_all_columns_arrive(spark, servers, name, sink_options):
    register(spark)
    kafka.create_topic(servers, f"{name}-a", 3)
    stamp = datetime(2026, 11, 18, 1, 2, 3, tzinfo=UTC)
    frame = spark.createDataFrame(
        [("k", b"v", f"{name}-a", 2, stamp, [("h", b"x"), ("h", None)]),
         (None, None, f"{name}-a", 1, None, None)],
        "key string, value binary, topic string, partition int, timestamp timestamp,"
        " headers array<struct<key:string,value:binary>>",
    )  # fmt: skip
    del sink_options["topic"]
    frame.write.format("dualwrite").options(**sink_options).mode("append").save()

    by_partition = {m.partition(): m for m in kafka.committed(servers, f"{name}-a")}

    first, second = by_partition[2], by_partition[1]
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", [("h", b"x"), ("h", None)])
    assert first.timestamp()[1] == int(stamp.timestamp() * 1000)
    assert (second.key(), second.value(), second.headers()) == (None, None, None)


def test_an_empty_batch_makes_no_transaction(spark, servers, name, sink_options):
    register(spark)
    frame = spark.range(10).where("id < 0").select(F.col("id").cast("string").alias("value"))
    frame.write.format("dualwrite").options(**sink_options).mode("append").save()

    assert kafka.slot_ids(servers, name) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dualwrite.sink.id": None}, "dualwrite.sink.id is missing"),
        ({"kafka.acks": "1"}, "can only be all"),
        ({"topic": None}, "no topic"),
    ],
)
def test_errors_reach_the_user_in_words(spark, sink_options, change, said):
    register(spark)
    options = {k: v for k, v in {**sink_options, **change}.items() if v is not None}
    frame = spark.range(1).select(F.col("id").cast("string").alias("value"))

    with pytest.raises(PySparkException, match=said):
        frame.write.format("dualwrite").options(**options).mode("append").save()


def test_overwriting_is_refused(spark, sink_options):
    register(spark)
    frame = spark.range(1).select(F.col("id").cast("string").alias("value"))
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("dualwrite").options(**sink_options).mode("overwrite").save()


def totals(frame):
    return (
        frame.withColumn("group", F.col("value").cast("string").cast("int") % 4)
        .groupBy("group")
        .agg(F.count("*").alias("n"))
        .select(
            F.col("group").cast("string").alias("key"),
            F.to_json(F.struct("group", "n")).alias("value"),
            "n",  # not for the topic: `also` may want more columns
        )
    )


def test_update_mode_and_rows_in_the_same_decision(
    spark, source, servers, name, postgres_url, tmp_path
):
    """State survives a skipped batch, and table and topic always say the same."""
    engine = create_engine(postgres_url)
    store = SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {name} (batch INT, grp INT, n INT)"))

    def also(tx, frame, batch_id):
        assert frame.is_cached
        rows = [json.loads(row.value) for row in frame.collect()]
        for row in rows:
            tx.connection.execute(
                text(f"INSERT INTO {name} VALUES (:batch, :group, :n)"), {**row, "batch": batch_id}
            )

    def run_once():
        config = {"bootstrap.servers": servers}
        with KafkaSink(name, config, decisions=store, topic=f"{name}-out") as sink:
            (
                totals(source(rows_max=1000))
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(tmp_path / "cp"))
                .foreachBatch(sink.foreach_batch(also=also))
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )

    kafka.fill(servers, f"{name}-in", range(40), partitions=3)
    run_once()
    last = max(int(p.name) for p in (tmp_path / "cp" / "commits").glob("[0-9]*"))
    (tmp_path / "cp" / "commits" / str(last)).unlink()
    (tmp_path / "cp" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    kafka.fill(servers, f"{name}-in", range(40, 60), partitions=3)
    run_once()

    with engine.connect() as connection:
        rows = connection.execute(text(f"SELECT grp, n FROM {name}")).all()
    engine.dispose()
    records = [json.loads(m.value()) for m in kafka.committed(servers, f"{name}-out")]
    assert sorted(rows) == sorted((r["group"], r["n"]) for r in records)
    assert sorted(rows) == sorted([(g, 10) for g in range(4)] + [(g, 15) for g in range(4)])
    assert kafka.open_ids(servers, name) == []


def test_a_batch_that_spark_finds_empty_is_decided_all_the_same(
    spark, source, servers, name, tmp_path
):
    register(spark)
    kafka.fill(servers, f"{name}-in", range(5), partitions=3)
    with KafkaSink(name, {"bootstrap.servers": servers}, topic=f"{name}-out") as sink:
        write = sink.foreach_batch()

        def write_nothing(frame, batch_id):
            write(frame.limit(0), batch_id)

        (
            source()
            .writeStream.option("checkpointLocation", str(tmp_path / "cp"))
            .foreachBatch(write_nothing)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    found = ledger({"kafka.bootstrap.servers": servers, "dualwrite.sink.id": name})
    assert [d.batch for d in found.decisions.values()] == [0]
    assert kafka.slot_ids(servers, name) == []


def test_a_second_frame_of_a_batch_is_refused_and_no_row_is_lost(
    spark, source, servers, name, tmp_path
):
    """It would be taken for the batch that was decided a moment ago, and dropped."""
    register(spark)
    kafka.fill(servers, f"{name}-in", range(20), partitions=3)
    config, topic = {"bootstrap.servers": servers}, f"{name}-out"

    def run(first, second):
        def write(frame, number):
            first(frame.where("value < '5'"), number)
            second(frame.where("value >= '5'"), number)

        query = source(rows_max=1000).writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
        query.start().awaitTermination()

    with (
        KafkaSink(name, config, topic=topic) as one,
        KafkaSink("other", config, topic=topic) as two,
    ):
        for _ in range(2):
            with pytest.raises(PySparkException, match="one frame of each batch"):
                run(one.foreach_batch(), one.foreach_batch())
        run(one.foreach_batch(), two.foreach_batch())

    assert kafka.values(servers, topic) == list(range(20))


@pytest.mark.long
def test_a_job_inside_foreach_batch_says_which_batch_it_writes(
    spark, source, servers, name, sink_options, tmp_path
):
    register(spark)
    kafka.fill(servers, f"{name}-in", range(5), partitions=3)

    def run(options):
        def write(frame, number):
            given = {**sink_options, **options(number)}
            frame.write.format("dualwrite").options(**given).mode("append").save()

        query = source().writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
        query.start().awaitTermination()

    with pytest.raises(PySparkException, match=r"give each batch a dualwrite\.job\.id of its own"):
        run(lambda number: {})
    run(lambda number: {"dualwrite.job.id": f"batch-{number}"})

    assert kafka.values(servers, f"{name}-out") == list(range(5))


def test_a_query_that_began_at_the_end_begins_there_when_its_first_batch_is_run_again(
    spark, source, servers, name, sink_options, tmp_path
):
    register(spark)

    def from_the_end():
        return source().sparkSession.readStream.format("dualwrite").options(
            **{"kafka.bootstrap.servers": servers, "subscribe": f"{name}-in"}
        ).load().select("key", "value")  # fmt: skip

    run(from_the_end(), sink_options, tmp_path / "cp")
    for file in (tmp_path / "cp" / "commits").glob("*0*"):
        file.unlink()
    kafka.fill(servers, f"{name}-in", range(10), partitions=3)

    run(from_the_end(), sink_options, tmp_path / "cp")

    assert kafka.values(servers, f"{name}-out") == list(range(10))


def test_a_batch_whose_rows_change_between_reads_fails_before_the_decision(
    spark, source, servers, name, postgres_url, tmp_path
):
    store = SqlStore(postgres_url, create=True)
    kafka.fill(servers, f"{name}-in", range(10), partitions=3)
    sink = KafkaSink(name, {"bootstrap.servers": servers}, decisions=store, topic=f"{name}-out")

    def also(tx, frame, batch_id):
        # As if a part of the persisted frame were lost and computed again with other rows.
        frame.count = lambda: 9

    query = (
        source()
        .writeStream.option("checkpointLocation", str(tmp_path / "cp"))
        .foreachBatch(sink.foreach_batch(also=also))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="not deterministic"):
        query.awaitTermination()

    assert kafka.open_ids(servers, name) == []
    assert kafka.values(servers, f"{name}-out") == []
    shutil.rmtree(tmp_path / "cp")
    store.close()
