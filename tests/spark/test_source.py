"""The source against a real broker. Its readers are plain objects: no Spark is needed to read."""

import json
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from dualwrite import TwoPhaseProducer
from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.recipes.spark.source import KafkaBatchReader, KafkaStreamReader
from tests.spark import kafka

SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADERS = StructType().add("key", StringType()).add("value", BinaryType())


@pytest.fixture
def topic(servers, name):
    kafka.create_topic(servers, name, 3)
    return name


@pytest.fixture
def options(servers, topic):
    return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}


def batch(options, schema=SCHEMA, **more):
    reader = KafkaBatchReader({**options, **more}, schema)
    shares = [list(reader.read(share)) for share in reader.partitions()]
    return [row for share in shares for batch in share for row in batch.to_pylist()], len(shares)


def values(rows):
    return sorted(int(row["value"]) for row in rows)


def test_rows_have_the_columns_of_sparks_own_source(options, servers, topic):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"v", b"k", 1, timestamp=1_700_000_000_123, headers=[("h", b"x")])
    producer.produce(topic, None, None, 1, timestamp=1_700_000_000_124)
    producer.flush()

    schema = StructType([*SCHEMA.fields]).add("headers", ArrayType(HEADERS))
    rows, _ = batch(options, schema, includeHeaders="true")

    first, second = rows
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"v", topic)
    assert (first["partition"], first["offset"], first["timestampType"]) == (1, 0, 0)
    assert first["timestamp"] == datetime.fromtimestamp(1_700_000_000.123, UTC)
    assert first["headers"] == [{"key": "h", "value": b"x"}]
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_nothing_to_read_is_nothing(options):
    assert batch(options) == ([], 0)


def test_a_schema_of_the_users_own_is_refused(options):
    own = StructType().add("value", StringType())

    for reader in (KafkaBatchReader, KafkaStreamReader):
        with pytest.raises(
            ConfigurationError, match=r"its own columns, key binary.*says value string"
        ):
            reader(options, own)


def test_ranges_by_offset_and_split_into_more_tasks(options, servers, topic):
    kafka.fill(servers, topic, range(30), partitions=3)
    some = f'{{"{topic}": {{"0": 2, "1": -2, "2": 8}}}}'
    until = f'{{"{topic}": {{"0": 4, "1": -1, "2": 9}}}}'

    rows, shares = batch(options, startingOffsets=some, endingOffsets=until)
    assert values(rows) == sorted([6, 9, *range(1, 30, 3), 26])
    assert shares == 3
    rows, shares = batch(options, minPartitions="10")
    assert values(rows) == list(range(30))
    assert shares >= 9


def test_ranges_by_time(options, servers, topic):
    producer = Producer({"bootstrap.servers": servers})
    for number in range(30):
        producer.produce(topic, str(number).encode(), partition=number % 3, timestamp=1000 + number)
    producer.flush()

    rows, _ = batch(options, startingTimestamp="1010", endingTimestamp="1020")
    assert values(rows) == list(range(10, 20))
    by_partition = f'{{"{topic}": {{"0": 1027, "1": 1028, "2": 1029}}}}'
    rows, _ = batch(options, startingOffsetsByTimestamp=by_partition)
    assert values(rows) == [27, 28, 29]
    with pytest.raises(DualWriteError, match="no record at or after"):
        batch(options, startingTimestamp="5000")
    rows, _ = batch(options, startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
    assert rows == []


def test_patterns_and_assignments(options, servers, topic):
    kafka.create_topic(servers, f"{topic}-b", 1)
    kafka.fill(servers, topic, range(3), partitions=3)
    kafka.fill(servers, f"{topic}-b", [7])
    del options["subscribe"]

    assert values(batch(options, subscribePattern=f"{topic}(-.)?")[0]) == [0, 1, 2, 7]
    assert values(batch(options, subscribePattern=f"{topic}-.")[0]) == [7]
    assert values(batch(options, assign=f'{{"{topic}": [0, 2]}}')[0]) == [0, 2]
    with pytest.raises(ConfigurationError, match="no partition"):
        batch(options, assign=f'{{"{topic}": [9]}}')
    with pytest.raises(ConfigurationError, match="no topic"):
        batch(options, subscribe=f"{topic}-missing")


def test_a_setting_that_kafka_does_not_know_is_named(options):
    with pytest.raises(ConfigurationError, match=r"fetch\.mni\.bytes"):
        batch(options, **{"kafka.fetch.mni.bytes": "1"})
    assert batch(options, **{"kafka.request.timeout.ms": "20000"}) == ([], 0)


def test_aborted_records_are_gaps_and_undecided_ones_are_not_waited_for(options, servers, topic):
    def transaction(transactional_id):
        producer = TwoPhaseProducer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "transaction.two.phase.commit.enable": True,
            }
        )
        producer.init_transactions(keep_prepared_txn=True)
        producer.begin_transaction()
        return producer

    aborted = transaction(f"{topic}-a")
    aborted.produce(topic, b"98", partition=0)
    aborted.flush()
    aborted.abort_transaction()
    aborted.close()
    kafka.fill(servers, topic, range(6), partitions=3)
    undecided = transaction(f"{topic}-u")
    undecided.produce(topic, b"6", partition=0)
    state = undecided.prepare_transaction()
    kafka.fill(servers, topic, [7, 8, 9], partitions=3)

    assert values(batch(options)[0]) == [0, 1, 2, 3, 4, 5, 8, 9]
    rows, _ = batch(options, **{"kafka.isolation.level": "read_uncommitted"})
    assert values(rows) == [*range(10), 98]
    undecided.complete_transaction(state)
    undecided.close()
    assert values(batch(options)[0]) == list(range(10))


