"""Record batches: the known vectors, two other implementations, and everything that is refused."""

import random
import struct
import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.util import encode_varint
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from dualwrite.wire.compression import Compression
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.records import (
    HEADER_SIZE,
    RECORD_OVERHEAD_MAX,
    BatchBuilder,
    BatchError,
    BatchHeader,
    EndMarker,
    Record,
    batches,
    build_batch,
    check_batch,
    check_crc,
    control_batch,
    keyed_batch,
    patch_offset,
    rebuild_batch,
    records,
    records_of,
    timestamp_of,
    varint,
)

with warnings.catch_warnings():
    # kafka-python loads its schemas by a call that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

NOON = 1_700_000_000_000
COMMIT_VECTOR = bytes.fromhex(
    "000000000000000000000042ffffffff02c979b1980030000000000000018bcfe568000000018bcfe568000000"
    "00000000002a0065ffffffff000000012000000008000000010c00000000000700"
)

nullable = st.none() | st.binary(max_size=200)
headers = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), nullable), max_size=4
)
contents = st.lists(
    st.tuples(nullable, nullable, headers, st.integers(0, 2**45)), min_size=1, max_size=30
)
one_record = [(None, b"value", None, NOON)]


def resealed(batch, position, pattern, number):
    """The batch with one header field overwritten and a checksum that fits again."""
    changed = bytearray(batch)
    struct.pack_into(pattern, changed, position, number)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def with_payload(payload, count=1, attributes=0):
    """A batch with a valid header and checksum around any payload."""
    batch = bytearray(
        build_batch([(None, b"", None, NOON)] * max(count, 1))[:HEADER_SIZE] + payload
    )
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def test_commit_marker_is_the_known_vector():
    marker = control_batch(
        commit=True, producer_id=42, producer_epoch=101, coordinator_epoch=7, timestamp_ms=NOON
    )

    assert marker == COMMIT_VECTOR
    assert len(marker) == 78
    assert EndMarker.parse(marker) == EndMarker(True, 42, 101, 7)


def test_abort_marker_has_type_zero_and_other_readers_agree():
    marker = control_batch(
        commit=False,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=-1,
        timestamp_ms=NOON,
        base_offset=9,
    )

    [record] = list(KafkaPythonBatch(marker))
    assert (record.abort, record.commit, record.offset) == (True, False, 9)
    assert AioBatch(marker).is_control_batch
    assert EndMarker.parse(marker) == EndMarker(False, 7, 3, -1)


def test_marker_of_a_later_version_is_read_by_its_known_prefix():
    longer = build_batch(
        [(b"\0\5\0\1" + b"more", b"\0\5\0\0\0\7" + b"fields", None, NOON)],
        producer_id=1,
        producer_epoch=2,
    )

    assert EndMarker.parse(resealed(longer, 21, ">h", 0x30)) == EndMarker(True, 1, 2, 7)


def test_other_control_types_end_nothing():
    leader_change = build_batch([(b"\0\0\0\2", b"", None, NOON)])

    assert EndMarker.parse(resealed(leader_change, 21, ">h", 0x20)) is None


def test_emptied_control_batch_ends_nothing():
    header = BatchHeader.parse(COMMIT_VECTOR)

    assert EndMarker.parse(rebuild_batch(header, [])) is None


@pytest.mark.parametrize(
    ("key", "value"), [(b"\0", b"\0\0\0\0\0\7"), (b"\0\0\0\1", b"\0"), (None, None)]
)
def test_damaged_marker_is_refused(key, value):
    batch = build_batch([(key, value, None, NOON)])

    with pytest.raises(BatchError):
        EndMarker.parse(resealed(batch, 21, ">h", 0x30))


def test_data_batch_is_no_marker():
    with pytest.raises(BatchError, match="not a control batch"):
        EndMarker.parse(build_batch(one_record))


def test_header_fields_and_properties():
    batch = build_batch(
        [(b"k", b"v", None, NOON), (None, None, None, NOON + 5)],
        producer_id=2**40,
        producer_epoch=32767,
        base_sequence=2147483647,
        is_transactional=True,
        compression=Compression.ZSTD,
        base_offset=2**50,
        leader_epoch=4,
    )
    header = BatchHeader.parse(memoryview(b"front" + batch), 5)

    assert (header.base_offset, header.last_offset) == (2**50, 2**50 + 1)
    assert (header.length, header.leader_epoch, header.magic) == (len(batch), 4, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOON, NOON + 5)
    assert (header.producer_id, header.producer_epoch) == (2**40, 32767)
    assert (header.base_sequence, header.last_sequence) == (2147483647, 0)
    assert (header.record_count, header.compression) == (2, Compression.ZSTD)
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert not header.is_log_append_time


