"""The journal's bytes, shared by the writer and by recovery.

A group is what one fdatasync made durable: a header of 56 bytes and one or more entries.

    magic u32, header crc u32, epoch u64, number u64, first position u64, steady_ms i64,
    body size u32, entries u32, previous crc u32, reach u32
    { crc u32, size u32, payload }*

`reach` is how long the file is once the group is durable: a file that is shorter, although another
group follows, was cut.

Every checksum continues the one before it: an entry's begins with the header's or the previous
entry's, and a header holds the last one of the group before. So a chain breaks at a flipped bit, at a
write that went elsewhere, and where a recycled file still holds what it held in an earlier epoch.
The header's checksum begins with a secret of this data directory; otherwise a record value could be
made to look like a later group.
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from dualwrite.broker.storage.disk import Buffer

JOURNAL_DIR: Final = "journal"
MAGIC: Final = 0x64774A31
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")

_HEADER = struct.Struct(">IIQQQqIIII")
_COVERED = struct.Struct(">QQQqIIII")
ENTRY_HEADER = struct.Struct(">II")
ENTRY_SIZE = struct.Struct(">I")
HEADER_SIZE: Final = _HEADER.size


class Tip(NamedTuple):
    """A place in the journal: everything up to and including entry `position` lies before it."""

    slot: str
    epoch: int
    offset: int
    number: int
    position: int
    chain: int


class GroupHeader(NamedTuple):
    crc: int
    epoch: int
    number: int
    first_position: int
    steady_ms: int
    body_size: int
    entries: int
    previous_crc: int
    reach: int


def slot_path(slot: str) -> str:
    return f"{JOURNAL_DIR}/{slot}"


def encode_header(
    seed: int, tip: Tip, epoch: int, steady_ms: int, body_size: int, count: int, reach: int
) -> tuple[bytes, int]:
    """The header of the group that follows `tip`, and its checksum."""
    covered = _COVERED.pack(
        epoch, tip.number + 1, tip.position + 1, steady_ms, body_size, count, tip.chain, reach
    )
    crc = crc32c(covered, seed)
    return ENTRY_HEADER.pack(MAGIC, crc) + covered, crc


def parse_header(seed: int, data: Buffer, offset: int) -> GroupHeader | None:
    """The group header at `offset`, or None if there is none that is intact."""
    if offset + HEADER_SIZE > len(data):
        return None
    magic, crc, epoch, number, position, steady, size, count, previous, reach = _HEADER.unpack_from(
        data, offset
    )
    if magic != MAGIC:
        return None
    if crc32c(memoryview(data)[offset + 8 : offset + HEADER_SIZE], seed) != crc:
        return None
    return GroupHeader(crc, epoch, number, position, steady, size, count, previous, reach)


def entry_crc(payload_size: bytes, parts: list[Buffer], chain: int) -> int:
    chain = crc32c(payload_size, chain)
    for part in parts:
        chain = crc32c(part, chain)
    return chain
