"""Which partition a record goes to: the Java client's hash and librdkafka's partitioner names.

A record with a key goes where every other client with the same partitioner would put it, so
`murmur2` must agree with Java to the bit. Records without a key stick to one partition until its
batch is full (KIP-480): fewer, larger batches.
"""

import zlib
from collections.abc import Callable
from functools import lru_cache

Hash = Callable[[bytes], int]

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_CACHED_KEYS = 65_536


@lru_cache(maxsize=_CACHED_KEYS)
def murmur2(key: bytes) -> int:
    """MurmurHash2 as the Java client computes it, made positive as Java does."""
    length = len(key)
    value = 0x9747B28C ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if length != whole:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return (value ^ value >> 15) & 0x7FFFFFFF


@lru_cache(maxsize=_CACHED_KEYS)
def fnv1a(key: bytes) -> int:
    """FNV-1a with the sign dropped, as Sarama and librdkafka do."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & _MASK
    return value if value < 0x80000000 else 0x100000000 - value


def crc32(key: bytes) -> int:
    """librdkafka's `consistent`."""
    return zlib.crc32(key)


def sticky(key: bytes) -> int:
    """`random`: no key decides anything; callers never ask (see `Partitioner.hashes`)."""
    raise AssertionError("the random partitioner does not hash")


class Partitioner:
    """A partitioner by librdkafka's name: which keys it hashes, and how."""

    __slots__ = ("hash_key", "hashes_empty", "hashes_null", "name", "sticks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.hash_key: Hash = _HASHES[name.removesuffix("_random")]
        # `consistent`, `murmur2` and `fnv1a` put null keys where the empty key goes.
        self.hashes_null = name in ("consistent", "murmur2", "fnv1a")
        # consistent_random alone treats an empty key as no key.
        self.hashes_empty = name not in ("random", "consistent_random")
        self.sticks = name != "random"

    def hashes(self, key: bytes | None) -> bool:
        """Does the key decide, or does the record go to the sticky (or a random) partition?"""
        if key is None:
            return self.hashes_null
        if self.name == "random":
            return False
        return bool(key) or self.hashes_empty

    def place(self, key: bytes | None, partition_count: int) -> int:
        return self.hash_key(key or b"") % partition_count


_HASHES: dict[str, Hash] = {
    "murmur2": murmur2,
    "consistent": crc32,
    "fnv1a": fnv1a,
    "random": sticky,
}
