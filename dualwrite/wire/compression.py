"""The five compressions of record batches, with a bound on what may come out.

What is written is what every client can read, which is less than each format allows: Java refuses
LZ4 frames whose blocks depend on each other, and it frames Snappy in its own way (the "xerial"
format). What is read is everything clients write, raw Snappy and several frames in a row included.

A compressed batch is a claim by a stranger: a hundred bytes can ask for gigabytes. `decompress`
never allocates much beyond its bound, and nothing but `CompressionError` leaves it.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import cramjam

Data: TypeAlias = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The codes in the lowest three bits of a batch's attributes; names are the config values."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> "Compression":
        """The codec for a `compression.type` value; a ValueError lists the known ones."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ValueError(f"unknown compression {name!r}, known are: {known}") from None


class CompressionError(ValueError):
    """The data is not what its codec says, or it is larger than the bound."""


_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_ZSTD_LEVEL: Final = 3

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
# Three bytes of Snappy copy at most 64 bytes, so an honest length is never above this ratio.
_SNAPPY_RATIO_MAX: Final = 22

# LZ4 frame: magic, version 01 with independent blocks and no checksums, blocks up to 64 KiB, and
# the second byte of the xxHash32 of those two bytes, which is constant because they are.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_END: Final = bytes(4)

_FIRST_GUESS_MIN: Final = 64 * 1024
_GROWTH: Final = 8

_INT32 = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")


def compress(codec: int, data: bytes) -> bytes:
    """Compress for the given code; an unknown code is a `CompressionError`."""
    if codec == Compression.NONE:
        return data
    if codec == Compression.GZIP:
        return zlib.compress(data, wbits=_GZIP_WBITS)
    if codec == Compression.SNAPPY:
        return _compress_xerial(data)
    if codec == Compression.LZ4:
        return _compress_lz4(data)
    if codec == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise CompressionError(f"unknown compression code {codec}")


def decompress(codec: int, data: Data, max_bytes: int) -> bytes:
    """Decompress all of `data`; more than `max_bytes` of output is a `CompressionError`."""
    if codec == Compression.NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(data)
    try:
        if codec == Compression.GZIP:
            return _decompress_gzip(bytes(data), max_bytes)
        if codec == Compression.SNAPPY:
            return _decompress_snappy(bytes(data), max_bytes)
        if codec == Compression.LZ4:
            return _decompress_into(cramjam.lz4.decompress_into, bytes(data), max_bytes)
        if codec == Compression.ZSTD:
            return _decompress_into(cramjam.zstd.decompress_into, bytes(data), max_bytes)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CompressionError(
            f"damaged {Compression(codec).name.lower()} data: {error}"
        ) from error
    raise CompressionError(f"unknown compression code {codec}")


def _too_large(max_bytes: int) -> CompressionError:
    return CompressionError(f"decompressed data exceeds {max_bytes} bytes")


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        block = data[start : start + _LZ4_BLOCK]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += (_UINT32_LE.pack(len(packed)), packed)
        else:
            parts += (_UINT32_LE.pack(len(block) | _LZ4_STORED), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _decompress_gzip(data: bytes, max_bytes: int) -> bytes:
    """Read every member of the gzip file: the format allows several in a row."""
    parts: list[bytes] = []
    room = max_bytes
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        # One byte more than allowed tells "exactly full" from "too large" (and 0 is no limit).
        part = member.decompress(data, room + 1)
        if len(part) > room:
            raise _too_large(max_bytes)
        if not member.eof:
            raise CompressionError("gzip data is truncated")
        parts.append(part)
        room -= len(part)
        data = member.unused_data
        if not data:
            return b"".join(parts)


def _decompress_snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_snappy_block(data, max_bytes)
    parts: list[bytes] = []
    room = max_bytes
    # Java ignores the two version numbers of the frame, hence so do we.
    position = len(_XERIAL_HEADER)
    if position > len(data):
        raise CompressionError("snappy frame is truncated")
    while position < len(data):
        if position + 4 > len(data):
            raise CompressionError("snappy frame is truncated")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if length < 0 or position + length > len(data):
            raise CompressionError(f"snappy block of {length} bytes exceeds the frame")
        part = _decompress_snappy_block(data[position : position + length], room)
        parts.append(part)
        room -= len(part)
        position += length
    return b"".join(parts)


def _decompress_snappy_block(block: bytes, max_bytes: int) -> bytes:
    """Trust the length in front only as far as the block could really hold it."""
    length = cramjam.snappy.decompress_raw_len(block)
    if length > max_bytes:
        raise _too_large(max_bytes)
    if length > _SNAPPY_RATIO_MAX * len(block):
        raise CompressionError(f"snappy block of {len(block)} bytes claims {length}")
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_into(into: Callable[[bytes, bytearray], int], data: bytes, max_bytes: int) -> bytes:
    """Decompress into buffers of growing size, the last one as large as the bound.

    The library reports a full buffer and damaged data by the same error, so every error is tried
    again with more room; damaged data costs a few attempts more, all of them below the bound.
    """
    size = min(max_bytes, max(_FIRST_GUESS_MIN, len(data) * 4))
    while True:
        buffer = bytearray(size)
        try:
            length = into(data, buffer)
        except cramjam.DecompressionError as error:
            if size == max_bytes:
                raise CompressionError(
                    f"damaged data, or more than {max_bytes} bytes decompressed: {error}"
                ) from error
            size = min(max_bytes, size * _GROWTH)
        else:
            return bytes(memoryview(buffer)[:length])
