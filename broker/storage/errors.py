"""What can go wrong with the disk, named by what the caller must do next."""


class StorageError(Exception):
    """Whatever the storage raises on its own account."""


class StorageFailed(StorageError):
    """The disk cannot be trusted any more: acknowledge nothing and leave the process."""


class DiskFull(StorageError):
    """Neither the disk nor the reserve has room; nothing was lost, the same call may be made later."""


class DataDirInUse(StorageError):
    """Another process holds the data directory."""


class CorruptCheckpoint(StorageError):
    """The checkpoint cannot be read, so what the segments hold is not known."""


class CorruptJournal(StorageError):
    """Durable groups of the journal are damaged or cut off, as a crash would never do it."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(
            f"journal file {file} is damaged at byte {offset}, which no crash explains; "
            "restore the file from a copy, or give up what lies behind the damage with: "
            "python -m dualwrite.broker.storage.repair DATA_DIR --cut-journal"
        )
        self.file = file
        self.offset = offset


class LogOffline(StorageError):
    """This log holds damaged bytes; the other logs are served."""


class UnknownLog(StorageError):
    """An item names a log that does not exist."""


class OffsetOutOfRange(StorageError):
    """The offset lies outside of what the log holds."""
