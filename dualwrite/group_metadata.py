"""`GroupMetadata`: which consumer, in which generation, the offsets of a transaction belong to.

KIP-447: TxnOffsetCommit carries the group's generation, so that a consumer which lost its partitions
can no longer commit offsets for them. confluent-kafka hands this out as opaque bytes, which is
librdkafka's `CGMDv2` form:

    "CGMDv2:" generation (int32, the machine's byte order) group-id NUL member-id NUL
    instance-id-is-null (one byte, 0 or 1) [instance-id NUL]
"""

import struct
from dataclasses import dataclass

_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group. Generation -1 and no member is "outside of any generation"."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.group_id, bytes):  # what a consumer hands out, in one piece
            read = self.parse(self.group_id)
            for name in self.__slots__:
                object.__setattr__(self, name, getattr(read, name))
        texts = (self.group_id, self.member_id, self.group_instance_id or "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"group, member and instance must be text: {self!r}")
        if not isinstance(self.generation_id, int):
            raise TypeError(f"a generation is a whole number, not {self.generation_id!r}")
        if not -1 <= self.generation_id < 2**31:
            raise ValueError(f"not a generation: {self.generation_id}")

    @classmethod
    def parse(cls, data: bytes) -> "GroupMetadata":
        """Read librdkafka's bytes; every other form is a ValueError, never a guess."""
        if not data.startswith(_MAGIC):
            form = data[: len(_MAGIC)]
            raise ValueError(f"unknown form of consumer group metadata: {form!r}")
        start = len(_MAGIC) + _GENERATION.size
        if len(data) < start:
            raise ValueError("consumer group metadata ends too early")
        (generation_id,) = _GENERATION.unpack_from(data, len(_MAGIC))
        group_id, position = _text(data, start)
        member_id, position = _text(data, position)
        instance_id, position = _instance(data, position)
        if position != len(data):
            raise ValueError("consumer group metadata has bytes behind its end")
        return cls(group_id, generation_id, member_id, instance_id)

    @classmethod
    def of(cls, given: "GroupMetadata | bytes | str") -> "GroupMetadata":
        """What callers may pass: this class, librdkafka's bytes, or a bare group id."""
        if isinstance(given, GroupMetadata):
            return given
        if isinstance(given, bytes):
            return cls.parse(given)
        if isinstance(given, str):
            return cls(given)
        raise TypeError(f"not consumer group metadata: {type(given).__name__}")

    def to_bytes(self) -> bytes:
        """librdkafka's bytes for the same metadata."""
        instance = b"\x01" if self.group_instance_id is None else b"\x00"
        if self.group_instance_id is not None:
            instance += self.group_instance_id.encode() + b"\x00"
        ids = self.group_id.encode() + b"\x00" + self.member_id.encode() + b"\x00"
        return _MAGIC + _GENERATION.pack(self.generation_id) + ids + instance


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.find(b"\x00", position)
    if end < 0:
        raise ValueError("consumer group metadata ends too early")
    return data[position:end].decode(), end + 1


def _instance(data: bytes, position: int) -> tuple[str | None, int]:
    if position >= len(data):
        raise ValueError("consumer group metadata ends too early")
    is_null = data[position]
    if is_null not in (0, 1):
        raise ValueError(f"unknown form of consumer group metadata: instance flag {is_null}")
    if is_null:
        return None, position + 1
    return _text(data, position + 1)