@pytest.mark.parametrize("seed", range(20))
def test_records_that_are_added_together_are_as_if_added_one_by_one(seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    together, one_by_one = BatchBuilder(), BatchBuilder()
    time_ms = NOON
    while together.count < chance.choice((5, 70, 200, 9_000)):
        time_ms += chance.choice((0, 0, 1, 70, -3))
        sizes = (None, 0, 1, 60, 63, 64, 100, 8_190, 8_192, 9_000)
        pairs = [
            (key if key is None else bytes(key), bytes(chance.choice(sizes[1:])))
            for key in chance.choices(sizes, k=chance.randrange(1, 300))
        ]
        bytes_max = together.size + chance.choice((5_000, 10**9))
        added = together.extend(pairs, time_ms, bytes_max)
        for key, value in pairs[:added]:
            one_by_one.append(key, value, None, time_ms)
        assert (together.count, together.size) == (one_by_one.count, one_by_one.size)
        assert together.size <= bytes_max
        if added < len(pairs):
            next_size = one_by_one.append(*pairs[added], None, time_ms)
            assert next_size + RECORD_OVERHEAD_MAX > bytes_max
            together.append(*pairs[added], None, time_ms)
    assert together.build() == one_by_one.build()


@given(contents, st.sampled_from([Compression.NONE, Compression.GZIP]), st.booleans())
def test_kafka_python_reads_what_we_build(content, compression, is_transactional):
    batch = build_batch(
        content,
        compression=compression,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        is_transactional=is_transactional,
        base_offset=100,
    )
    theirs = KafkaPythonBatch(batch)

    assert theirs.validate_crc()
    assert theirs.is_transactional == is_transactional
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 6, 7)
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in theirs] == content
    assert theirs.last_offset == 100 + len(content) - 1


@given(contents, st.sampled_from(Compression))
def test_aiokafka_reads_what_we_build(content, compression):
    theirs = AioBatch(build_batch(content, compression=compression))

    assert theirs.validate_crc()
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in theirs] == content


