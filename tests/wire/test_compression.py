"""Compression: round trips, other implementations' bytes, and data that lies about its size."""

import gzip
import struct
import tracemalloc
from contextlib import suppress

import cramjam
import pytest
from aiokafka.codec import lz4_encode, snappy_encode, zstd_encode
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.wire.compression import Compression, CompressionError, compress, decompress

REAL = [codec for codec in Compression if codec is not Compression.NONE]
ROOM = 10_000_000


@given(st.sampled_from(Compression), st.binary(max_size=5000), st.integers(1, 40))
def test_round_trip(codec, data, times):
    data *= times

    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 3_000_000])
def test_round_trip_at_block_limits(codec, size):
    compressible = bytes(size)
    noise = bytes((n * n * 31 + (n >> 3)) & 0xFF for n in range(min(size, 200_000)))

    assert decompress(codec, compress(codec, compressible), size) == compressible
    assert decompress(codec, memoryview(compress(codec, noise)), size) == noise


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [1, 1000, 70_000, 1_000_000])
def test_one_byte_above_the_bound_is_refused(codec, size):
    packed = compress(codec, bytes(size))

    assert len(decompress(codec, packed, size)) == size
    with pytest.raises(CompressionError):
        decompress(codec, packed, size - 1)


@pytest.mark.parametrize("codec", REAL)
def test_bomb_needs_no_more_memory_than_the_bound(codec):
    bomb = compress(codec, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(codec, bomb, 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4_000_000 + 2 * len(bomb)


@given(st.sampled_from(REAL), st.binary(max_size=200))
def test_any_bytes_end_in_data_or_a_compression_error(codec, data):
    with suppress(CompressionError):
        assert len(decompress(codec, data, 5000)) <= 5000


@given(st.sampled_from(REAL), st.integers(0, 10**6), st.integers(1, 255))
def test_damaged_data_ends_in_data_or_a_compression_error(codec, where, change):
    packed = bytearray(compress(codec, b"some text to be packed " * 40))
    packed[where % len(packed)] ^= change
    with suppress(CompressionError):
        assert len(decompress(codec, packed, 5000)) <= 5000


@pytest.mark.parametrize("codec", REAL)
def test_every_cut_is_noticed(codec):
    packed = compress(codec, bytes(range(256)) * 4)
    whole = decompress(codec, packed, ROOM)

    for length in range(len(packed)):
        try:
            part = decompress(codec, packed[:length], ROOM)
        except CompressionError:
            continue
        # The xerial frame has no end mark: an empty list of blocks is an empty text.
        assert codec is Compression.SNAPPY
        assert (length, part) == (16, b"")
    assert whole == bytes(range(256)) * 4


def test_snappy_that_lies_about_its_length_is_refused_before_memory_is_taken():
    lying = b"\xff\xff\xff\x7f" + b"\x00a"

    with pytest.raises(CompressionError, match="claims"):
        decompress(Compression.SNAPPY, lying, 2**31)
    with pytest.raises(CompressionError, match="exceeds"):
        decompress(Compression.SNAPPY, lying, 1000)


def test_raw_snappy_is_read():
    raw = bytes(cramjam.snappy.compress_raw(b"text " * 100))

    assert decompress(Compression.SNAPPY, raw, 500) == b"text " * 100


@pytest.mark.parametrize("xerial", [True, False])
def test_snappy_of_aiokafka_is_read(xerial):
    data = b"text " * 20_000

    packed = snappy_encode(data, xerial_compatible=xerial)
    assert decompress(Compression.SNAPPY, packed, len(data)) == data


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 7])
def test_xerial_block_length_is_checked(length):
    frame = compress(Compression.SNAPPY, b"")

    with pytest.raises(CompressionError):
        decompress(Compression.SNAPPY, frame + struct.pack(">i", length) + b"abc", ROOM)


def test_xerial_bound_counts_all_blocks():
    packed = compress(Compression.SNAPPY, bytes(100_000))

    with pytest.raises(CompressionError):
        decompress(Compression.SNAPPY, packed, 70_000)


def test_snappy_is_written_in_java_s_frame():
    packed = compress(Compression.SNAPPY, b"x" * 40_000)

    assert packed.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    (length,) = struct.unpack_from(">i", packed, 16)
    assert len(cramjam.snappy.decompress_raw(packed[20 : 20 + length])) == 32 * 1024


def test_lz4_and_zstd_of_aiokafka_are_read():
    data = b"text " * 50_000

    assert decompress(Compression.LZ4, lz4_encode(data), len(data)) == data
    assert decompress(Compression.ZSTD, zstd_encode(data), len(data)) == data


def test_lz4_blocks_are_independent_as_java_demands():
    packed = compress(Compression.LZ4, b"x" * 100_000)
    flags, size, check = packed[4], packed[5], packed[6]

    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert flags == 0b0110_0000
    assert size == 0x40
    assert check == xxh32(bytes((flags, size))) >> 8 & 0xFF


def xxh32(data):
    """xxHash32 of fewer than four bytes with seed 0, by its published definition."""
    p1, p2, p3, p5 = 2654435761, 2246822519, 3266489917, 374761393
    mask = 0xFFFFFFFF
    h = p5 + len(data)
    for byte in data:
        h = h + byte * p5 & mask
        h = ((h << 11 | h >> 21) & mask) * p1 & mask
    h = (h ^ h >> 15) * p2 & mask
    h = (h ^ h >> 13) * p3 & mask
    return h ^ h >> 16


def test_gzip_of_the_standard_library_is_read_and_reads_ours():
    data = b"text " * 100

    assert decompress(Compression.GZIP, gzip.compress(data), 500) == data
    assert gzip.decompress(compress(Compression.GZIP, data)) == data


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_frames_in_a_row_are_one_text(codec):
    twice = compress(codec, b"first ") + compress(codec, b"second")

    assert decompress(codec, twice, 12) == b"first second"
    with pytest.raises(CompressionError):
        decompress(codec, twice, 11)


def test_zstd_window_beyond_the_format_s_ordinary_limit_is_refused():
    # Frame without content size whose window descriptor asks for 2 GiB, then an empty last block.
    greedy = b"\x28\xb5\x2f\xfd\x00" + bytes((21 << 3,)) + b"\x01\x00\x00"

    with pytest.raises(CompressionError):
        decompress(Compression.ZSTD, greedy, ROOM)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codes_are_refused(codec):
    with pytest.raises(CompressionError, match="unknown compression code"):
        compress(codec, b"")
    with pytest.raises(CompressionError, match="unknown compression code"):
        decompress(codec, b"", 10)


def test_codecs_have_the_names_of_the_setting():
    names = ["none", "gzip", "snappy", "lz4", "zstd"]

    assert [Compression.named(name) for name in names] == list(range(5))
    with pytest.raises(ValueError, match="none, gzip, snappy, lz4, zstd"):
        Compression.named("brotli")
