"""Options and columns of the sink: what is refused, and by which words."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.partitioner import murmur2
from dualwrite.recipes.spark import KafkaSink
from dualwrite.recipes.spark.columns import BatchLimits, RowSender, check_names, check_schema
from dualwrite.recipes.spark.data_source import DualWriteSource, make_source
from dualwrite.recipes.spark.homes import open_log
from dualwrite.recipes.spark.names import is_slot_of, slot_id
from dualwrite.recipes.spark.options import parse_sink

GOOD = {"kafka.bootstrap.servers": "localhost:9092", "dualwrite.sink.id": "orders", "topic": "out"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dualwrite.sink.id": None}, "dualwrite.sink.id is missing"),
        ({"dualwrite.sink.id": "a.b"}, "sink id must match"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"asyncProgressTrackingEnabled": "true"}, "exactly once is not possible"),
        ({"kafka.transactional.id": "x"}, "chosen by the sink"),
        ({"kafka.transaction.timeout.ms": "1000"}, "no timeout"),
        ({"kafka.enable.idempotence": "false"}, "exactly once"),
        ({"kafka.acks": "1"}, "exactly once"),
        ({"kafka.linger.msx": "1"}, "did you mean 'linger.ms'"),
        ({"kafka.buffer.memory": "1"}, "unknown configuration key 'buffer.memory'"),
        ({"kafka.value.serializer": "x"}, "Java client"),
        ({"kafka.ssl.truststore.location": "x"}, "ssl.ca.location"),
        ({"kafka.sasl.jaas.config": "com.sun.Krb5LoginModule required;"}, "jaas"),
        ({"dualwrite.mode": "maybe"}, "dualwrite.mode"),
        ({"dualwrite.job.id": ""}, "dualwrite.job.id"),
        ({"topics": "x"}, "unknown option"),
    ],
)
def test_bad_options_are_named(options, said):
    merged = {k: v for k, v in {**GOOD, **options}.items() if v is not None}
    with pytest.raises(ConfigurationError, match=said):
        parse_sink(merged)


def test_java_names_are_translated():
    options = parse_sink(
        {
            **GOOD,
            "kafka.max.request.size": "2000000",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule"
            ' required username="me" password="a\\"b";',
        }
    )

    assert options.kafka["message.max.bytes"] == "2000000"
    assert (options.kafka["sasl.username"], options.kafka["sasl.password"]) == ("me", 'a"b')


def test_the_java_clients_pem_texts_are_translated():
    begins = "-----BEGIN PRIVATE KEY-----"
    java = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE----- trusted",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE----- own",
        "ssl.keystore.key": begins,
        "ssl.key.password": "locked",
    }
    options = parse_sink({**GOOD, **{f"kafka.{key}": value for key, value in java.items()}})

    assert {key: value for key, value in options.kafka.items() if key.startswith("ssl.")} == {
        "ssl.ca.pem": "-----BEGIN CERTIFICATE----- trusted",
        "ssl.certificate.pem": "-----BEGIN CERTIFICATE----- own",
        "ssl.key.pem": begins,
        "ssl.key.password": "locked",
    }
    assert begins not in repr(options)
    with pytest.raises(ConfigurationError, match="Java client"):
        parse_sink({**GOOD, "kafka.ssl.keystore.type": "JKS"})


def test_overwriting_a_topic_and_an_unregistered_source_are_refused():
    schema = StructType([StructField("value", StringType())])

    with pytest.raises(ConfigurationError, match="cannot be overwritten"):
        make_source()(GOOD).streamWriter(schema, True)
    with pytest.raises(ConfigurationError, match="register"):
        DualWriteSource(GOOD).streamWriter(schema, False)
    with pytest.raises(ConfigurationError, match="a query has its own id"):
        make_source()({**GOOD, "dualwrite.job.id": "j"}).streamWriter(schema, False)


@pytest.mark.parametrize("home", ["file:///data/decisions", "s3a://bucket/x", "decisions"])
def test_a_file_system_is_no_home_for_decisions(home):
    with pytest.raises(ConfigurationError, match="is not a database"):
        open_log(home, {}, "orders")


def test_a_batch_cannot_write_to_a_database_that_does_not_hold_the_decision():
    sink = KafkaSink("orders", {"bootstrap.servers": "localhost:9092"})

    with pytest.raises(ConfigurationError, match="also="):
        sink.foreach_batch(also=lambda tx, frame, batch: None)


HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"key": StringType()}, "t", "no column value"),
        ({"value": StringType()}, None, "no topic"),
        ({"value": LongType()}, "t", "column value is bigint"),
        ({"value": StringType(), "partition": LongType()}, "t", "column partition is bigint"),
        ({"value": StringType(), "timestamp": LongType()}, "t", "column timestamp is bigint"),
        ({"value": StringType(), "headers": StringType()}, "t", "column headers is string"),
        (
            {"value": StringType(), "headers": ArrayType(MapType(StringType(), BinaryType()))},
            "t",
            "column headers is array<map",
        ),
    ],
)
def test_frames_that_cannot_be_written_are_named(columns, topic, said):
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ConfigurationError, match=said):
        check_schema(schema, topic)


def test_all_columns_are_accepted():
    columns = {
        "key": BinaryType(), "value": StringType(), "topic": StringType(), "offset": LongType(),
        "partition": IntegerType(), "headers": HEADERS, "timestamp": TimestampType(),
        "timestampType": IntegerType(),
    }  # fmt: skip
    schema = StructType([StructField(n, k) for n, k in columns.items()])
    check_schema(schema, None)
    check_names(schema)


def test_a_column_that_would_be_lost_is_named():
    columns = {"keys": BinaryType(), "value": StringType(), "amount": LongType()}

    with pytest.raises(ConfigurationError, match=r"unknown column keys, amount: .*to_json"):
        check_names(StructType([StructField(n, k) for n, k in columns.items()]))


class Sent:
    """A transaction that keeps what it is given; encoded batches as their places and counts."""

    def __init__(self):
        self.records, self.encoded = [], []

    def send(self, topic, rows, partition):
        found = [(topic, partition, *row) for row in rows]
        self.records += found
        return len(found)

    def send_encoded(self, topic, partition, encoded, count):
        self.encoded.append((topic, partition, count))

    def partition_count(self, topic):
        return 4


LIMITS = BatchLimits()


def test_rows_go_where_their_columns_say():
    stamp = datetime(2026, 11, 18, tzinfo=UTC)
    batch = pa.RecordBatch.from_pylist(
        [
            {"key": "k", "value": b"1", "topic": "a", "partition": 2, "timestamp": stamp,
             "headers": [{"key": "h", "value": b"x"}]},
            {"key": None, "value": None, "topic": "b", "partition": None, "timestamp": None,
             "headers": None},
        ],
        schema=pa.schema(
            [
                ("key", pa.string()), ("value", pa.binary()), ("topic", pa.string()),
                ("partition", pa.int32()), ("timestamp", pa.timestamp("us", tz="UTC")),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )  # fmt: skip
    sent = Sent()

    assert RowSender(None, sent, LIMITS).send(batch) == 2
    assert sent.records == [
        ("a", 2, b"k", b"1", [("h", b"x")], int(stamp.timestamp() * 1000)),
        ("b", -1, None, None, None, 0),
    ]
    sent.records.clear()
    RowSender("fixed", sent, LIMITS).send(batch)
    assert [(r[0], r[1]) for r in sent.records] == [("fixed", 2), ("fixed", -1)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"topic": None}, "null topic"),
        ({"topic": ""}, "null topic"),
        ({"topic": "t", "partition": -3}, "partition -3"),
        ({"topic": "t", "timestamp": datetime(1969, 1, 1, tzinfo=UTC)}, "before 1970"),
        ({"topic": "t", "timestamp": datetime(1970, 1, 1, tzinfo=UTC)}, "first millisecond"),
        ({"topic": "t", "headers": [{"key": None, "value": b"x"}]}, "header without a key"),
        ({"topic": "t", "headers": [None]}, "header without a key"),
    ],
)
def test_bad_rows_fail_the_task(row, said):
    kinds = {
        "topic": pa.string(), "partition": pa.int32(), "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }  # fmt: skip
    schema = pa.schema([("value", pa.binary()), *[(name, kinds[name]) for name in row]])
    batch = pa.RecordBatch.from_pylist([{"value": b"v", **row}], schema=schema)

    with pytest.raises(DualWriteError, match=said):
        RowSender(None, Sent(), LIMITS).send(batch)


def test_columns_are_grouped_by_topic_and_partition_and_cut_into_batches():
    rows = [
        {"key": f"k{n}", "value": b"x" * 100, "topic": "ab"[n % 2], "partition": n % 3 or None}
        for n in range(60)
    ]
    schema = pa.schema(
        [("key", pa.string()), ("value", pa.binary()), ("topic", pa.string()),
         ("partition", pa.int32())]
    )  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    sent = Sent()

    assert RowSender(None, sent, BatchLimits(rows_max=7)).send(batch) == 60

    assert sent.records == []
    assert sum(count for _, _, count in sent.encoded) == 60
    assert max(count for _, _, count in sent.encoded) <= 7
    expected = {(r["topic"], r["partition"]) for r in rows if r["partition"]}
    expected |= {
        (r["topic"], murmur2(r["key"].encode()) % 4) for r in rows if r["partition"] is None
    }
    assert {(topic, partition) for topic, partition, _ in sent.encoded} == expected


def test_large_rows_and_other_partitioners_go_row_by_row():
    large = pa.RecordBatch.from_pylist([{"value": b"x" * 40_000}, {"value": b"y"}])
    small = large.slice(1)
    sent = Sent()

    RowSender("t", sent, LIMITS).send(large)
    RowSender("t", sent, BatchLimits.of(
        {"bootstrap.servers": "localhost", "partitioner": "random"}
    )).send(small)  # fmt: skip
    assert [len(r[3]) for r in sent.records] == [40_000, 1, 1]
    RowSender("t", sent, LIMITS).send(small)
    assert len(sent.encoded) == 1


def test_ids_of_one_sink_are_not_contained_in_anothers():
    assert is_slot_of("a", slot_id("a", 3, 1))
    assert not is_slot_of("a", slot_id("ab", 3, 1))
    assert not is_slot_of("a", "xspark.a.3.1")
    assert not is_slot_of("a", "spark.a.coordinator")
    assert not is_slot_of("a", "spark.a.3.1.1")