def delete_before(servers, topic, offset):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_records([TopicPartition(topic, 0, offset)])[
        TopicPartition(topic, 0, offset)
    ].result()


def test_deleted_records_are_an_error_unless_accepted(options, servers, topic):
    kafka.fill(servers, topic, range(30), partitions=3)
    delete_before(servers, topic, 5)
    asked = f'{{"{topic}": {{"0": 0, "1": 9, "2": 9}}}}'

    with pytest.raises(DualWriteError, match=f"{topic}-0 begins at 5"):
        batch(options, startingOffsets=asked)
    rows, _ = batch(options, startingOffsets=asked, failOnDataLoss="false")
    assert values(rows) == [15, 18, 21, 24, 27, 28, 29]


class Stream:
    """A stream reader driven as Spark drives it."""

    def __init__(self, options, now=time.monotonic, **more):
        self.reader = KafkaStreamReader({**options, **more}, SCHEMA, now)
        self.at = self.reader.initialOffset()

    def next(self, limit=None):
        limit = limit or self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.at, limit)
        rows = self.read(self.at, end)
        self.at = end
        return values(rows)

    def read(self, start, end):
        shares = self.reader.partitions(start, end)
        return [r for s in shares for b in self.reader.read(s) for r in b.to_pylist()]


def test_a_stream_begins_at_the_end_and_goes_on(options, servers, topic):
    kafka.fill(servers, topic, range(3), partitions=3)
    stream = Stream({**options, "startingOffsets": "latest"})

    assert stream.next() == []
    kafka.fill(servers, topic, range(3, 9), partitions=3)
    assert stream.next() == list(range(3, 9))
    assert stream.next() == []


def test_the_first_batch_begins_where_it_was_planned_however_late_it_is_run(
    options, servers, topic
):
    """Spark asks for the beginning again before it runs the batch, and after every crash."""
    planned = Stream(options, startingOffsets="latest")
    kafka.fill(servers, topic, range(3), partitions=3)
    end = planned.reader.latestOffset(planned.at, ReadAllAvailable())
    kafka.fill(servers, topic, range(3, 9), partitions=3)

    assert planned.reader.initialOffset() == planned.at
    for stream in (planned, Stream(options, startingOffsets="latest")):
        assert values(stream.read(stream.reader.initialOffset(), end)) == [0, 1, 2]
        stream.at = end
        assert stream.next() == list(range(3, 9))


def test_a_first_batch_without_rows_keeps_the_beginning_too(options, servers, topic):
    planned = Stream(options, startingOffsets="latest")
    end = planned.reader.latestOffset(planned.at, ReadAllAvailable())
    assert json.dumps(planned.reader.latestOffset(end, ReadAllAvailable())) == json.dumps(end)
    kafka.fill(servers, topic, range(3), partitions=3)

    later = Stream(options, startingOffsets="latest")
    assert later.read(later.at, end) == []
    later.at = end
    assert later.next() == [0, 1, 2]


def test_batches_are_limited_and_every_row_comes_once(options, servers, topic):
    kafka.fill(servers, topic, range(100), partitions=3)
    stream = Stream(options, maxOffsetsPerTrigger="12")

    batches = [stream.next() for _ in range(9)]

    assert all(len(found) <= 14 for found in batches)
    assert sorted(v for found in batches for v in found) == list(range(100))
    assert stream.next(ReadAllAvailable()) == []


def test_available_now_ends_where_it_began_to_look(options, servers, topic):
    kafka.fill(servers, topic, range(20), partitions=3)
    stream = Stream(options)
    stream.reader.prepareForTriggerAvailableNow()
    kafka.fill(servers, topic, range(20, 40), partitions=3)

    found = stream.next(ReadMaxRows(15)) + stream.next(ReadMaxRows(15)) + stream.next()

    assert sorted(found) == list(range(20))
    assert stream.next() == []


def test_available_now_from_the_end_of_a_busy_topic_reads_nothing(options, servers, topic):
    """Spark tells of the trigger before it asks for the beginning."""
    reader = KafkaStreamReader({**options, "startingOffsets": "latest"}, SCHEMA)
    reader.prepareForTriggerAvailableNow()
    kafka.fill(servers, topic, range(9), partitions=3)
    start = reader.initialOffset()

    assert reader.partitions(start, reader.latestOffset(start, ReadAllAvailable())) == []


def test_small_batches_wait_for_more_rows_or_for_their_time(options, servers, topic):
    clock = [0.0]
    stream = Stream(options, lambda: clock[0], minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    kafka.fill(servers, topic, range(4), partitions=3)

    assert stream.next() == []
    clock[0] = 31.0
    assert stream.next() == [0, 1, 2, 3]
    kafka.fill(servers, topic, range(4, 8), partitions=3)
    assert stream.next() == []
    kafka.fill(servers, topic, range(8, 14), partitions=3)
    assert stream.next() == list(range(4, 14))


def test_new_partitions_are_read_from_their_beginning(options, servers, topic):
    kafka.fill(servers, topic, range(3), partitions=3)
    stream = Stream(options)
    assert stream.next() == [0, 1, 2]
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    kafka.fill(servers, topic, range(3, 8), partitions=5)

    assert stream.next() == [3, 4, 5, 6, 7]


def test_a_stream_that_fell_behind_the_log_says_so(options, servers, topic):
    kafka.fill(servers, topic, range(30), partitions=3)
    stream = Stream(options)
    delete_before(servers, topic, 5)

    with pytest.raises(DualWriteError, match="failOnDataLoss"):
        stream.next()
