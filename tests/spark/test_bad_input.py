"""Whatever is wrong is said in words, nothing of it is lost, and the same query goes on when it is right."""

import socket
from contextlib import closing

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dualwrite.errors import DualWriteError
from dualwrite.failures import KafkaTimeout
from dualwrite.recipes.spark import register
from dualwrite.recipes.spark.source import KafkaBatchReader
from dualwrite.recipes.spark.transactions import open_ids
from tests.spark import kafka
from tests.spark.test_source import SCHEMA

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 30


@pytest.fixture
def nobody():
    """An address where nobody answers, held so that nobody else begins to."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


class Query:
    """One query on one checkpoint, started again and again."""

    def __init__(self, spark, servers, name, checkpoint):
        self.spark, self.servers, self.name, self.checkpoint = spark, servers, name, checkpoint
        kafka.create_topic(servers, f"{name}-in", 2)
        kafka.fill(servers, f"{name}-in", range(ROWS), partitions=2)
        register(spark)

    def rows(self, **options):
        source = self.spark.readStream.format("dualwrite")
        source = source.option("kafka.bootstrap.servers", self.servers).options(**options)
        return (
            source.option("subscribe", f"{self.name}-in")
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value", F.lit(f"{self.name}-out").alias("topic"))
        )

    def writer(self, frame, **options):
        """A writer to the sink; an option that is None is left out."""
        given = {
            "kafka.bootstrap.servers": self.servers,
            "dualwrite.sink.id": self.name,
            "checkpointLocation": str(self.checkpoint),
            **options,
        }
        kept = {key: value for key, value in given.items() if value is not None}
        return frame.writeStream.format("dualwrite").options(**kept).trigger(availableNow=True)

    def run(self, frame=None, **options):
        self.writer(self.rows() if frame is None else frame, **options).start().awaitTermination()


@pytest.fixture
def query(spark, servers, name, tmp_path):
    return Query(spark, servers, name, tmp_path / "cp")


def test_bad_input_is_said_and_the_query_goes_on_without_a_loss(query, servers, name, nobody):
    null_topic = F.when(F.col("value") != b"7", F.col("topic")).alias("topic")
    store = f"postgresql+psycopg://nobody@{nobody}/nowhere"
    for said, frame, options in (
        ("dualwrite.sink.id is missing", query.rows(), {"dualwrite.sink.id": None}),
        ("unknown column when", query.rows().withColumn("when", F.lit(1)), {}),
        ("null topic in the data", query.rows().select("key", "value", null_topic), {}),
        (
            f"Kafka at {nobody} did not answer within 0.5 s",
            query.rows(),
            {"kafka.bootstrap.servers": nobody, "kafka.max.block.ms": "500"},
        ),
        ("Connection refused", query.rows(), {"dualwrite.decisions": store}),
    ):
        with pytest.raises(PySparkException, match=said):
            query.run(frame, **options)

    query.run()

    assert kafka.values(servers, f"{name}-out") == list(range(ROWS))
    assert kafka.open_ids(servers, name) == []


def test_modes_that_cannot_be_exactly_once_are_refused(query, servers, name):
    counted = query.rows().groupBy("key").agg(F.count("*").cast("string").alias("value"))
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        query.writer(counted, topic=f"{name}-out").outputMode("complete").start().awaitTermination()
    # The others are refused by Spark, before any code of ours runs.
    with pytest.raises(PySparkException, match="does not support Update mode"):
        query.writer(counted, topic=f"{name}-out").outputMode("update").start().awaitTermination()
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        query.run(asyncProgressTrackingEnabled="true")
    with pytest.raises(PySparkException, match=r"(?i)continuous"):
        query.writer(query.rows()).trigger(continuous="1 second").start().awaitTermination()

    assert kafka.slot_ids(servers, name) == []


@pytest.mark.timeout(30)
def test_transactions_that_nobody_lists_are_not_waited_for_longer_than_allowed(nobody):
    with pytest.raises(KafkaTimeout, match=f"list_transactions from {nobody}"):
        open_ids("any", {"bootstrap.servers": nobody, "max.block.ms": "300"})


def test_a_source_that_nobody_answers_is_named(nobody):
    options = {"kafka.bootstrap.servers": nobody, "kafka.max.block.ms": "300", "subscribe": "any"}

    with pytest.raises(DualWriteError, match=f"Kafka at {nobody} did not answer within 0.3 s"):
        KafkaBatchReader(options, SCHEMA).partitions()