@given(contents)
@example([(None, b"v", [], NOON)] * 70)  # offsets of one byte, then of two
@example([(b"k", b"v", [], NOON + n // 40) for n in range(8300)])  # and of three
def test_uncompressed_bytes_equal_those_of_kafka_python(content):
    theirs = KafkaPythonBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=8,
        producer_epoch=9,
        base_sequence=10,
        batch_size=10**9,
    )
    for offset, (key, value, fields, timestamp) in enumerate(content):
        theirs.append(offset, timestamp, key, value, fields)
    ours = bytearray(
        build_batch(
            content, producer_id=8, producer_epoch=9, base_sequence=10, is_transactional=True
        )
    )
    patch_offset(ours, 0, 0)

    assert ours == theirs.build()


@given(contents, st.sampled_from(Compression))
def test_we_read_what_aiokafka_builds(content, compression):
    theirs = AioBuilder(2, compression, 0, -1, -1, -1, 10**9)
    for offset, (key, value, fields, timestamp) in enumerate(content):
        theirs.append(offset, timestamp, key, value, fields)
    batch = bytes(theirs.build())
    header = check_batch(batch)

    assert [
        (r.key, r.value, list(r.headers), timestamp_of(header, r)) for r in records(batch)
    ] == content


@given(
    st.lists(
        st.tuples(nullable, nullable, headers, st.sampled_from([-1, 0, 1, NOON, NOON - 1])),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from(Compression),
)
@example([(None, None, [], -1)], Compression.NONE)
def test_round_trip_with_missing_and_unordered_timestamps(content, compression):
    batch = build_batch(content, compression=compression)
    header = check_batch(batch)

    assert header.base_timestamp == content[0][3]
    assert header.max_timestamp == max(timestamp for *_, timestamp in content)
    assert [
        (r.key, r.value, list(r.headers), timestamp_of(header, r)) for r in records_of(batch)
    ] == content


def test_numbers_beyond_the_table_are_encoded_too():
    content = [(b"k" * 9000, b"v" * 70_000, [("h" * 9000, b"x" * 9000)], NOON)] + [
        (None, b"", None, NOON + 10**9) for _ in range(9000)
    ]
    batch = build_batch(content)

    assert [(r.key, r.value) for r in records(batch)] == [c[:2] for c in content]
    assert [r.offset_delta for r in records(batch)] == list(range(9001))
    assert [r.timestamp for r in AioBatch(batch)] == [c[3] for c in content]


@pytest.mark.parametrize(
    "number", [0, -1, 63, 64, -64, -65, 8191, 8192, 2**31, -(2**63), 2**63 - 1]
)
def test_varint_is_what_aiokafka_writes(number):
    theirs = bytearray()
    encode_varint(number, theirs.append)

    assert varint(number) == theirs


@given(contents)
def test_builder_knows_the_size_before_building(content):
    builder = BatchBuilder()
    sizes = [builder.append(*record) for record in content]
    batch = builder.build()

    assert sizes[-1] == builder.size == len(batch)
    assert builder.count == len(content)


def test_builder_can_be_built_again_under_another_epoch():
    builder = BatchBuilder()
    builder.append(b"k", b"v", None, NOON)
    first = builder.build(producer_id=1, producer_epoch=0, base_sequence=5)
    builder.append(b"k2", b"v2", None, NOON)
    again = builder.build(producer_id=1, producer_epoch=1, base_sequence=0)

    assert check_batch(first).record_count == 1
    assert [r.key for r in records(again)] == [b"k", b"k2"]
    assert check_batch(again).producer_epoch == 1


def test_batch_without_records_is_not_built():
    with pytest.raises(ValueError, match="needs a record"):
        build_batch([])


def test_patching_leaves_the_checksum_valid():
    batch = bytearray(b"....." + build_batch(one_record))
    patch_offset(batch, 123_456_789_012, 7, position=5)

    header = check_batch(batch[5:])
    assert (header.base_offset, header.leader_epoch) == (123_456_789_012, 7)
    assert check_crc(batch, BatchHeader.parse(batch, 5), 5)


GOOD = build_batch([(None, b"a", None, NOON), (None, b"b", None, NOON)])


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:60], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:8] + b"\0\0\0\x10" + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], ErrorCode.CORRUPT_MESSAGE),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD + b"x", ErrorCode.INVALID_RECORD),
        (GOOD[:16] + b"\1" + GOOD[17:], ErrorCode.INVALID_RECORD),
        (resealed(GOOD, 57, ">i", 1), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD),
        (resealed(resealed(GOOD, 57, ">i", 0), 23, ">i", -1), ErrorCode.INVALID_RECORD),
        (resealed(resealed(GOOD, 57, ">i", -5), 23, ">i", -6), ErrorCode.INVALID_RECORD),
        (resealed(resealed(GOOD, 57, ">i", 5), 23, ">i", 4), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, 21, ">h", 5), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, 21, ">h", 7), ErrorCode.INVALID_RECORD),
        (resealed(GOOD, 21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),
        (resealed(GOOD, 21, ">h", 0x40), ErrorCode.INVALID_RECORD),
    ],
)
def test_check_batch_refuses(batch, code):
    with pytest.raises(BatchError) as caught:
        check_batch(batch)

    assert caught.value.code is code


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_changed_byte_inside_the_checksum_is_noticed(position, change):
    damaged = bytearray(GOOD)
    damaged[position] ^= change

    if position in range(8) or position in range(12, 16):
        assert check_batch(damaged).record_count == 2
    else:
        with pytest.raises(BatchError):
            check_batch(damaged)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0c\0\0\0\1\1",  # ends early
        b"\x0e\0\0\0\1\1\0\0",  # longer than it says
        b"\x0c\0\0\0\1\1\0\0\0",  # bytes behind the last record
        b"\x0c\0\0\0\1\x7e\0",  # value longer than the batch
        b"\x0c\0\0\0\x7e\1\0",  # key longer than the batch
        b"\x0c\0\0\0\1\1\1",  # headers: -1
        b"\x10\0\0\0\1\1\2\1\1",  # header without a name
        b"\x0c\0\0\2\1\1\0",  # offset outside the batch
        b"\x0c\0\0\1\1\1\0",  # negative offset
        b"\xff" * 20,  # number without an end
        b"\x0c\0\0\0\1\1\xfe\xff\xff\xff\x0f",  # two thousand million headers
    ],
)
def test_damaged_records_are_refused(payload):
    with pytest.raises(BatchError):
        records_of(with_payload(payload))


