"""Reads of a log against a list of its batches."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import (
    Append,
    CreateLog,
    LogSettings,
    LogStart,
    MemoryDisk,
    OffsetOutOfRange,
    Storage,
    StorageSettings,
    UnknownLog,
)
from dualwrite.wire.records import BatchHeader, build_batch
from tests.storage.workload import Listener, key_of

KEY = key_of(1)
NOW = Now(1_000, 0)
SMALL = StorageSettings(
    journal_file_bytes=8192,
    reserve_bytes=0,
    tail_bytes=400,
    tail_total_bytes=2000,
    index_interval_bytes=150,
    open_files=2,
    log=LogSettings(segment_bytes=600),
)


class ModelBatch:
    """One batch as the test remembers it."""

    def __init__(self, base_offset, times, data):
        self.base_offset = base_offset
        self.last_offset = base_offset + len(times) - 1
        self.times = times
        self.data = data


class LogMachine(RuleBasedStateMachine):
    """Appends, flushes, checkpoints, restarts; every read is compared with the model."""

    @initialize()
    def start(self):
        self.disk = MemoryDisk()
        self.storage = Storage.open(self.disk, SMALL, Listener())
        self.storage.add([CreateLog(KEY)], NOW)
        self.storage.flush()
        self.model = []
        self.log_start = 0
        self.durable = 0

    @property
    def log(self):
        return self.storage.logs[KEY]

    @property
    def end(self):
        return self.model[-1].last_offset + 1 if self.model else self.log_start

    @rule(
        times=st.lists(st.integers(0, 1_000), min_size=1, max_size=5),
        size=st.integers(0, 200),
        is_handed_over=st.booleans(),
    )
    def append(self, times, size, is_handed_over):
        batch = build_batch([(b"k", bytes(size), None, time) for time in times])
        item = Append(KEY, memoryview(bytearray(batch)) if is_handed_over else batch)
        self.storage.add([item], NOW)
        assert item.base_offset == self.end
        stored = bytearray(batch)
        stored[:8] = item.base_offset.to_bytes(8, "big")
        stored[12:16] = bytes(4)
        self.model.append(ModelBatch(item.base_offset, times, bytes(stored)))

    @rule()
    def flush(self):
        assert self.storage.flush() == self.storage.position
        self.durable = self.end

    @rule()
    def checkpoint(self):
        self.storage.checkpoint(b"")
        self.durable = self.end

    @rule(crash=st.booleans())
    def restart(self, crash):
        if crash:
            self.disk.crash()
            self.model = [b for b in self.model if b.last_offset < self.durable]
        else:
            self.flush()
            self.disk.kill()
        self.storage = Storage.open(self.disk, SMALL, Listener())
        self.durable = self.end

    @precondition(lambda self: self.durable > self.log_start)
    @rule(data=st.data())
    def delete_records(self, data):
        offset = data.draw(st.integers(self.log_start, self.durable))
        self.flush()
        self.storage.add([LogStart(KEY, offset)], NOW)
        self.flush()
        self.log_start = offset
        self.model = [b for b in self.model if b.last_offset >= offset] or self.model[-1:]

    @rule(data=st.data(), max_bytes=st.integers(0, 1500))
    def read(self, data, max_bytes):
        offset = data.draw(st.integers(self.log_start, max(self.log_start, self.end)))
        ends = [self.log_start, *(b.base_offset for b in self.model), self.end]
        upper = data.draw(st.sampled_from([None, *ends]))
        got = b"".join(self.log.read(offset, max_bytes, upper))
        limit = self.durable if upper is None else upper
        expected = b""
        for batch in self.model:
            if batch.last_offset < offset:
                continue
            if batch.base_offset >= limit or offset >= limit:
                break
            if expected and len(expected) + len(batch.data) > max_bytes:
                break
            expected += batch.data
        assert got == expected

    @rule(outside=st.integers(1, 50))
    def read_outside(self, outside):
        with pytest.raises(OffsetOutOfRange):
            self.log.read(self.end + outside, 100)
        if self.log_start:
            with pytest.raises(OffsetOutOfRange):
                self.log.read(self.log_start - 1, 100)

    @rule(timestamp=st.integers(0, 1_001))
    def look_up_time(self, timestamp):
        expected = None
        for batch in self.model:
            for offset, time in enumerate(batch.times, batch.base_offset):
                if time >= timestamp and self.log_start <= offset < self.durable:
                    expected = expected or (offset, time)
        assert self.log.offset_for_time(timestamp) == expected

    @rule()
    def look_up_max_timestamp(self):
        seen = [
            (-time, offset)
            for batch in self.model
            for offset, time in enumerate(batch.times, batch.base_offset)
            if self.log_start <= offset < self.durable
        ]
        expected = (min(seen)[1], -min(seen)[0]) if seen else None
        assert self.log.max_timestamp() == expected

    @invariant()
    def numbers_agree(self):
        if not hasattr(self, "storage"):
            return
        assert self.log.log_start == self.log_start
        assert self.log.end == max(self.end, self.log_start)
        assert self.log.high_watermark == max(self.durable, 0)
        assert self.log.last_stable == self.log.high_watermark


LogMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogMachine = LogMachine.TestCase


def new_storage(disk=None, settings=SMALL):
    storage = Storage.open(disk or MemoryDisk(), settings, Listener())
    storage.add([CreateLog(KEY)], NOW)
    storage.flush()
    return storage


def test_an_entry_that_cannot_be_applied_changes_nothing():
    storage = new_storage()
    batch = build_batch([(b"k", b"v", None, 1)])

    with pytest.raises(UnknownLog):
        storage.add([Append(KEY, batch), Append(key_of(2), batch)], NOW)

    assert storage.logs[KEY].end == 0
    assert storage.position == 1


def test_the_caller_keeps_its_bytes():
    storage = new_storage()
    batch = build_batch([(b"k", b"v", None, 1)] * 3)
    before = bytes(batch)

    items = [Append(KEY, memoryview(batch)), Append(KEY, batch, leader_epoch=7)]
    storage.add(items, NOW)
    storage.flush()

    assert [item.base_offset for item in items] == [0, 3]
    assert batch == before
    second = BatchHeader.parse(b"".join(storage.logs[KEY].read(3, 1000)))
    assert (second.base_offset, second.leader_epoch) == (3, 7)


def test_only_a_large_view_that_can_be_written_to_stays_where_it_is():
    storage = new_storage()
    small = bytearray(build_batch([(None, b"v", None, 5)]))
    large = bytearray(build_batch([(None, bytes(SMALL.tail_bytes), None, 5)]))
    views = [memoryview(small), memoryview(large), memoryview(large).toreadonly()]
    storage.add([Append(KEY, view) for view in views], NOW)
    read = storage.logs[KEY].read(0, 1 << 20, upper=3)

    assert [getattr(part, "obj", None) is view.obj for part, view in zip(read, views, strict=True)] == [
        False, True, False,
    ]  # fmt: skip
    assert [BatchHeader.parse(part).base_offset for part in read] == [0, 1, 2]
    del views, read
    storage.flush()
    large.append(0)  # nobody looks at it any more: its bytes are in the segment


def test_a_log_created_in_an_entry_can_be_used_in_it():
    storage = new_storage()
    item = Append(key_of(2), build_batch([(b"k", b"v", None, 1)]))

    storage.add([CreateLog(key_of(2)), item], NOW)
    storage.flush()

    assert storage.logs[key_of(2)].high_watermark == 1


def test_nothing_is_readable_before_it_is_durable():
    storage = new_storage()
    storage.add([Append(KEY, build_batch([(b"k", b"v", None, 1)]))], NOW)
    log = storage.logs[KEY]

    assert (log.end, log.high_watermark, log.last_stable) == (1, 0, 0)
    assert log.read(0, 1000) == []

    storage.flush()

    assert (log.high_watermark, log.last_stable) == (1, 1)
    assert len(b"".join(log.read(0, 1000))) == log.size


def test_running_time_goes_on_after_a_restart():
    disk = MemoryDisk()
    storage = new_storage(disk)
    storage.add([Append(KEY, build_batch([(b"k", b"v", None, 1)]))], Now(5_000, 4_000))
    storage.flush()
    disk.crash()

    storage = Storage.open(disk, SMALL, Listener())

    assert (storage.wall_ms, storage.steady_ms) == (5_000, 4_000)
    storage.checkpoint(b"")
    disk.crash()
    assert Storage.open(disk, SMALL, Listener()).steady_ms == 4_000


@given(st.integers(0, 400))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_a_crash_between_the_steps_of_a_checkpoint(steps):
    disk = MemoryDisk()
    storage = new_storage(disk)
    batch = build_batch([(b"k", bytes(100), None, 1)])
    for _ in range(20):
        storage.add([Append(KEY, batch)], NOW)
    work = storage.checkpoint_steps(lambda: b"snapshot:")
    for _ in range(steps):
        if next(work, "done") == "done":
            break
        storage.add([Append(KEY, batch)], NOW)
        storage.flush()
    end = storage.logs[KEY].high_watermark
    content = b"".join(storage.logs[KEY].read(0, 1 << 20))
    disk.crash()

    storage = Storage.open(disk, SMALL, Listener())

    assert storage.logs[KEY].end == end
    assert b"".join(storage.logs[KEY].read(0, 1 << 20)) == content
