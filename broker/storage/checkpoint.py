"""The checkpoint: what all logs looked like at one place of the journal.

    magic 8 bytes, crc u32, size u64, then the body:
    secret 16 bytes, place in the journal, the two clocks, count of logs, running time of the last jump
    of the wall clock i64 (-1: none; not there with the former magic),
    { size u32, log }*, the caller's snapshot

Recovery cuts every segment to the length that is recorded here and replays the journal from that place
on. The file is written beside the old one and renamed over it, so there is always a whole one.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.disk import Disk, sync, sync_names
from dualwrite.broker.storage.entry import (
    SEGMENT_INFO_SIZE,
    PartitionKey,
    SegmentInfo,
    decode_segment_info,
    encode_segment_info,
)
from dualwrite.broker.storage.errors import CorruptCheckpoint
from dualwrite.broker.storage.journal_format import Tip

CHECKPOINT: Final = "checkpoint"
_NEW: Final = "checkpoint.new"
_MAGIC: Final = b"dwcheck3"
_FORMER_MAGIC: Final = b"dwcheck2"
_FRONT = struct.Struct(">8sIQ")
_BODY = struct.Struct(">16s16sQQQQIqqI")
_LOG = struct.Struct(">16siqqqIIII")
_SIZE = struct.Struct(">I")
_JUMP = struct.Struct(">q")
_NO_JUMP: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One log as the checkpoint holds it."""

    key: PartitionKey
    log_start: int
    end: int
    cleaned_to: int
    segments: tuple[SegmentInfo, ...]
    # Of the active segment; the others' are in files.
    index: bytes
    # Producers, and the aborted transactions of the active segment.
    producers: bytes
    # Aborted transactions of the closed segments, which are in files.
    aborted_count: int

    def encode(self) -> bytes:
        head = _LOG.pack(
            *self.key,
            self.log_start,
            self.end,
            self.cleaned_to,
            len(self.segments),
            len(self.index),
            len(self.producers),
            self.aborted_count,
        )
        infos = map(encode_segment_info, self.segments)
        return b"".join((head, *infos, self.index, self.producers))

    @classmethod
    def decode(cls, data: bytes) -> "LogState":
        topic, partition, start, end, cleaned, count, index, producers, aborted = _LOG.unpack_from(
            data
        )
        infos = _LOG.size + count * SEGMENT_INFO_SIZE
        return cls(
            key=(topic, partition),
            log_start=start,
            end=end,
            cleaned_to=cleaned,
            segments=tuple(
                decode_segment_info(data, position)
                for position in range(_LOG.size, infos, SEGMENT_INFO_SIZE)
            ),
            index=data[infos : infos + index],
            producers=data[infos + index : infos + index + producers],
            aborted_count=aborted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that recovery begins with. `logs` are encoded `LogState`s."""

    secret: bytes
    tip: Tip
    now: Now
    # When the wall clock last jumped, in running time, as long as it is not believed again.
    distrusted_at: int | None = None
    logs: tuple[bytes, ...]
    meta: bytes

    def encode(self) -> bytes:
        tip = self.tip
        parts = [
            _BODY.pack(
                self.secret,
                tip.slot.encode(),
                tip.epoch,
                tip.offset,
                tip.number,
                tip.position,
                tip.chain,
                *self.now,
                len(self.logs),
            ),
            _JUMP.pack(_NO_JUMP if self.distrusted_at is None else self.distrusted_at),
        ]
        for log in self.logs:
            parts += (_SIZE.pack(len(log)), log)
        parts.append(self.meta)
        body = b"".join(parts)
        return _FRONT.pack(_MAGIC, crc32c(body), len(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        """Read a checkpoint; raises `CorruptCheckpoint`."""
        try:
            magic, checksum, size = _FRONT.unpack_from(data)
        except struct.error as error:
            raise CorruptCheckpoint(f"{CHECKPOINT} is cut at byte {len(data)}") from error
        if magic not in (_MAGIC, _FORMER_MAGIC):
            raise CorruptCheckpoint(f"{CHECKPOINT} is damaged, or another version wrote it")
        body = data[_FRONT.size :]
        if size != len(body) or crc32c(body) != checksum:
            raise CorruptCheckpoint(f"{CHECKPOINT} is damaged: its checksum does not fit")
        secret, slot, epoch, offset, number, position, chain, wall, steady, count = (
            _BODY.unpack_from(body)
        )
        at = _BODY.size
        distrusted_at = _NO_JUMP
        if magic == _MAGIC:
            (distrusted_at,) = _JUMP.unpack_from(body, at)
            at += _JUMP.size
        logs = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(body, at)
            at += _SIZE.size
            logs.append(body[at : at + size])
            at += size
        return cls(
            secret=secret,
            tip=Tip(slot.rstrip(b"\0").decode(), epoch, offset, number, position, chain),
            now=Now(wall, steady),
            distrusted_at=None if distrusted_at == _NO_JUMP else distrusted_at,
            logs=tuple(logs),
            meta=body[at:],
        )


def store(disk: Disk, checkpoint: Checkpoint) -> None:
    """Put the checkpoint in the place of the last one, durably."""
    file = disk.create(_NEW)
    try:
        file.pwrite(checkpoint.encode(), 0)
        sync(file, _NEW)
    finally:
        file.close()
    disk.rename(_NEW, CHECKPOINT)
    sync_names(disk, "")


def load(disk: Disk) -> Checkpoint | None:
    """The checkpoint, or None in a new data directory."""
    if not disk.exists(CHECKPOINT):
        return None
    file = disk.open(CHECKPOINT)
    try:
        return Checkpoint.decode(file.pread(file.size(), 0))
    finally:
        file.close()
