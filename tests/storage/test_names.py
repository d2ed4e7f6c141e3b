"""Names of files that a killed process left behind; found by the simulator."""

from random import Random

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.entry import Append, CreateLog
from dualwrite.broker.storage.memory_disk import Fault, MemoryDisk, PowerLoss
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.broker.storage.storage import Storage
from dualwrite.wire.records import build_batch

KEY = (bytes(range(16)), 0)
SETTINGS = StorageSettings(journal_file_bytes=65_536, reserve_bytes=0)


def opened(disk):
    return Storage.open(disk.attach(), SETTINGS, lambda payload: None)


def test_file_of_a_killed_process_has_a_durable_name_after_the_next_checkpoint():
    """Killed between creating a segment and writing it; then a checkpoint, then a power loss."""
    disk = MemoryDisk()
    storage = opened(disk)
    batch = build_batch([(b"k", b"v", None, 1)])
    storage.add([CreateLog(KEY), Append(KEY, batch)], Now(1, 1))
    storage.flush()
    disk.fault = lambda number, operation, path: (
        Fault.STOP_BEFORE if operation == "write" and path.endswith(".log") else None
    )
    try:
        storage.checkpoint(b"")
    except PowerLoss:
        disk.kill()
    storage = opened(disk)
    storage.checkpoint(b"")
    disk.crash(Random(1))

    log = opened(disk).logs[KEY]

    assert log.offline is None
    assert b"".join(log.read(0, 1 << 20))[61:] == batch[61:]
