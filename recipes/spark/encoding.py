"""Kafka's record format for whole columns: Arrow joins the bytes, no row becomes a Python object.

A record in a batch is: its size, attributes, timestamp delta, offset delta, key and value, each with
its size in front, and the number of headers. Sizes are zigzag varints, looked up in a table. All
records of a batch made here have the same timestamp and no headers.
"""

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dualwrite.wire.records import varint

TABLE_SIZE = 1 << 15
RECORD_BYTES_MAX = TABLE_SIZE - 64
"""Rows with more are left to the producer's own encoder."""

_PLAIN = b"\x00\x00"  # attributes, and the timestamp delta
_NULL = b"\x01"  # the size -1
_NO_HEADERS = b"\x00"

Ints = npt.NDArray[np.int64]


@functools.cache
def _varints() -> tuple[pa.Array, pa.Array]:
    table = pa.array([varint(number) for number in range(TABLE_SIZE)], pa.binary())
    return table, pc.binary_length(table)


def lengths(column: pa.Array) -> Ints:
    """Bytes of each entry; 0 for null."""
    found: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def encode(keys: pa.Array, values: pa.Array) -> bytes:
    """Encode rows, fewer than TABLE_SIZE, as the records of one batch."""
    table, table_lengths = _varints()
    count = len(values)
    key_size, keys = _sized(keys, table)
    value_size, values = _sized(values, table)
    size = len(_PLAIN) + len(_NO_HEADERS)
    parts = (key_size, keys, value_size, values)
    for length in (table_lengths.slice(0, count), *map(pc.binary_length, parts)):
        size = pc.add(size, length)
    records = pc.binary_join_element_wise(
        table.take(size),
        pa.scalar(_PLAIN, pa.binary()),
        table.slice(0, count),
        *parts,
        pa.scalar(_NO_HEADERS, pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    _, offsets, data = records.buffers()
    bounds = np.frombuffer(offsets, np.int32)[records.offset :]
    first, last = int(bounds[0]), int(bounds[count])
    encoded: bytes = data.slice(first, last - first).to_pybytes()
    return encoded


def _sized(column: pa.Array, table: pa.Array) -> tuple[pa.Array, pa.Array]:
    sizes = table.take(pc.fill_null(pc.binary_length(column), 0))
    if column.null_count == 0:
        return sizes, column
    empty = pa.scalar(b"", pa.binary())
    return pc.if_else(pc.is_null(column), pa.scalar(_NULL, pa.binary()), sizes), pc.fill_null(
        column, empty
    )


def chunks(sizes: Ints, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut rows into batches: start and length of each. Every batch has a row at least."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + bytes_max, side="right"))
        end = min(max(fits, start + 1), start + rows_max)
        yield start, end - start
        start = end


def java_partitions(keys: pa.Array, count: int) -> Ints:
    """Where the Java client puts keys: murmur2 of each, for all keys of one length at once."""
    found = np.zeros(len(keys), np.int64)
    if count == 1 or len(keys) == 0:
        return found
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    starts, sizes = bounds[:-1].astype(np.int64), np.diff(bounds)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    for size in np.unique(sizes):
        rows = np.nonzero(sizes == size)[0]
        grid = content[starts[rows, None] + np.arange(size)]
        found[rows] = _murmur2(grid) % count
    return found


def _murmur2(grid: npt.NDArray[np.uint8]) -> Ints:
    """MurmurHash2 of each row of bytes, made positive as Java does."""
    multiplier, size = np.uint32(0x5BD1E995), grid.shape[1]
    value = np.full(len(grid), 0x9747B28C ^ size, np.uint32)
    whole = size & ~3
    words = np.ascontiguousarray(grid[:, :whole]).view("<u4")
    for column in range(words.shape[1]):
        word = words[:, column] * multiplier
        value = (value * multiplier) ^ ((word ^ (word >> np.uint32(24))) * multiplier)
    if size != whole:
        tail = np.zeros(len(grid), np.uint32)
        for place in range(size - whole):
            tail |= grid[:, whole + place].astype(np.uint32) << np.uint32(8 * place)
        value = (value ^ tail) * multiplier
    value = (value ^ (value >> np.uint32(13))) * multiplier
    value = value ^ (value >> np.uint32(15))
    return (value & np.uint32(0x7FFFFFFF)).astype(np.int64)
