"""From Arrow record batches to Kafka records: the columns of Spark's Kafka sink, and `timestamp`."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from dualwrite.config import parse_config
from dualwrite.content import Row
from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.recipes.spark.encoding import (
    RECORD_BYTES_MAX,
    TABLE_SIZE,
    Ints,
    chunks,
    encode,
    java_partitions,
    lengths,
)
from dualwrite.recipes.spark.transactions import TaskTransaction
from dualwrite.wire.records import HEADER_SIZE

ANY_PARTITION = -1
RECORD_OVERHEAD = 24
"""More than the sizes and deltas of a record without headers take."""
NULL_TOPIC = "null topic in the data: set option topic, or fill the column"

Mask = npt.NDArray[np.bool_]

_BYTES = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "timestamp": ((TimestampType,), "timestamp"),
}
_OF_SOURCE = {"offset", "timestampType"}
"""What a frame from the source has besides: left out, so that a topic can be copied as it is read."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Refuse a frame that cannot be written, before any task runs."""
    found = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise ConfigurationError("the frame has no column value; there is " + ", ".join(found))
    if topic is None and "topic" not in found:
        raise ConfigurationError("no topic: set option topic, or give the frame a column topic")
    for name, (types, wanted) in _TYPES.items():
        if name in found and not isinstance(found[name], types):
            said = found[name].simpleString()
            raise ConfigurationError(f"column {name} is {said}; it must be {wanted}")
    if "headers" in found and not _is_headers(found["headers"]):
        said = found["headers"].simpleString()
        raise ConfigurationError(f"column headers is {said}; it must be {_TYPES['headers'][1]}")


def check_names(schema: StructType) -> None:
    """Refuse columns that nobody would read: a misspelt one would be lost without a word."""
    unknown = [name for name in schema.names if name not in _TYPES.keys() | _OF_SOURCE]
    if unknown:
        raise ConfigurationError(
            f"unknown column {', '.join(unknown)}: the sink writes {', '.join(_TYPES)}; drop the"
            " others, or put them into value (to_json)"
        )


def _is_headers(headers: Any) -> bool:
    element = headers.elementType
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(
        element["value"].dataType, BinaryType
    )


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What the producer's settings say about batches."""

    rows_max: int = 10_000
    bytes_max: int = 1_000_000
    hashes_as_java: bool = True

    @classmethod
    def of(cls, kafka: Mapping[str, Any]) -> "BatchLimits":
        settings = parse_config(kafka, transactional=False)
        return cls(
            rows_max=min(settings.batch_messages, TABLE_SIZE - 1),
            bytes_max=min(settings.batch_bytes, settings.message_bytes_max) - HEADER_SIZE,
            hashes_as_java=settings.partitioner == "murmur2_random",
        )


