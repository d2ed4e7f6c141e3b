"""Opening a data directory: the checkpoint, then the journal from there on."""

import logging
from collections.abc import Callable

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import (
    decode_snapshot,
)
from dualwrite.broker.storage import checkpoint as checkpoints
from dualwrite.broker.storage.checkpoint import Checkpoint, LogState
from dualwrite.broker.storage.disk import Disk
from dualwrite.broker.storage.entry import PartitionKey, decode_entry
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.index import SegmentIndex
from dualwrite.broker.storage.journal import Journal
from dualwrite.broker.storage.journal_format import JOURNAL_DIR, Tip
from dualwrite.broker.storage.journal_reader import JournalReader
from dualwrite.broker.storage.log import LOGS_DIR, Log
from dualwrite.broker.storage.segment import Segment
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.broker.storage.storage import Storage

logger = logging.getLogger(__name__)


def recover(disk: Disk, settings: StorageSettings, replay_meta: Callable[[bytes], None]) -> Storage:
    """Bring a data directory back to the last durable entry, or set up a new one."""
    checkpoint = checkpoints.load(disk) or _set_up(disk)
    files = FileCache(disk, settings.open_files)
    logs: dict[PartitionKey, Log] = {}
    for data in checkpoint.logs:
        log = _restore(LogState.decode(data), disk, files, settings)
        logs[log.key] = log
    if checkpoint.meta:
        replay_meta(checkpoint.meta)
    reader = JournalReader(disk, checkpoint.secret, checkpoint.tip)
    journal = Journal(disk, settings, checkpoint.secret, reader.tip, [], 0)
    storage = Storage(disk, settings, files, checkpoint.secret, logs, journal, checkpoint.now)

    def apply(position: int, payload: memoryview) -> None:
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
        ),
        reader.steady_ms,
    )
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


def _restore(state: LogState, disk: Disk, files: FileCache, settings: StorageSettings) -> Log:
    log = Log(state.key, files, settings.log, settings.index_interval_bytes)
    log.log_start = state.log_start
    log.end = log.high_watermark = state.end
    log.cleaned_to = state.cleaned_to
    log.producers = decode_snapshot(state.producers)
    index = SegmentIndex.decode(state.index)
    interval = settings.index_interval_bytes
    log.segments = [
        Segment.restore(log.directory, info, None, interval) for info in state.segments[:-1]
    ]
    log.segments.append(Segment.restore(log.directory, state.segments[-1], index, interval))
    for segment in log.segments:
        _cut(segment, log, disk)
    return log


def _cut(segment: Segment, log: Log, disk: Disk) -> None:
    """Drop what was written after the checkpoint: the journal holds it."""
    if not segment.size and not disk.exists(segment.path):
        return
    try:
        file = disk.open(segment.path)
    except FileNotFoundError:
        log.take_offline(f"{segment.path} is missing")
        return
    size = file.size()
    if size > segment.size:
        file.truncate(segment.size)
    elif size < segment.size:
        log.take_offline(f"{segment.path} is damaged at byte {size}: the file ends here")
    file.close()
