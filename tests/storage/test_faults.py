"""A disk that is full, and a disk that fails."""

from random import Random

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import (
    Append,
    CreateLog,
    DiskFull,
    LogSettings,
    MemoryDisk,
    Storage,
    StorageError,
    StorageFailed,
    StorageSettings,
)
from dualwrite.broker.storage.memory_disk import Fault
from dualwrite.wire.records import build_batch, control_batch
from tests.storage.test_crash import check_recovered, count_operations
from tests.storage.workload import Listener, Workload, committed_of, key_of, say, state_of

NOW = Now(1_700_000_000_000, 0)
FULL = StorageSettings(
    journal_file_bytes=32 << 10,
    group_bytes=4096,
    journal_ahead_bytes=1024,
    reserve_bytes=16 << 10,
    checkpoint_bytes=64 << 10,
    tail_bytes=2048,
    tail_total_bytes=8192,
    index_interval_bytes=512,
    log=LogSettings(segment_bytes=8192),
)
PRODUCERS = 40


def prepared(producer):
    return build_batch(
        [(b"k", b"prepared", None, NOW.wall_ms)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(producer, commit=True):
    return control_batch(
        commit=commit,
        producer_id=producer,
        producer_epoch=1,
        coordinator_epoch=0,
        timestamp_ms=NOW.wall_ms,
    )


def checkpoint_if_due(storage, now=NOW):
    if storage.checkpoint_due(now):
        try:
            storage.checkpoint(b"")
        except DiskFull:
            assert storage.is_full


def fill(storage, key):
    """Produce until the disk is full; every flush before that was acknowledged."""
    while not storage.is_full:
        storage.add([Append(key, build_batch([(b"k", bytes(900), None, NOW.wall_ms)]))], NOW)
        storage.flush()
        checkpoint_if_due(storage)


@pytest.mark.parametrize("capacity", range(200_000, 300_000, 9_999))
def test_every_prepared_transaction_ends_on_a_full_disk(capacity):
    disk = MemoryDisk(capacity)
    storage = Storage.open(disk, FULL, Listener())
    key = key_of(1)
    storage.add([CreateLog(key)], NOW)
    for producer in range(PRODUCERS):
        storage.add([Append(key, prepared(producer))], NOW)
    storage.flush()
    fill(storage, key)
    log = storage.logs[key]
    assert log.last_stable == 0

    for producer in range(PRODUCERS):
        storage.add([Append(key, marker(producer, commit=producer % 2 == 0))], NOW)
        storage.flush()
        checkpoint_if_due(storage)

    assert storage.durable == storage.position
    assert log.last_stable == log.high_watermark == log.end
    prepared_seen = [
        offset for offset, _, value in committed_of(log, 1 << 20) if value == b"prepared"
    ]
    assert prepared_seen == list(range(0, PRODUCERS, 2))
    before = state_of(storage, Listener())
    disk.crash()
    assert state_of(Storage.open(disk, FULL, Listener()), Listener()) == before


def test_full_disk_mode_ends_when_there_is_room():
    disk = MemoryDisk(250_000)
    storage = Storage.open(disk, FULL, Listener())
    key = key_of(1)
    storage.add([CreateLog(key)], NOW)
    fill(storage, key)
    assert storage.recheck_space()

    disk.capacity = 500_000

    assert not storage.recheck_space()
    end = storage.logs[key].end
    fill(storage, key)
    assert storage.logs[key].end > end + 50


def test_a_disk_that_is_full_at_the_start_still_serves():
    disk = MemoryDisk(250_000)
    storage = Storage.open(disk, FULL, Listener())
    storage.add([CreateLog(key_of(1))], NOW)
    fill(storage, key_of(1))
    before = state_of(storage, Listener())
    disk.crash()
    disk.capacity = disk.used

    storage = Storage.open(disk, FULL, Listener())

    assert storage.is_full
    assert state_of(storage, Listener()) == before
    storage.add([Append(key_of(1), marker(1))], NOW)
    storage.flush()


@pytest.mark.parametrize("is_kill", [True, False])
@pytest.mark.parametrize("capacity", range(200_000, 300_000, 19_999))
def test_any_number_of_starts_on_a_full_disk(capacity, is_kill):
    """A start goes on in the journal file in which the last life ended."""
    disk = MemoryDisk(capacity)
    storage = Storage.open(disk, FULL, Listener())
    key = key_of(1)
    storage.add([CreateLog(key)], NOW)
    for producer in range(PRODUCERS):
        storage.add([Append(key, prepared(producer))], NOW)
    storage.flush()
    fill(storage, key)
    for producer in range(PRODUCERS):
        before = state_of(storage, Listener())
        if is_kill:
            disk.kill()
        else:
            disk.crash(Random(producer))
        disk.capacity = disk.used

        storage = Storage.open(disk, FULL, Listener())

        assert storage.is_full
        assert state_of(storage, Listener()) == before
        storage.add([Append(key, marker(producer))], NOW)
        storage.flush()
        checkpoint_if_due(storage)
    log = storage.logs[key]
    assert log.last_stable == log.high_watermark == log.end


def test_a_group_that_was_written_again_elsewhere_counts_once():
    """The disk was full in the zeros behind a whole group: the next file holds the group, too."""
    disk = MemoryDisk()
    storage = Storage.open(disk, FULL, Listener())
    key = key_of(1)
    storage.add([CreateLog(key)], NOW)
    storage.flush()
    batch = build_batch([(b"k", bytes(900), None, NOW.wall_ms)])
    storage.add([Append(key, batch)], NOW)
    disk.capacity = disk.used + 500
    storage.flush()
    for producer in range(3):
        storage.add([Append(key, marker(producer))], NOW)
        storage.flush()
    assert storage.is_full
    before = state_of(storage, Listener())
    disk.kill()
    assert state_of(Storage.open(disk, FULL, Listener()), Listener()) == before


def test_a_reserve_that_a_power_loss_has_shortened_is_made_again():
    disk = MemoryDisk()
    Storage.open(disk, FULL, Listener())
    disk.fsync_dir("")
    disk.crash()
    assert len(disk.contents("reserve")) == 0

    Storage.open(disk, FULL, Listener())

    assert len(disk.contents("reserve")) == FULL.reserve_bytes


def test_what_a_full_journal_refused_goes_in_later():
    settings = StorageSettings(
        journal_file_bytes=8192, reserve_bytes=4096, checkpoint_bytes=1 << 30
    )
    disk = MemoryDisk(24_000)
    storage = Storage.open(disk, settings, Listener())
    storage.add([CreateLog(key_of(1))], NOW)
    batch = build_batch([(b"k", bytes(900), None, NOW.wall_ms)])

    def produce():
        for _ in range(100):
            storage.add([Append(key_of(1), batch)], NOW)
            storage.flush()

    with pytest.raises(DiskFull):
        produce()
    log = storage.logs[key_of(1)]
    assert log.high_watermark < log.end

    disk.capacity = None
    storage.recheck_space()
    storage.flush()

    assert log.high_watermark == log.end
    before = state_of(storage, Listener())
    disk.crash()
    assert state_of(Storage.open(disk, settings, Listener()), Listener()) == before


@pytest.mark.timeout(3600)
def test_full_at_any_operation(request):
    """One write finds no room, all later ones do: nothing is lost and nothing stops."""
    for seed in range(10 if request.config.getoption("--long") else 1):
        total = count_operations(seed)
        for operation in range(1, total, 1 if request.config.getoption("--long") else 9):
            say(seed=seed, operation=operation)
            disk = MemoryDisk(seed=seed)
            disk.fault = lambda number, what, path, at=operation: (
                Fault.ENOSPC if number == at and what in {"write", "create", "mkdir"} else None
            )
            try:
                work = Workload(disk, seed)
            except (OSError, StorageError):
                continue  # a new data directory needs its room
            for do in [work.step] * 60 + [work.flush]:
                try:
                    do()
                except DiskFull:
                    work.storage.recheck_space()
            work.storage.recheck_space()
            work.flush()
            position = work.storage.position
            disk.crash(Random(operation))
            check_recovered(work, position, position)


@pytest.mark.timeout(3600)
def test_a_failed_sync_or_write_ends_it(request):
    """After an input/output error nothing is acknowledged any more, whatever is tried."""
    seed = 3
    total = count_operations(seed)
    failures = 0
    for operation in range(1, total, 1 if request.config.getoption("--long") else 11):
        say(seed=seed, operation=operation)
        disk = MemoryDisk(seed=seed)
        disk.fault = lambda number, what, path, at=operation: Fault.EIO if number == at else None
        try:
            work = Workload(disk, seed)
        except StorageError:
            continue
        try:
            for _ in range(120):
                work.step()
            continue  # the failed operation was one that the run did not come to
        except StorageFailed:
            failures += 1
        durable = work.storage.durable
        with pytest.raises(StorageFailed):
            work.storage.add([CreateLog(key_of(99))], NOW)
        with pytest.raises(StorageFailed):
            work.storage.write_group(work.storage.next_group())
        assert work.storage.durable == durable
        position = work.storage.position
        disk.crash(Random(operation))
        check_recovered(work, durable, position)
    assert failures > 20


def test_no_room_found_at_a_sync_is_a_failure():
    """Delayed allocation may report a full disk at fsync, when the pages are lost already."""
    disk = MemoryDisk()
    storage = Storage.open(disk, FULL, Listener())
    storage.add([CreateLog(key_of(1)), Append(key_of(1), marker(1))], NOW)
    storage.flush()
    disk.fault = lambda number, what, path: Fault.ENOSPC if what == "fdatasync" else None

    with pytest.raises(StorageFailed):
        storage.checkpoint(b"")

    disk.fault = None
    with pytest.raises(StorageFailed):
        storage.add([Append(key_of(1), marker(1))], NOW)
