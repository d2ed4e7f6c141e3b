"""What retention may delete, and what it must leave."""

import pytest
from crc32c import crc32c

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import (
    Append,
    CreateLog,
    DeleteLog,
    LogSettings,
    LogStart,
    MemoryDisk,
    OffsetOutOfRange,
    Storage,
    StorageSettings,
    checkpoint,
)
from dualwrite.broker.storage.entry import Roll
from dualwrite.broker.storage.retention import TRUST_AFTER_MS, ClockGuard
from dualwrite.wire.records import build_batch, control_batch
from tests.storage.workload import Listener, committed_of, key_of, state_of

KEY = key_of(1)
HOUR = 3_600_000
DAY = 24 * HOUR
START = Now(1_700_000_000_000, 5_000)


def open_storage(disk, **settings):
    log = LogSettings(**{"retention_ms": 7 * DAY, "segment_ms": 30 * DAY, **settings})
    return Storage.open(disk, StorageSettings(reserve_bytes=0, log=log), Listener())


def later(now, ms):
    return Now(now.wall_ms + ms, now.steady_ms + ms)


def batch(now, size=100, **producer):
    return build_batch([(b"k", bytes(size), None, now.wall_ms)], **producer)


def transactional(now):
    return batch(now, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)


def marker(now):
    return control_batch(
        commit=True,
        producer_id=1,
        producer_epoch=1,
        coordinator_epoch=0,
        timestamp_ms=now.wall_ms,
    )


def fill(storage, now, segments=5):
    """Closed segments of one batch each, an hour apart; the last one is active."""
    storage.add([CreateLog(KEY)], now)
    for _ in range(segments):
        storage.add([Append(KEY, batch(now)), Roll(KEY, storage.logs[KEY].end + 1)], now)
        now = later(now, HOUR)
    storage.flush()
    storage.run_retention(now)
    return now


def run(storage, now, hours):
    """Let the clocks go on as they do in a running broker."""
    dropped = 0
    for _ in range(hours):
        now = later(now, HOUR)
        dropped += storage.run_retention(now)
        storage.flush()
    return now, dropped


def test_segments_go_by_the_age_of_their_newest_record():
    storage = open_storage(MemoryDisk())
    now = fill(storage, START)
    now, dropped = run(storage, now, 7 * 24 - 5)
    assert (dropped, storage.logs[KEY].log_start) == (0, 0)
    now, dropped = run(storage, now, 3)
    assert (dropped, storage.logs[KEY].log_start) == (3, 3)


def test_the_active_segment_is_closed_when_all_of_it_is_old():
    storage = open_storage(MemoryDisk())
    storage.add([CreateLog(KEY), Append(KEY, batch(START))], START)
    storage.flush()
    run(storage, START, 7 * 24 + 1)
    log = storage.logs[KEY]
    assert (log.log_start, log.end, log.size) == (1, 1, 0)