class RowSender:
    """Sends record batches, all of one schema, to where their columns say.

    Columns without headers and timestamps are encoded as a whole, which is what most frames have
    and many times faster; the rest goes row by row.
    """

    def __init__(
        self, topic: str | None, transaction: TaskTransaction, limits: BatchLimits
    ) -> None:
        self._topic = topic
        self._transaction = transaction
        self._limits = limits

    def send(self, batch: pa.RecordBatch) -> int:
        """Send all rows of a record batch; returns how many there were."""
        names = batch.schema.names
        if self._limits.hashes_as_java and "headers" not in names and "timestamp" not in names:
            keys, values = _binary(batch, "key", names), _binary(batch, "value", names)
            sizes = lengths(keys) + lengths(values)
            if len(sizes) == 0 or int(sizes.max()) < RECORD_BYTES_MAX:
                return self._send_columns(batch, keys, values, sizes)
        return self._send_rows(batch, names)

    def _send_columns(
        self, batch: pa.RecordBatch, keys: pa.Array, values: pa.Array, sizes: Ints
    ) -> int:
        for topic, of_topic in self._by_topic(batch):
            partitions = self._partitions(topic, batch, keys)
            if of_topic is not None:
                partitions = np.where(of_topic, partitions, -1)
            for partition in np.unique(partitions):
                if partition >= 0:
                    rows = np.nonzero(partitions == partition)[0]
                    self._send_to(topic, int(partition), keys, values, sizes, rows)
        return int(batch.num_rows)

    def _send_to(
        self, topic: str, partition: int, keys: pa.Array, values: pa.Array, sizes: Ints, rows: Ints
    ) -> None:
        if len(rows) < len(values):
            keys, values, sizes = (
                keys.take(pa.array(rows)),
                values.take(pa.array(rows)),
                sizes[rows],
            )
        whole = sizes + RECORD_OVERHEAD
        for start, count in chunks(whole, self._limits.rows_max, self._limits.bytes_max):
            encoded = encode(keys.slice(start, count), values.slice(start, count))
            self._transaction.send_encoded(topic, partition, encoded, count)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Mask | None]]:
        """Each topic, and which rows are its own; None stands for all."""
        if self._topic is not None:
            yield self._topic, None
            return
        column = batch.column("topic")
        for topic in pc.unique(column).to_pylist():
            if not topic:
                raise DualWriteError(NULL_TOPIC)
            yield topic, pc.equal(column, topic).to_numpy(zero_copy_only=False)

    def _partitions(self, topic: str, batch: pa.RecordBatch, keys: pa.Array) -> Ints:
        """Where each row goes: its column says, or its key, or (without both) anywhere."""
        count = self._transaction.partition_count(topic)
        no_key = pc.is_null(keys).to_numpy(zero_copy_only=False)
        found = java_partitions(pc.fill_null(keys, b""), count)
        # Like a producer, rows without a key stay together until the batch is full (KIP-480).
        found[no_key] = random.randrange(count)
        if "partition" in batch.schema.names:
            asked = batch.column("partition")
            given = pc.fill_null(asked, ANY_PARTITION).to_numpy(zero_copy_only=False)
            _check_partitions(asked)
            found = np.where(given >= 0, given, found).astype(np.int64)
        return found

    def _send_rows(self, batch: pa.RecordBatch, names: Sequence[str]) -> int:
        rows = zip(
            _binary(batch, "key", names).to_pylist(),
            _binary(batch, "value", names).to_pylist(),
            _headers_of(batch, names),
            _millis_of(batch, names),
            strict=True,
        )
        if self._topic is not None and "partition" not in names:
            return self._transaction.send(self._topic, rows, ANY_PARTITION)
        groups: dict[tuple[str, int], list[Row]] = {}
        for place, row in zip(self._places(batch, names), rows, strict=True):
            groups.setdefault(place, []).append(row)
        return sum(
            self._transaction.send(topic, some, partition)
            for (topic, partition), some in groups.items()
        )

    def _places(self, batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        topics: Iterable[str | None] = repeat(self._topic, batch.num_rows)
        if self._topic is None:
            topics = batch.column("topic").to_pylist()
        partitions: Iterable[int | None] = repeat(None, batch.num_rows)
        if "partition" in names:
            _check_partitions(batch.column("partition"))
            partitions = batch.column("partition").to_pylist()
        for topic, partition in zip(topics, partitions, strict=True):
            if not topic:
                raise DualWriteError(NULL_TOPIC)
            yield topic, ANY_PARTITION if partition is None else partition


def _check_partitions(column: pa.Array) -> None:
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise DualWriteError(f"partition {lowest} in the data: it must be 0 or more")


def _binary(batch: pa.RecordBatch, name: str, names: Sequence[str]) -> pa.Array:
    """A column as bytes, whatever kind of text or bytes it is; null where there is none."""
    if name not in names:
        return pa.nulls(batch.num_rows, pa.binary())
    return batch.column(name).cast(pa.binary())


def _headers_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[Any]:
    if "headers" not in names:
        return repeat(None, batch.num_rows)
    headers = batch.column("headers")
    entries = headers.flatten()
    if entries.null_count or (len(entries) and entries.field("key").null_count):
        raise DualWriteError("a header without a key in the data: Kafka has none")
    return [
        None if some is None else [(h["key"], h["value"]) for h in some]
        for some in headers.to_pylist()
    ]


def _millis_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[int]:
    if "timestamp" not in names:
        return repeat(0, batch.num_rows)
    micros = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    lowest = pc.min(micros).as_py()
    # A row without a timestamp is of now, which is what zero means to a producer.
    if lowest is not None and lowest < 1000:
        raise DualWriteError(
            "a timestamp before 1970, or of its first millisecond, in the data: Kafka's clients"
            " have none; leave it null for the time of writing"
        )
    millis: list[int] = pc.divide(pc.fill_null(micros, 0), 1000).to_pylist()
    return millis
