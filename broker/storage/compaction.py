"""Compaction: of all records with one key only the newest stays.

A pass builds a map of the newest offset per key over the segments that were not compacted yet, then
rewrites all closed segments against it, group by group, each swapped in by one journal entry.

What transactions ask of it:

- Nothing at or above the last stable offset is touched.
- Aborted records go at once. All aborted transactions of the log are known here whatever segment holds
  their markers, so the state is never lost between groups (KAFKA-8351, KAFKA-13727).
- A marker goes when none of its transaction's records was met in the pass, and then only after the
  delete horizon (KIP-534), so that a slow reader still finds it. Its entry in the list of aborted
  transactions goes with it: an entry without a marker would hide the producer's later records.
- The last batch of every producer stays, maybe empty, so that a replay finds its sequence again.
"""

import logging
from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import AbortedTxn, LastRecord
from dualwrite.broker.storage.disk import is_out_of_space
from dualwrite.broker.storage.entry import Swap
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.segment import DamagedSegment, Segment
from dualwrite.broker.storage.settings import LogSettings
from dualwrite.wire.records import (
    BatchError,
    BatchHeader,
    EndMarker,
    Record,
    rebuild_batch,
    records_of,
)

if TYPE_CHECKING:
    from dualwrite.broker.storage.storage import Storage

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 4 << 20
_WRITE_BYTES: Final = 256 << 10
_SHORT_KEY: Final = 24
_PAUSE_MS: Final = 60_000


class Cleaner:
    """Compacts one log after the other, a step at a time."""

    def __init__(self, storage: "Storage", files: FileCache, interval: int, keys_max: int) -> None:
        self._storage = storage
        self._files = files
        self._interval = interval
        self._keys_max = keys_max
        self._log: Log | None = None
        self._work: Iterator[int] | None = None
        self._not_before_ms = 0

    def step(self, now: Now) -> bool:
        """Do about `STEP_BYTES` of work; False when no log needs any."""
        if self._log is not None and self._log.is_deleted:
            self._work = self._log = None
        if self._work is None:
            if now.steady_ms < self._not_before_ms:
                return False
            self._log = dirtiest(self._storage.logs.values(), now)
            if self._log is None or not self._storage.write_behind(self._log):
                return False
            self._work = self._pass(self._log, now)
        done = 0
        try:
            for size in self._work:
                done += size
                if done >= STEP_BYTES:
                    return True
        except DamagedSegment as error:
            assert self._log is not None
            self._log.take_offline(str(error))
        except OSError as error:
            if not is_out_of_space(error):
                raise
            logger.warning("no room to compact: %s", error)
            self._not_before_ms = now.steady_ms + _PAUSE_MS
        self._work = self._log = None
        return True

    def _pass(self, log: Log, now: Now) -> Iterator[int]:
        segments = cleanable(log, now)
        dirty = [segment for segment in segments if segment.base_offset >= log.cleaned_to]
        survey = _Survey(log.producers.aborted)
        end = segments[-1].end_offset
        for segment in dirty:
            for header, batch in segment.batches(self._files):
                survey.take(header, batch)
                yield header.length
            if len(survey.newest) >= self._keys_max:
                end = segment.end_offset
                break
        work = [segment for segment in segments if segment.end_offset <= end]
        sieve = _Sieve(survey, log.producers.last_records(), log.end, now, log.settings)
        before = log.size
        for group in groups(work, log.settings.segment_bytes):
            is_swapped = yield from self._rewrite(log, group, sieve, now)
            if not is_swapped:
                return
        logger.info("compacted %s bytes=%d to=%d", log.directory, before, log.size)

    def _rewrite(
        self, log: Log, group: list[Segment], sieve: "_Sieve", now: Now
    ) -> Generator[int, None, bool]:
        """Put one segment in the place of a group; False if somebody else was there before."""
        target = Segment(
            log.directory,
            group[0].base_offset,
            self._interval,
            generation=max(segment.generation for segment in group) + 1,
            created_ms=group[-1].created_ms,
        )
        try:
            yield from self._fill(target, group, sieve)
            target.end_offset = group[-1].end_offset
            if not self._is_current(log, group):
                self._discard(target)
                return False
            target.finish(self._files)
            span = log.producers.aborted.within(target.base_offset, target.end_offset)
            target.seal(self._files, [a for a in span if a.last_offset not in sieve.gone])
            gone = tuple(a.last_offset for a in span if a.last_offset in sieve.gone)
            self._files.sync_names()
        except OSError as error:
            if is_out_of_space(error):
                self._discard(target)
            raise
        removed = tuple((segment.base_offset, segment.generation) for segment in group)
        self._storage.add([Swap(log.key, target.end_offset, removed, (target.info(),), gone)], now)
        return True

    def _fill(self, target: Segment, group: list[Segment], sieve: "_Sieve") -> Iterator[int]:
        unsynced = 0
        for segment in group:
            for header, batch in segment.batches(self._files):
                kept = sieve.keep(header, batch)
                if kept is not None:
                    largest = BatchHeader.parse(kept).max_timestamp
                    target.append(kept, header.base_offset, header.last_offset + 1, largest)
                if target.tail_size >= _WRITE_BYTES:
                    unsynced += target.write_behind(self._files, header.last_offset + 1)
                if unsynced >= _SYNC_BYTES:
                    # Little by little: one sync of a whole segment would stop everything else.
                    self._files.sync(target.path)
                    unsynced = 0
                yield header.length

    def _is_current(self, log: Log, group: list[Segment]) -> bool:
        """Whether retention or deletion has left the group alone meanwhile."""
        return not log.is_deleted and all(segment in log.segments for segment in group)

    def _discard(self, target: Segment) -> None:
        for path in (target.path, target.index_path, target.aborted_path):
            self._files.unlink(path)


