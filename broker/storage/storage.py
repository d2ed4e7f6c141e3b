"""`Storage`: entries in, durable logs out.

`add` applies an entry to the logs in memory and queues it for the journal. `flush` makes what is queued
durable, one write and one fdatasync per group, and only then moves the high watermarks. Durable batches
stay in memory until enough have come together for one write to their segment. A checkpoint syncs the
segments, after which the journal's files are used again.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import encode_snapshot
from dualwrite.broker.storage import checkpoint as checkpoints
from dualwrite.broker.storage.compaction import Cleaner
from dualwrite.broker.storage.disk import Buffer, Disk, is_out_of_space
from dualwrite.broker.storage.entry import (
    Append,
    CreateLog,
    DeleteLog,
    EncodedEntry,
    Encoder,
    Entry,
    Item,
    LogStart,
    Meta,
    PartitionKey,
    Roll,
    Swap,
)
from dualwrite.broker.storage.errors import DiskFull, OffsetOutOfRange, StorageFailed, UnknownLog
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.journal import Journal
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.retention import ClockGuard, is_active_old, new_start
from dualwrite.broker.storage.segment import Segment
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.wire.records import BatchHeader, patch_offset

logger = logging.getLogger(__name__)

RESERVE = "reserve"
# Larger ones are encoded again rather than held twice in memory.
_REMEMBERED_BYTES = 4096
Touched = list[tuple[Log, int]]


class Group:
    """Entries that become durable together."""

    __slots__ = ("entries", "size", "touched")

    def __init__(self) -> None:
        self.entries: list[EncodedEntry] = []
        self.touched: list[Touched] = []
        self.size = 0


class Storage:
    """All logs of one data directory. One thread uses it, but for `write_group`."""

    def __init__(
        self,
        disk: Disk,
        settings: StorageSettings,
        files: FileCache,
        secret: bytes,
        logs: dict[PartitionKey, Log],
        journal: Journal,
        now: Now,
        clock: ClockGuard,
    ) -> None:
        self.logs = logs
        self.position = journal.tip.position
        self.durable = journal.tip.position
        self.failure: StorageFailed | None = None
        self._disk = disk
        self._settings = settings
        self.files = files
        self._secret = secret
        self._journal = journal
        self._now = now
        self._pending: deque[tuple[EncodedEntry, Touched]] = deque()
        self._tails: dict[Log, None] = {}
        self._tail_bytes = 0
        self._retired: list[str] = []
        self._retired_directories: list[str] = []
        self._is_full = False
        self._checkpointed_bytes = journal.bytes_written
        self._checkpointed_ms = now.steady_ms
        self._checkpointed_position = self.position
        self._clock_guard = clock
        self._cleaner = Cleaner(self, files, settings.index_interval_bytes, settings.cleaner_keys)

    @classmethod
    def open(
        cls, disk: Disk, settings: StorageSettings, replay_meta: Callable[[bytes], None]
    ) -> "Storage":
        """Recover what the data directory holds.

        `replay_meta` gets the snapshot of the last checkpoint, unless there is none or it is empty,
        and then every later `Meta` payload.
        """
        from dualwrite.broker.storage.recovery import recover

        return recover(disk, settings, replay_meta)

    # State

    @property
    def is_full(self) -> bool:
        """Whether to refuse whatever a full disk has no room for, i.e. all but ending transactions."""
        return self._is_full or self._journal.is_full

    @property
    def steady_ms(self) -> int:
        """The running time that the last entry carried; a restart goes on from there."""
        return self._now.steady_ms

    @property
    def wall_ms(self) -> int:
        """The wall clock of the last entry."""
        return self._now.wall_ms

    @property
    def pending_bytes(self) -> int:
        return sum(entry.size for entry, _ in self._pending)

    # The hot path

    def add(self, entry: Entry, now: Now) -> int:
        """Apply an entry in memory and queue it for the journal; returns its position.

        Sets `base_offset` of every `Append`. Raises before anything has changed.
        """
        self._check(entry)
        encoder = Encoder(now)
        touched: Touched = []
        logs = self.logs
        for item in entry:
            if type(item) is not Append:
                self._apply(item)
                encoder.item(item)
                continue
            log = logs[item.key]
            batch = self._own(item.batch)
            base_offset = log.end
            if log.wants_roll(len(batch), now):
                encoder.item(Roll(item.key, base_offset))
                log.roll(base_offset)
            patch_offset(batch, base_offset, item.leader_epoch)
            item.base_offset = base_offset
            assert item.header is not None
            log.append(batch, item.header, base_offset, now)
            encoder.append(item.key, batch)
            self._tail_bytes += len(batch)
            touched.append((log, log.end))
        self._now = now
        self._pending.append((encoder.finish(), touched))
        self.position += 1
        return self.position

    def _own(self, batch: Buffer) -> bytearray | memoryview:
        """The batch in memory that nobody else writes to.

        A large one goes to its segment as soon as it is durable, so it may stay where it arrived;
        a small one may wait for others, and would keep what surrounds it waiting with it.
        """
        is_large = len(batch) >= self._settings.tail_bytes
        if is_large and isinstance(batch, memoryview) and not batch.readonly:
            return batch
        return bytearray(batch)

    def flush(self) -> int:
        """Make everything queued durable; returns `durable`.

        Raises `DiskFull` if there is no room; what is queued stays so. Raises `StorageFailed` if
        the disk failed; then the process must end.
        """
        while True:
            group = self.next_group()
            if group is None:
                return self.durable
            self.write_group(group)
            self.finish_group(group)

    def next_group(self) -> Group | None:
        """What to write next. It stays queued until `finish_group`."""
        if not self._pending:
            return None
        group = Group()
        limit = self._settings.group_bytes
        for entry, touched in self._pending:
            if group.entries and group.size + entry.size > limit:
                break
            group.entries.append(entry)
            group.touched.append(touched)
            group.size += entry.size
        return group

    def write_group(self, group: Group) -> None:
        """Write and sync; the one method that may run on another thread."""
        if self.failure is not None:
            raise self.failure
        try:
            self._journal.write(group.entries, self._now.steady_ms)
        except StorageFailed as error:
            self.failure = error
            raise

    def finish_group(self, group: Group) -> None:
        """Let readers see what `write_group` has made durable."""
        pending = self._pending
        tail_bytes = self._settings.tail_bytes
        for touched in group.touched:
            pending.popleft()
            for log, end in touched:
                log.high_watermark = end
                if log.is_deleted:
                    continue
                self._tails[log] = None
                if log.segments[-1].tail_size >= tail_bytes:
                    self.write_behind(log)
        self.durable += len(group.entries)
        if self._tail_bytes > self._settings.tail_total_bytes:
            for log in list(self._tails):
                self.write_behind(log)

    # Items

    def _check(self, entry: Entry) -> None:
        if self.failure is not None:
            raise self.failure
        created: set[PartitionKey] = set()
        logs = self.logs
        for item in entry:
            if type(item) is Append and (log := logs.get(item.key)) is not None:
                if item.header is None:
                    item.header = BatchHeader.parse(item.batch)
                if log.offline is not None:
                    log.refuse_offline()
                continue
            if isinstance(item, Meta):
                continue
            if isinstance(item, CreateLog):
                created.add(item.key)
                continue
            log = self.logs.get(item.key)
            if log is None and item.key not in created:
                raise UnknownLog(f"no log {item.key[0].hex()}-{item.key[1]}")
            if isinstance(item, Append):
                if item.header is None:  # of a log that this entry makes
                    item.header = BatchHeader.parse(item.batch)
            # T-7: what is in doubt must not be deleted before its outcome is known.
            elif (
                isinstance(item, LogStart)
                and log is not None
                and not log.log_start <= item.offset <= log.last_stable
            ):
                raise OffsetOutOfRange(
                    f"log start {item.offset} is not in {log.log_start}..{log.last_stable}"
                )

    def _apply(self, item: Item) -> None:
        match item:
            case CreateLog(key):
                if key not in self.logs:
                    self.logs[key] = self.new_log(key)
            case DeleteLog(key):
                self._delete(self.logs.pop(key))
            case LogStart(key, offset):
                self._retire(self.logs[key].set_start(offset))
            case Roll(key, base_offset):
                self.logs[key].roll(base_offset)
            case Swap(key):
                self._retire(self.logs[key].swap(item))

    def replay(self, position: int, now: Now, items: Iterator[Item]) -> Iterator[bytes]:
        """Apply an entry that the journal holds; yields the payloads of its `Meta` items."""
        tail_bytes = self._settings.tail_bytes
        for item in items:
            if type(item) is Append:
                log = self.logs[item.key]
                batch = item.batch
                header = BatchHeader.parse(batch)
                assert header.base_offset == log.end
                log.append(batch, header, log.end, now)
                log.high_watermark = log.end
                self._tails[log] = None
                self._tail_bytes += len(batch)
                if log.segments[-1].tail_size >= tail_bytes:
                    self.write_behind(log)
            elif isinstance(item, Meta):
                yield bytes(item.payload)
            else:
                self._apply(item)
        self._now = now
        self._clock_guard.see(now)
        self.position = self.durable = position

    def use_journal(self, journal: Journal, steady_ms: int, replayed: int) -> None:
        """Go on where the journal ended, `steady_ms` being the running time at its last group.

        The `replayed` bytes wait for a checkpoint as if this life had written them: else many short
        lives would leave more and more to replay.
        """
        self._journal = journal
        self._checkpointed_bytes = journal.bytes_written - replayed
        self._now = Now(self._now.wall_ms, max(self._now.steady_ms, steady_ms))

    def new_log(self, key: PartitionKey) -> Log:
        return Log(key, self.files, self._settings.log, self._settings.index_interval_bytes)

    def _delete(self, log: Log) -> None:
        log.is_deleted = True
        self._tails.pop(log, None)
        self._tail_bytes -= sum(segment.tail_size for segment in log.segments)
        self._retire(log.segments)
        self._retired_directories.append(log.directory)

    def _retire(self, segments: list[Segment]) -> None:
        """Remove the files when a checkpoint no longer names them."""
        for segment in segments:
            self._retired += (segment.path, segment.index_path, segment.aborted_path)

    # Segments

    def write_behind(self, log: Log) -> bool:
        """Move what is durable to the log's segments; False if the disk has no room for all of it."""
        try:
            self._tail_bytes -= log.write_behind()
        except OSError as error:
            if not is_out_of_space(error):
                raise self._fail(f"write to {log.directory} failed: {error}") from error
            # Without a reserve the batches stay in memory and in the journal.
            return self._use_reserve() and self.write_behind(log)
        if not any(segment.tail_size for segment in log.segments):
            self._tails.pop(log, None)
        return True

    def _fail(self, reason: str) -> StorageFailed:
        self.failure = StorageFailed(reason)
        return self.failure

    # Checkpoints

    def checkpoint_due(self, now: Now) -> bool:
        if self.position == self._checkpointed_position:
            return False
        written = self._journal.bytes_written - self._checkpointed_bytes
        limit = self._settings.checkpoint_bytes
        if self.is_full:
            # Frees journal files before the reserve is used up.
            limit = min(limit, self._settings.reserve_bytes // 4)
        return (
            written >= limit
            or now.steady_ms - self._checkpointed_ms >= self._settings.checkpoint_ms
        )

    def checkpoint(self, meta_snapshot: bytes) -> None:
        """Make recovery begin here. `meta_snapshot` holds what all `Meta` so far have said."""
        for _ in self.checkpoint_steps(lambda: meta_snapshot):
            pass

    def checkpoint_steps(self, meta_snapshot: Callable[[], bytes]) -> Iterator[None]:
        """`checkpoint` in short steps, between which entries may be added and flushed.

        What is recorded is the state at the moment when `meta_snapshot` is called.
        """
        for log in list(self._tails):
            self.write_behind(log)
            yield
        self.flush()
        for log in list(self._tails):
            self.write_behind(log)
        if self._tails:
            raise DiskFull("no room for the segments")
        tip = self._journal.tip
        self._clock_guard.see(self._now)
        captured = checkpoints.Checkpoint(
            secret=self._secret,
            tip=tip,
            now=self._now,
            distrusted_at=self._clock_guard.distrusted_at,
            logs=tuple(log.checkpointed or self._encode(log) for log in self.logs.values()),
            meta=meta_snapshot(),
        )
        retired, self._retired = self._retired, []
        directories, self._retired_directories = self._retired_directories, []
        sealing = [
            (segment, log.producers.aborted.within(segment.base_offset, segment.end_offset))
            for log in self.logs.values()
            for segment in log.segments[:-1]
            if not segment.is_sealed
        ]
        unsynced = [s for log in self.logs.values() for s in log.segments if not s.is_synced]
        self._checkpointed_bytes = self._journal.bytes_written
        self._checkpointed_ms = self._now.steady_ms
        self._checkpointed_position = self.durable
        try:
            for segment, aborted in sealing:
                segment.seal(self.files, aborted)
                yield
            for segment in unsynced:
                self._sync(segment)
                yield
            while self.files.new_names:
                self.files.sync_a_name()
                yield
            checkpoints.store(self._disk, captured)
        except OSError as error:
            self._retired += retired
            self._retired_directories += directories
            if not is_out_of_space(error):
                raise self._fail(f"checkpoint failed: {error}") from error
            self._use_reserve()
            raise DiskFull("no room for the checkpoint") from error
        except StorageFailed as error:
            self.failure = error
            raise
        self._journal.recycle(tip)
        self._remove(retired, directories)

    def _encode(self, log: Log) -> bytes:
        active = log.active
        state = checkpoints.LogState(
            key=log.key,
            log_start=log.log_start,
            end=log.end,
            cleaned_to=log.cleaned_to,
            segments=tuple(segment.info() for segment in log.segments),
            index=active.index(self.files).encode(active.stem),
            producers=encode_snapshot(log.producers, aborted_from=active.base_offset),
            aborted_count=len(log.producers.aborted.within(0, active.base_offset)),
        )
        encoded = state.encode()
        if len(encoded) <= _REMEMBERED_BYTES:
            log.checkpointed = encoded
        return encoded

    def _sync(self, segment: Segment) -> None:
        if segment.written:
            self.files.sync(segment.path)
        segment.is_synced = True

    def _remove(self, paths: list[str], directories: list[str]) -> None:
        try:
            for path in paths:
                self.files.unlink(path)
            for directory in directories:
                if self._disk.exists(directory):
                    for name in self._disk.listdir(directory):  # what the cleaner was about to make
                        self.files.unlink(f"{directory}/{name}")
                    self._disk.rmdir(directory)
        except OSError as error:
            raise self._fail(f"removing old files failed: {error}") from error

    # Retention

    def run_retention(self, now: Now) -> int:
        """Drop old segments; says how many. What it adds must be flushed."""
        by_age = self._clock_guard.trusts(now)
        dropped = 0
        for log in list(self.logs.values()):
            if by_age and is_active_old(log, now):
                self.add([Roll(log.key, log.end)], now)
            start = new_start(log, now, by_age=by_age)
            if start is None:
                continue
            before = len(log.segments)
            self.add([LogStart(log.key, start)], now)
            dropped += before - len(log.segments)
            logger.info("dropped segments of %s below offset %d", log.directory, start)
        return dropped

    def run_compaction(self, now: Now) -> bool:
        """One short step; False when there is nothing to do. What it adds must be flushed."""
        if self.failure is not None:
            raise self.failure
        if self.is_full:
            return False
        try:
            return self._cleaner.step(now)
        except OSError as error:
            raise self._fail(f"compaction failed: {error}") from error
        except StorageFailed as error:
            self.failure = error
            raise

    # Full disk

    def hold_reserve(self) -> None:
        """Set space aside for ending transactions on a full disk, in the journal and in segments."""
        try:
            self._journal.hold_reserve()
            if not self._has_reserve():
                self._disk.preallocate(RESERVE, self._settings.reserve_bytes)
        except OSError as error:
            if not is_out_of_space(error):
                raise self._fail(f"setting the reserve aside failed: {error}") from error
            self._is_full = True
        except StorageFailed as error:
            self.failure = error
            raise

    def _has_reserve(self) -> bool:
        """Whether the segments' reserve is there; a power loss may have left less than all of it."""
        size = self._settings.reserve_bytes
        if not size:
            return True
        return self._disk.exists(RESERVE) and self.files.size(RESERVE) >= size

    def recheck_space(self) -> bool:
        """Leave full-disk mode if there is room again; says whether the disk is full.

        To be called now and then while `is_full`.
        """
        if self.is_full and self._disk.free_bytes() >= 3 * self._settings.reserve_bytes:
            self._is_full = False
            self.hold_reserve()
            if not self._is_full:
                self._journal.is_full = False
                logger.info("the disk has room again")
        return self.is_full

    def _use_reserve(self) -> bool:
        """Give the segments' reserve back to the disk; False if that was done before."""
        self._is_full = True
        if not self._disk.exists(RESERVE):
            return False
        logger.warning("the disk is full: going on with the reserve")
        self._remove([RESERVE], [])
        return True

    def close(self) -> None:
        """Close the files. What is queued and not flushed is lost."""
        self.files.close()
        self._journal.close()
        self._disk.close()
