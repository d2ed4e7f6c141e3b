"""Opening a data directory: the checkpoint, then the journal from there on."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import ProducerStates, decode_snapshot
from dualwrite.broker.producers.aborted import AbortedTxns
from dualwrite.broker.storage import checkpoint as checkpoints
from dualwrite.broker.storage.checkpoint import Checkpoint, LogState
from dualwrite.broker.storage.disk import Disk, sync_names
from dualwrite.broker.storage.entry import PartitionKey, decode_entry
from dualwrite.broker.storage.errors import StorageFailed
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.journal import Journal
from dualwrite.broker.storage.journal_format import JOURNAL_DIR, Tip
from dualwrite.broker.storage.journal_reader import JournalReader
from dualwrite.broker.storage.log import LOGS_DIR, Log, directory_of
from dualwrite.broker.storage.retention import ClockGuard
from dualwrite.broker.storage.segment import DamagedSegment, Segment
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.broker.storage.storage import Storage
from dualwrite.wire.records import EndMarker

logger = logging.getLogger(__name__)

_NEVER: Final = Now(0, 0)


def recover(disk: Disk, settings: StorageSettings, replay_meta: Callable[[bytes], None]) -> Storage:
    """Bring a data directory back to the last durable entry, or set up a new one.

    Raises `CorruptJournal` or `CorruptCheckpoint` if that is not possible without losing what was
    acknowledged, and `StorageFailed` if the disk fails.
    """
    try:
        return _recover(disk, settings, replay_meta)
    except OSError as error:
        raise StorageFailed(f"recovery failed: {error}") from error


def _recover(
    disk: Disk, settings: StorageSettings, replay_meta: Callable[[bytes], None]
) -> Storage:
    checkpoint = checkpoints.load(disk) or _set_up(disk)
    # A killed process may have left names that are not durable. Nothing may be built upon them.
    for directory in ("", JOURNAL_DIR, LOGS_DIR):
        sync_names(disk, directory)
    files = FileCache(disk, settings.open_files)
    # A process that was killed may have left directories whose names were never synced.
    files.new_names[LOGS_DIR] = None
    logs: dict[PartitionKey, Log] = {}
    damaged: dict[Segment, str] = {}
    for data in checkpoint.logs:
        log = _restore(LogState.decode(data), files, settings)
        logs[log.key] = log
        for segment in log.segments:
            reason = _cut(segment, disk)
            if reason is not None:
                damaged[segment] = reason
    if checkpoint.meta:
        replay_meta(checkpoint.meta)
    reader = JournalReader(disk, checkpoint.secret, checkpoint.tip)
    journal = Journal(disk, settings, checkpoint.secret, reader.tip, [], 0)
    clock = ClockGuard(checkpoint.now, checkpoint.distrusted_at)
    storage = Storage(
        disk, settings, files, checkpoint.secret, logs, journal, checkpoint.now, clock
    )

    replayed = 0

    def apply(position: int, payload: memoryview) -> None:
        nonlocal replayed
        replayed += len(payload)
        now, items = decode_entry(payload)
        for meta in storage.replay(position, now, items):
            replay_meta(meta)

    reader.replay(apply)
    storage.use_journal(
        Journal(
            disk,
            settings,
            checkpoint.secret,
            reader.tip,
            reader.slots_for_writer(),
            reader.last_epoch,
            reader.current_slot,
        ),
        reader.steady_ms,
        replayed,
    )
    for log in logs.values():
        for segment in log.segments:
            # Unless it was replaced since the checkpoint.
            if segment in damaged:
                log.take_offline(damaged[segment])
    named = {path for data in checkpoint.logs for path in _paths(LogState.decode(data))}
    _remove_leftovers(disk, named, storage)
    storage.hold_reserve()
    return storage


def _set_up(disk: Disk) -> Checkpoint:
    for directory in (JOURNAL_DIR, LOGS_DIR):
        if not disk.exists(directory):
            disk.mkdir(directory)
    checkpoint = Checkpoint(
        secret=disk.random_bytes(16),
        tip=Tip("", 0, 0, 0, 0, 0),
        now=Now(0, 0),
        logs=(),
        meta=b"",
    )
    checkpoints.store(disk, checkpoint)
    return checkpoint


def _restore(state: LogState, files: FileCache, settings: StorageSettings) -> Log:
    log = Log(state.key, files, settings.log, settings.index_interval_bytes)
    log.log_start = state.log_start
    log.end = log.high_watermark = state.end
    log.cleaned_to = state.cleaned_to
    log.producers = decode_snapshot(state.producers)
    interval = settings.index_interval_bytes
    log.segments = [
        Segment.restore(log.directory, info, None, interval) for info in state.segments[:-1]
    ]
    log.segments.append(Segment.restore(log.directory, state.segments[-1], state.index, interval))
    if state.aborted_count:
        _restore_aborted(log, files, state.aborted_count)
    return log


def _restore_aborted(log: Log, files: FileCache, count: int) -> None:
    """Load the transaction indexes of the closed segments, or make them anew."""
    closed = log.segments[:-1]
    try:
        aborted = [
            txn
            for segment in closed
            for txn in segment.load_aborted(files)
            if txn.last_offset >= log.log_start
        ]
    except ValueError as error:
        logger.warning("%s: reading the whole log instead", error)
        aborted = []
    if len(aborted) != count:
        try:
            aborted = list(scan_aborted(closed, files))
        except DamagedSegment as error:
            log.take_offline(str(error))
            return
    log.producers.aborted.put_before(aborted)
    log.producers.aborted.drop_before(log.log_start)


def scan_aborted(segments: Iterable[Segment], files: FileCache) -> AbortedTxns:
    """The aborted transactions of some segments from the first on, found by their markers."""
    states = ProducerStates()
    for segment in segments:
        for header, batch in segment.batches(files):
            if not header.is_control:
                states.apply(header, header.base_offset, header.last_offset, _NEVER)
            elif (marker := EndMarker.parse(batch)) is not None:
                states.apply_marker(marker, header.base_offset, _NEVER)
    return states.aborted


def _cut(segment: Segment, disk: Disk) -> str | None:
    """Drop what was written after the checkpoint, the journal holds it; says what is missing."""
    if not segment.size and not disk.exists(segment.path):
        return None
    try:
        file = disk.open(segment.path)
    except FileNotFoundError:
        return f"{segment.path} is missing"
    try:
        size = file.size()
        if size > segment.size:
            file.truncate(segment.size)
        elif size < segment.size:
            return f"{segment.path} is damaged at byte {size}: the file ends here"
    finally:
        file.close()
    return None


def _paths(state: LogState) -> Iterator[str]:
    directory = directory_of(state.key)
    for info in state.segments:
        yield f"{directory}/{info.base_offset:020d}.{info.generation}"


def _remove_leftovers(disk: Disk, named: set[str], storage: Storage) -> None:
    """Remove files that neither the checkpoint nor the logs know.

    What only the checkpoint names must stay: a second crash would begin with it again.
    """
    for log in storage.logs.values():
        named.update(segment.stem for segment in log.segments)
    directories = {stem.rpartition("/")[0] for stem in named}
    for directory in (f"{LOGS_DIR}/{name}" for name in disk.listdir(LOGS_DIR)):
        for name in disk.listdir(directory):
            if f"{directory}/{name.rpartition('.')[0]}" not in named:
                disk.unlink(f"{directory}/{name}")
        if directory not in directories:
            disk.rmdir(directory)