def cleanable(log: Log, now: Now) -> list[Segment]:
    """The closed segments that a pass may touch, from the first on."""
    limit = log.last_stable
    lag = log.settings.min_compaction_lag_ms
    found = []
    for segment in log.segments[:-1]:
        if segment.end_offset > limit:
            break
        if lag > 0 and segment.max_timestamp > now.wall_ms - lag:
            break
        found.append(segment)
    return found


def dirtiest(logs: Iterable[Log], now: Now) -> Log | None:
    """The log with the largest part that was not compacted yet, if any is worth a pass.

    One that waits for longer than it may counts as all dirty (KIP-354).
    """
    best: Log | None = None
    best_ratio = 0.0
    for log in logs:
        settings = log.settings
        if not settings.compact or log.offline is not None or len(log.segments) < 2:
            continue
        segments = cleanable(log, now)
        dirty = [segment for segment in segments if segment.base_offset >= log.cleaned_to]
        dirty_bytes = sum(segment.size for segment in dirty)
        if not dirty_bytes:
            continue
        ratio = dirty_bytes / sum(segment.size for segment in segments)
        if now.wall_ms - dirty[0].created_ms > settings.max_compaction_lag_ms:
            ratio = 1.0
        if ratio >= settings.min_cleanable_dirty_ratio and ratio > best_ratio:
            best, best_ratio = log, ratio
    return best


def groups(segments: list[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size > segment_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class _Survey:
    """The newest offset of every key, aborted records left out."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self.newest: dict[bytes, int] = {}
        self._aborted: dict[int, list[AbortedTxn]] = {}
        for txn in aborted:
            self._aborted.setdefault(txn.producer_id, []).append(txn)

    def is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            txn.first_offset <= header.base_offset <= txn.last_offset
            for txn in self._aborted.get(header.producer_id, ())
        )

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        if header.is_control or self.is_aborted(header):
            return
        for record in _records(batch) or ():
            if record.key is not None:
                self.newest[_short(record.key)] = header.base_offset + record.offset_delta


class _Sieve:
    """Decides batch by batch, in the order of the log, what stays."""

    def __init__(
        self,
        survey: _Survey,
        last_records: dict[int, LastRecord],
        log_end: int,
        now: Now,
        settings: LogSettings,
    ) -> None:
        self._survey = survey
        self._last_records = last_records
        self._log_end = log_end
        self._now_ms = now.wall_ms
        self._horizon_ms = now.wall_ms + settings.delete_retention_ms
        # Producers of whose running transaction this pass has met a record.
        self._met: set[int] = set()
        # Offsets of markers that were removed.
        self.gone: set[int] = set()

    def keep(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        """The batch as it stays in the log; None if it goes."""
        if header.is_control:
            return self._keep_marker(header, batch)
        if header.is_transactional:
            self._met.add(header.producer_id)
        if self._survey.is_aborted(header):
            return self._maybe_empty(header)
        all_records = _records(batch)
        if all_records is None:
            return batch
        kept = [record for record in all_records if self._stays(header, record)]
        if not kept:
            return batch if not all_records and self._is_last(header) else self._maybe_empty(header)
        horizon = None
        if not header.has_delete_horizon and any(record.value is None for record in kept):
            horizon = self._horizon_ms
        if len(kept) == len(all_records) and horizon is None:
            return batch
        return rebuild_batch(header, kept, horizon)

    def _stays(self, header: BatchHeader, record: Record) -> bool:
        if record.key is None:
            return False
        offset = header.base_offset + record.offset_delta
        if self._survey.newest.get(_short(record.key), -1) > offset:
            return False
        return record.value is not None or not self._is_past(header)

    def _keep_marker(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        if EndMarker.parse(batch) is None:  # emptied by an earlier pass
            return batch if self._is_last(header) else None
        if header.producer_id in self._met:
            self._met.discard(header.producer_id)
            return batch
        if not header.has_delete_horizon:
            return rebuild_batch(header, records_of(batch), self._horizon_ms)
        if not self._is_past(header):
            return batch
        self.gone.add(header.base_offset)
        return self._maybe_empty(header)

    def _is_past(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self._now_ms

    def _maybe_empty(self, header: BatchHeader) -> bytes | None:
        return rebuild_batch(header, []) if self._is_last(header) else None

    def _is_last(self, header: BatchHeader) -> bool:
        """Whether the batch is the last of the log or of its producer."""
        if header.last_offset + 1 == self._log_end:
            return True
        last = self._last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_offset is not None:
            return last.last_offset == header.last_offset
        return header.is_control and last.epoch == header.producer_epoch


def _records(batch: memoryview) -> list[Record] | None:
    try:
        return records_of(batch)
    except BatchError as error:
        # Producers may send anything with a right checksum. It is theirs; it stays as it is.
        logger.warning("a batch cannot be taken apart and stays: %s", error)
        return None


def _short(key: bytes) -> bytes:
    return key if len(key) <= _SHORT_KEY else blake2b(key, digest_size=_SHORT_KEY + 1).digest()
