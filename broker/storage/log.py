"""One partition's log: segments, the producers' states, and how far readers may go."""

import logging
from collections.abc import Iterator

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import AbortedTxn, ProducerStates
from dualwrite.broker.storage.disk import Buffer
from dualwrite.broker.storage.entry import PartitionKey, Swap
from dualwrite.broker.storage.errors import LogOffline, OffsetOutOfRange
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.segment import DamagedSegment, Segment
from dualwrite.broker.storage.settings import LogSettings
from dualwrite.wire.batch_header import CONTROL, BatchHeader
from dualwrite.wire.records import BatchError, EndMarker, records, timestamp_of

logger = logging.getLogger(__name__)

LOGS_DIR = "logs"


def directory_of(key: PartitionKey) -> str:
    """Named by topic id: names of topics may differ in case only, or look like paths."""
    return f"{LOGS_DIR}/{key[0].hex()}-{key[1]}"


class Log:
    """What a partition holds. `Storage` is the only caller of its mutators."""

    def __init__(
        self, key: PartitionKey, files: FileCache, settings: LogSettings, interval: int
    ) -> None:
        self.key = key
        self.directory = directory_of(key)
        self.settings = settings
        self.log_start = 0
        self.end = 0
        self.high_watermark = 0
        self.cleaned_to = 0
        self.producers = ProducerStates()
        self.offline: str | None = None
        self.is_deleted = False
        self.segments: list[Segment] = [Segment(self.directory, 0, interval)]
        # The log in the last checkpoint, as long as nothing has changed since.
        self.checkpointed: bytes | None = None
        self._files = files
        self._interval = interval

    # Questions

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def last_stable(self) -> int:
        """How far a read_committed consumer may read; at most the high watermark."""
        return self.producers.last_stable(self.high_watermark)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def aborted(self, from_offset: int, upper: int) -> list[AbortedTxn]:
        """The aborted transactions that a reader of [from_offset, upper) must know."""
        return self.producers.aborted_between(from_offset, upper)

    def read(self, offset: int, max_bytes: int, upper: int | None = None) -> list[Buffer]:
        """Whole batches from the one that contains `offset`, all below `upper` (the high watermark).

        At least one batch if there is any, then as many as fit into `max_bytes`.
        """
        self.refuse_offline()
        if not self.log_start <= offset <= self.end:
            raise OffsetOutOfRange(f"{offset} is not in {self.log_start}..{self.end}")
        limit = self.high_watermark if upper is None else min(upper, self.end)
        out: list[Buffer] = []
        if offset >= limit:
            return out
        left = max_bytes
        try:
            for number in range(self._segment_of(offset), len(self.segments)):
                taken = self.segments[number].read(self._files, offset, left, limit, out)
                left -= taken
                if taken < 0 or left <= 0:
                    break
        except DamagedSegment as error:
            self.take_offline(str(error))
            raise LogOffline(str(error)) from error
        return out

    def offset_for_time(self, timestamp: int, upper: int | None = None) -> tuple[int, int] | None:
        """The first record below `upper` with at least this timestamp: its offset and timestamp."""
        self.refuse_offline()
        limit = self.high_watermark if upper is None else upper
        try:
            for segment in self.segments:
                if segment.max_timestamp < timestamp or segment.end_offset <= self.log_start:
                    continue
                for header, batch in segment.from_time(self._files, timestamp):
                    if header.base_offset >= limit:
                        return None
                    found = _record_at(header, batch, timestamp, self.log_start)
                    if found is not None:
                        return found
        except DamagedSegment as error:
            self.take_offline(str(error))
            raise LogOffline(str(error)) from error
        return None

    def max_timestamp(self, upper: int | None = None) -> tuple[int, int] | None:
        """The first record with the largest timestamp below `upper`: its offset and timestamp."""
        self.refuse_offline()
        limit = self.high_watermark if upper is None else upper
        best: tuple[int, int] | None = None
        try:
            for segment in self.segments:
                if segment.max_timestamp > (-1 if best is None else best[1]):
                    best = self._largest_in(segment, best, limit)
        except DamagedSegment as error:
            self.take_offline(str(error))
            raise LogOffline(str(error)) from error
        return best

    def _largest_in(
        self, segment: Segment, best: tuple[int, int] | None, limit: int
    ) -> tuple[int, int] | None:
        found = self.offset_for_time(segment.max_timestamp, limit)
        if found is not None and found[0] < segment.end_offset:
            return found
        # The largest lies outside of what may be read: look at every batch inside.
        for header, batch in segment.from_time(self._files, 0 if best is None else best[1] + 1):
            if header.base_offset >= limit:
                break
            found = _largest_record(header, batch, self.log_start)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        return best

    def refuse_offline(self) -> None:
        if self.offline is not None:
            raise LogOffline(self.offline)

    def take_offline(self, reason: str) -> None:
        """Serve nothing of this log any more; the others go on."""
        if self.offline is None:
            self.offline = reason
            logger.error("a log is not served any more: %s", reason)

    def _segment_of(self, offset: int) -> int:
        segments = self.segments
        number = len(segments) - 1
        while number and segments[number].base_offset > offset:
            number -= 1
        return number

    # Changes, the same live and on replay

    def append(self, batch: Buffer, header: BatchHeader, base_offset: int, now: Now) -> None:
        self.checkpointed = None
        last_offset = base_offset + header.last_offset_delta
        segment = self.segments[-1]
        if segment.created_ms < 0:
            segment.created_ms = now.wall_ms
        segment.append(batch, base_offset, last_offset + 1, header.max_timestamp)
        if header.attributes & CONTROL:
            marker = EndMarker.parse(batch, header)
            if marker is not None:
                self.producers.apply_marker(marker, base_offset, now)
        elif header.producer_id >= 0:
            self.producers.apply(header, base_offset, last_offset, now)
        self.end = last_offset + 1

    def wants_roll(self, size: int, now: Now) -> bool:
        """Whether the active segment is to be closed before a batch of `size` bytes."""
        segment = self.segments[-1]
        if not segment.size:
            return False
        settings = self.settings
        return (
            segment.size + size > settings.segment_bytes
            or now.wall_ms - segment.created_ms >= settings.segment_ms
        )

    def roll(self, base_offset: int) -> None:
        assert base_offset == self.end
        self.checkpointed = None
        self.segments.append(Segment(self.directory, base_offset, self._interval))

    def set_start(self, offset: int) -> list[Segment]:
        """Forget what lies below `offset`; gives the segments whose files are of no more use."""
        self.checkpointed = None
        self.log_start = max(self.log_start, offset)
        gone = 0
        while gone < len(self.segments) - 1 and self.segments[gone].end_offset <= self.log_start:
            gone += 1
        removed = self.segments[:gone]
        del self.segments[:gone]
        self.producers.aborted.drop_before(self.log_start)
        return removed

    def swap(self, swap: Swap) -> list[Segment]:
        """Put compacted segments in the place of others; gives those that were replaced."""
        self.checkpointed = None
        replaced = set(swap.removed)
        places = [
            number
            for number, segment in enumerate(self.segments)
            if (segment.base_offset, segment.generation) in replaced
        ]
        first, stop = places[0], places[-1] + 1
        removed = self.segments[first:stop]
        self.segments[first:stop] = [
            Segment.restore(self.directory, info, None, self._interval) for info in swap.added
        ]
        if swap.markers_gone:
            self.producers.aborted.remove(swap.markers_gone)
        self.cleaned_to = max(self.cleaned_to, swap.cleaned_to)
        return removed

    def write_behind(self) -> int:
        """Move what is durable from memory to the segments; says how many bytes."""
        return sum(
            segment.write_behind(self._files, self.high_watermark)
            for segment in self.segments
            if segment.tail_size
        )


def _times(header: BatchHeader, batch: Buffer) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of every record of a data batch."""
    if header.is_control:
        return
    try:
        for record in records(batch):
            yield header.base_offset + record.offset_delta, timestamp_of(header, record)
    except BatchError:
        # Producers may send anything with a right checksum; the header is all there is.
        yield header.base_offset, header.max_timestamp


def _record_at(
    header: BatchHeader, batch: Buffer, timestamp: int, log_start: int
) -> tuple[int, int] | None:
    for offset, time in _times(header, batch):
        if time >= timestamp and offset >= log_start:
            return offset, time
    return None


def _largest_record(header: BatchHeader, batch: Buffer, log_start: int) -> tuple[int, int] | None:
    inside = [(time, -offset) for offset, time in _times(header, batch) if offset >= log_start]
    if not inside:
        return None
    time, offset = max(inside)
    return -offset, time
