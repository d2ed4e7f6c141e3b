"""Bytes on disk: one journal, segments per partition, checkpoints and recovery."""

from dualwrite.broker.storage.disk import Disk, RealDisk
from dualwrite.broker.storage.entry import (
    Append,
    CreateLog,
    DeleteLog,
    Entry,
    LogStart,
    Meta,
    PartitionKey,
)
from dualwrite.broker.storage.errors import (
    CorruptCheckpoint,
    CorruptJournal,
    DataDirInUse,
    DiskFull,
    LogOffline,
    OffsetOutOfRange,
    StorageError,
    StorageFailed,
    UnknownLog,
)
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.memory_disk import MemoryDisk
from dualwrite.broker.storage.settings import LogSettings, StorageSettings
from dualwrite.broker.storage.storage import Storage

__all__ = [
    "Append",
    "CorruptCheckpoint",
    "CorruptJournal",
    "CreateLog",
    "DataDirInUse",
    "DeleteLog",
    "Disk",
    "DiskFull",
    "Entry",
    "Log",
    "LogOffline",
    "LogSettings",
    "LogStart",
    "MemoryDisk",
    "Meta",
    "OffsetOutOfRange",
    "PartitionKey",
    "RealDisk",
    "Storage",
    "StorageError",
    "StorageFailed",
    "StorageSettings",
    "UnknownLog",
]