@given(st.binary(max_size=80), st.integers(1, 5), st.integers(0, 7))
def test_reading_any_bytes_ends_in_records_or_batch_error(payload, count, codec):
    try:
        found = records_of(with_payload(payload, count, codec), 10_000)
    except BatchError:
        return
    assert len(found) == count


def test_bomb_is_refused():
    bomb = build_batch([(None, bytes(5_000_000), None, NOON)], compression=Compression.ZSTD)

    assert len(bomb) < 2_000
    with pytest.raises(BatchError, match="1000000 bytes"):
        records_of(bomb, 1_000_000)


def test_reading_is_lazy():
    halved = build_batch([(None, b"first", None, NOON), (None, b"second", None, NOON)])
    damaged = halved[:-1] + b"\7"

    reader = records(damaged)
    assert next(reader).value == b"first"
    with pytest.raises(BatchError):
        next(reader)


def test_batches_walks_over_neighbours():
    first, second = build_batch(one_record), build_batch(one_record * 3, base_offset=1)

    found = [(p, h.record_count) for p, h in batches(memoryview(first + second))]
    assert found == [(0, 1), (len(first), 3)]


@pytest.mark.parametrize("cut", [1, 10, 60, 61])
def test_cut_tail_ends_the_walk_or_is_an_error(cut):
    batch = build_batch(one_record)
    data = batch + batch[:cut]

    assert [p for p, _ in batches(data, cut_tail=True)] == [0]
    with pytest.raises(BatchError):
        list(batches(data))


@pytest.mark.parametrize("compression", Compression)
def test_rebuilt_batch_keeps_offsets_and_producer(compression):
    batch = build_batch(
        [(b"%d" % n, b"v", [("h", None)], NOON + n) for n in range(5)],
        producer_id=3,
        producer_epoch=4,
        base_sequence=5,
        is_transactional=True,
        compression=compression,
        base_offset=50,
    )
    header = BatchHeader.parse(batch)
    kept = [r for r in records(batch) if r.key in (b"1", b"3")]
    rebuilt = rebuild_batch(header, kept)
    after = BatchHeader.parse(rebuilt)

    assert check_crc(rebuilt, after)
    assert records_of(rebuilt) == kept
    assert (after.base_offset, after.last_offset, after.record_count) == (50, 54, 2)
    assert (after.producer_id, after.base_sequence, after.last_sequence) == (3, 5, 9)
    assert after.max_timestamp == NOON + 3
    assert [r.timestamp for r in AioBatch(rebuilt)] == [NOON + 1, NOON + 3]


@pytest.mark.parametrize("compression", Compression)
def test_emptied_batch_keeps_its_place(compression):
    header = BatchHeader.parse(build_batch(one_record * 4, base_offset=7, compression=compression))
    emptied = rebuild_batch(header, [])

    assert len(emptied) == HEADER_SIZE
    assert BatchHeader.parse(emptied).last_offset == 10
    assert records_of(emptied) == []


def test_delete_horizon_keeps_the_records_times():
    batch = build_batch([(b"k", None, None, NOON), (b"l", None, None, NOON + 9)])
    rebuilt = rebuild_batch(BatchHeader.parse(batch), records_of(batch), NOON + 1000)
    header = BatchHeader.parse(rebuilt)

    assert header.has_delete_horizon
    assert header.base_timestamp == NOON + 1000
    assert [timestamp_of(header, r) for r in records(rebuilt)] == [NOON, NOON + 9]
    again = rebuild_batch(header, records_of(rebuilt)[:1])
    assert BatchHeader.parse(again).base_timestamp == NOON + 1000


def test_header_names_that_are_not_text_survive_the_cleaner():
    payload = b"\x16\0\0\0\1\1\2\4\xff\xfe\2v"
    batch = with_payload(payload)

    assert rebuild_batch(BatchHeader.parse(batch), records_of(batch))[HEADER_SIZE:] == payload


def test_log_append_time_is_the_batch_s_time():
    header = BatchHeader.parse(resealed(GOOD, 21, ">h", 0x08))

    assert timestamp_of(header, Record(0, 500, None, None)) == NOON


def test_a_keyed_batch_is_what_the_builder_gives():
    content = [(b"k" * 70, b"v" * 300), (b"a", None), (b"", b"")]
    batch, header = keyed_batch(content, 123_456)
    assert batch == build_batch([(key, value, None, 123_456) for key, value in content])
    assert header == BatchHeader.parse(batch)
