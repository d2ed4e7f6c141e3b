"""From Arrow record batches to Kafka records: the columns of Spark's Kafka sink, and `timestamp`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

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

from dualwrite.content import Row
from dualwrite.errors import ConfigurationError, DualWriteError

Send = Callable[[str, Iterable[Row], int], int]
ANY_PARTITION = -1

_BYTES = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "timestamp": ((TimestampType,), "timestamp"),
}


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


def _is_headers(headers: Any) -> bool:
    element = headers.elementType
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(
        element["value"].dataType, BinaryType
    )


class RowSender:
    """Sends record batches, all of one schema, to where their columns say."""

    def __init__(self, topic: str | None, send: Send) -> None:
        self._topic = topic
        self._send = send

    def send(self, batch: pa.RecordBatch) -> int:
        """Send all rows of a record batch; returns how many there were."""
        names = batch.schema.names
        rows = zip(
            _bytes_of(batch, "key", names),
            _bytes_of(batch, "value", names),
            _headers_of(batch, names),
            _millis_of(batch, names),
            strict=False,
        )
        if self._topic is not None and "partition" not in names:
            return self._send(self._topic, rows, ANY_PARTITION)
        return sum(
            self._send(topic, some, partition)
            for topic, partition, some in self._grouped(batch, names, rows)
        )

    def _grouped(
        self, batch: pa.RecordBatch, names: Sequence[str], rows: Iterable[Row]
    ) -> Iterator[tuple[str, int, list[Row]]]:
        groups: dict[tuple[str, int], list[Row]] = {}
        for place, row in zip(self._places(batch, names), rows, strict=True):
            groups.setdefault(place, []).append(row)
        for (topic, partition), some in groups.items():
            yield topic, partition, some

    def _places(self, batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        topics: Iterable[str | None] = repeat(self._topic, batch.num_rows)
        if self._topic is None:
            topics = batch.column("topic").to_pylist()
        partitions: Iterable[int | None] = repeat(None, batch.num_rows)
        if "partition" in names:
            partitions = batch.column("partition").to_pylist()
        for topic, partition in zip(topics, partitions, strict=True):
            if not topic:
                raise DualWriteError("null topic in the data: set option topic, or fill the column")
            if partition is not None and partition < 0:
                raise DualWriteError(f"partition {partition} in the data: it must be 0 or more")
            yield topic, ANY_PARTITION if partition is None else partition


def _bytes_of(batch: pa.RecordBatch, name: str, names: Sequence[str]) -> Iterable[bytes | None]:
    if name not in names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[Any]:
    if "headers" not in names:
        return repeat(None, batch.num_rows)
    return [
        None if headers is None else [(h["key"], h["value"]) for h in headers]
        for headers in batch.column("headers").to_pylist()
    ]


def _millis_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterable[int]:
    if "timestamp" not in names:
        return repeat(0, batch.num_rows)
    micros = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    lowest = pc.min(micros).as_py()
    if lowest is not None and lowest < 0:
        raise DualWriteError("a timestamp before 1970 in the data: Kafka has none")
    # Zero means "now" to a producer, as does a row without a timestamp.
    millis: list[int] = pc.divide(pc.fill_null(micros, 0), 1000).to_pylist()
    return millis