def test_segments_go_by_size():
    disk = MemoryDisk()
    storage = open_storage(disk, retention_ms=-1)
    fill(storage, START)
    log = storage.logs[KEY]
    log.settings = LogSettings(retention_bytes=log.size - 1, retention_ms=-1)
    assert storage.run_retention(START) == 0
    log.settings = LogSettings(retention_bytes=log.size // 5 * 3, retention_ms=-1)
    assert storage.run_retention(START) == 2
    storage.flush()
    assert log.log_start == 2
    before = state_of(storage, Listener())
    disk.crash()
    assert state_of(open_storage(disk), Listener()) == before


def test_without_delete_nothing_goes():
    storage = open_storage(MemoryDisk(), delete=False, retention_bytes=0)
    now = fill(storage, START)
    assert run(storage, now, 10 * 24)[1] == 0


def test_t7_records_in_doubt_outlive_every_limit():
    """A prepared transaction keeps its records for as long as its outcome is open."""
    disk = MemoryDisk()
    storage = open_storage(disk, retention_bytes=0)
    storage.add([CreateLog(KEY), Append(KEY, batch(START)), Roll(KEY, 1)], START)
    storage.add([Append(KEY, transactional(START)), Roll(KEY, 2)], START)
    storage.add([Append(KEY, batch(START)), Roll(KEY, 3)], START)
    storage.flush()
    now, dropped = run(storage, START, 30 * 24)
    log = storage.logs[KEY]
    assert (dropped, log.log_start, log.last_stable) == (1, 1, 1)
    with pytest.raises(OffsetOutOfRange):
        storage.add([LogStart(KEY, 2)], now)

    storage.add([Append(KEY, marker(now))], now)
    storage.flush()
    assert [offset for offset, _, _ in committed_of(log)] == [1, 2]
    run(storage, now, 1)
    assert log.log_start == 3


def test_log_start_never_goes_past_what_is_durable():
    storage = open_storage(MemoryDisk())
    storage.add([CreateLog(KEY), Append(KEY, batch(START))], START)
    with pytest.raises(OffsetOutOfRange):
        storage.add([LogStart(KEY, 1)], START)
    storage.flush()
    storage.add([LogStart(KEY, 1)], START)
    with pytest.raises(OffsetOutOfRange):
        storage.add([LogStart(KEY, 0)], START)


@pytest.mark.parametrize("jump", [2 * DAY, 3650 * DAY])
def test_a_jump_of_the_clock_deletes_nothing(jump):
    storage = open_storage(MemoryDisk(), retention_ms=HOUR)
    now = fill(storage, START, segments=1)
    jumped = Now(now.wall_ms + jump, now.steady_ms + 1_000)
    assert storage.run_retention(jumped) == 0
    # Put right again within the day: back as far as it went ahead.
    back = Now(now.wall_ms + 2_000, now.steady_ms + 2_000)
    assert storage.run_retention(back) == 0
    assert storage.logs[KEY].log_start == 0


def test_a_clock_back_in_1970_deletes_nothing():
    storage = open_storage(MemoryDisk(), retention_ms=HOUR)
    now = fill(storage, START, segments=1)
    assert storage.run_retention(Now(0, now.steady_ms + 1_000)) == 0


def test_many_jumps_delete_nothing():
    storage = open_storage(MemoryDisk(), retention_ms=HOUR)
    now = fill(storage, START, segments=1)
    for number in range(200):
        sign = 1 if number % 2 else -1
        now = Now(now.wall_ms + sign * 9 * DAY, now.steady_ms + 100)
        assert storage.run_retention(now) == 0


def test_a_jump_that_stays_is_believed_after_a_day():
    guard = ClockGuard(START)
    assert guard.trusts(later(START, HOUR))
    jumped = Now(START.wall_ms + 5 * DAY, START.steady_ms + 2 * HOUR)
    assert not guard.trusts(jumped)
    assert not guard.trusts(later(jumped, TRUST_AFTER_MS - 1))
    assert guard.trusts(later(jumped, TRUST_AFTER_MS))


def test_a_jump_while_the_broker_was_down_counts_too():
    disk = MemoryDisk()
    storage = open_storage(disk, retention_ms=HOUR)
    now = fill(storage, START, segments=1)
    disk.crash()
    storage = open_storage(disk, retention_ms=HOUR)
    assert storage.run_retention(Now(now.wall_ms + 400 * DAY, storage.steady_ms + 100)) == 0


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_restart_does_not_make_a_jump_believed(is_noticed, is_checkpointed):
    disk = MemoryDisk()
    storage = open_storage(disk, retention_ms=HOUR)
    now = fill(storage, START, segments=1)
    jumped = Now(now.wall_ms + 3650 * DAY, now.steady_ms + 1_000)
    if is_noticed:
        assert storage.run_retention(jumped) == 0
    storage.add([Append(KEY, batch(now))], jumped)
    storage.flush()
    if is_checkpointed:
        storage.checkpoint(b"")
    disk.crash()

    for hours in (0, 1):  # and not after a second restart
        storage = open_storage(disk, retention_ms=HOUR)
        assert storage.run_retention(later(jumped, hours * HOUR + 100)) == 0
        storage.checkpoint(b"")
        disk.crash()
    assert storage.logs[KEY].log_start == 0

    # However often it is restarted, a day is enough.
    storage = open_storage(disk, retention_ms=HOUR)
    assert storage.run_retention(later(jumped, TRUST_AFTER_MS)) > 0


def test_a_checkpoint_of_the_former_format_knows_of_no_jump():
    """Data directories from before jumps were kept can be opened."""
    disk = MemoryDisk()
    storage = open_storage(disk)
    fill(storage, START)
    storage.checkpoint(b"meta")
    file = disk.open(checkpoint.CHECKPOINT)
    front, head = checkpoint._FRONT, checkpoint._BODY.size
    body = file.pread(file.size(), 0)[front.size :]
    former = body[:head] + body[head + checkpoint._JUMP.size :]

    read = checkpoint.Checkpoint.decode(
        front.pack(b"dwcheck2", crc32c(former), len(former)) + former
    )

    assert read.distrusted_at is None
    assert read == checkpoint.load(disk)


def test_deleted_logs_leave_no_files():
    disk = MemoryDisk()
    storage = open_storage(disk)
    fill(storage, START)
    storage.checkpoint(b"")
    assert disk.listdir("logs") == [f"{KEY[0].hex()}-{KEY[1]}"]
    storage.add([DeleteLog(KEY)], START)
    storage.flush()
    assert KEY not in storage.logs
    storage.checkpoint(b"")
    assert disk.listdir("logs") == []
    disk.crash()
    assert open_storage(disk).logs == {}


def test_dropped_segments_leave_no_files():
    disk = MemoryDisk()
    storage = open_storage(disk)
    fill(storage, START)
    storage.checkpoint(b"")
    directory = storage.logs[KEY].directory
    assert sum(name.endswith(".log") for name in disk.listdir(directory)) == 5
    storage.add([LogStart(KEY, 3)], START)
    storage.flush()
    storage.checkpoint(b"")
    assert sum(name.endswith(".log") for name in disk.listdir(directory)) == 2


def test_aborted_transactions_below_the_start_are_forgotten_on_disk_too():
    """Their entries are still in the transaction index of a segment that is partly deleted."""
    disk = MemoryDisk()
    storage = open_storage(disk)
    storage.add([CreateLog(KEY)], START)
    for number in (1, 2):
        data = batch(
            START, producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        end = control_batch(
            commit=False,
            producer_id=number,
            producer_epoch=1,
            coordinator_epoch=0,
            timestamp_ms=START.wall_ms,
        )
        storage.add([Append(KEY, data), Append(KEY, end)], START)
    storage.add([Roll(KEY, 4)], START)
    storage.flush()
    storage.add([LogStart(KEY, 2)], START)
    storage.checkpoint(b"")
    storage.add([Append(KEY, batch(START))], START)
    storage.flush()
    before = state_of(storage, Listener())
    disk.crash()

    storage = open_storage(disk)

    assert state_of(storage, Listener()) == before
    assert [txn.producer_id for txn in storage.logs[KEY].aborted(2, 5)] == [2]
