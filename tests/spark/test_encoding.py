"""Columns encoded as a whole are the same bytes, and go to the same places, as row by row."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.partitioner import murmur2
from dualwrite.recipes.spark.encoding import chunks, encode, java_partitions, lengths
from dualwrite.wire.records import BatchBuilder

content = st.one_of(st.none(), st.binary(max_size=70), st.integers(0, 9000).map(lambda n: b"x" * n))


@settings(deadline=None)
@given(st.lists(st.tuples(content, content), min_size=1, max_size=30), st.integers(0, 5))
def test_columns_encode_as_rows_do(rows, skipped):
    builder = BatchBuilder()
    for key, value in rows[skipped:]:
        builder.append(key, value, None, 5)
    # A slice, as tasks cut record batches: its buffers begin elsewhere.
    keys = pa.array([key for key, _ in rows], pa.binary()).slice(skipped)
    values = pa.array([value for _, value in rows], pa.binary()).slice(skipped)
    if len(values) == 0:
        return
    filled = BatchBuilder()
    filled.fill(encode(keys, values), len(values), 5)

    assert filled.build(producer_id=1) == builder.build(producer_id=1)
    assert filled.size == builder.size


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=50), st.integers(1, 12), st.integers(0, 5))
def test_keys_go_where_the_java_client_puts_them(keys, count, skipped):
    column = pa.array(keys, pa.binary()).slice(skipped)

    assert list(java_partitions(column, count)) == [murmur2(k) % count for k in keys[skipped:]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), max_size=60), st.integers(1, 10), st.integers(1, 200))
def test_batches_hold_all_rows_in_order_within_their_limits(sizes, rows_max, bytes_max):
    column = pa.array([b"x" * size for size in sizes], pa.binary())

    found = list(chunks(lengths(column), rows_max, bytes_max))

    covered = [row for start, length in found for row in range(start, start + length)]
    assert covered == list(range(len(sizes)))
    for start, length in found:
        assert 1 <= length <= rows_max
        assert length == 1 or sum(sizes[start : start + length]) <= bytes_max


def test_a_batch_that_has_rows_takes_no_encoded_ones():
    builder = BatchBuilder()
    builder.append(b"k", b"v")

    with pytest.raises(ValueError, match="first of the batch"):
        builder.fill(b"", 1, 0)
