"""Sizes and limits of the storage, and what a topic may set for its logs."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class LogSettings:
    """What a topic's configuration says about its logs; shared by all partitions of the topic.

    The owner may change the fields at any time. -1 means unlimited.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    compact: bool = False
    delete: bool = True
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1_048_588


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Sizes of the storage itself. The defaults suit a server; tests make them small."""

    # Recycled files of this size make up the journal.
    journal_file_bytes: int = 64 << 20
    # One group, hence one fdatasync, takes at most this much (one larger entry goes alone).
    group_bytes: int = 4 << 20
    # A new journal file is zeroed this far ahead of the small groups written into it.
    journal_ahead_bytes: int = 256 << 10
    # Held back for ending transactions on a full disk: once in the journal, once for segments.
    reserve_bytes: int = 8 << 20
    # After this much journal a checkpoint is due: it bounds what a start after a crash replays.
    checkpoint_bytes: int = 128 << 20
    # The same after this much running time, if anything was written.
    checkpoint_ms: int = 30_000
    # A log's durable bytes stay in memory up to here, all logs' up to the second, before they
    # are written to segments: fewer and larger writes, and tail reads without the disk.
    tail_bytes: int = 256 << 10
    tail_total_bytes: int = 16 << 20
    index_interval_bytes: int = 16 << 10
    # A pass of the cleaner remembers about this many keys.
    cleaner_keys: int = 2_000_000
    open_files: int = 512
    log: LogSettings = field(default_factory=LogSettings)
