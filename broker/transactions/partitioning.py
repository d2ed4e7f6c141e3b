"""Which partition of an internal topic a transactional id or a group belongs to."""

from functools import lru_cache


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, wrapped to 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=16_384)  # every request of a transaction asks for the same id
def partition_for(name: str, partitions: int) -> int:
    """Kafka's choice, so that its tools look for a record where we have put it."""
    value = java_hash(name)
    # Java's smallest int has no positive twin; Kafka takes 0 for it.
    return 0 if value == -0x8000_0000 else abs(value) % partitions
