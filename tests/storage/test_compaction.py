"""What compaction keeps and drops, and what readers see of it."""

from random import Random

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import Accept, Duplicate
from dualwrite.broker.storage import (
    Append,
    CreateLog,
    DeleteLog,
    LogSettings,
    MemoryDisk,
    Storage,
    StorageSettings,
)
from dualwrite.broker.storage.entry import Roll
from dualwrite.wire.batch_header import seal
from dualwrite.wire.records import (
    BatchHeader,
    EndMarker,
    batches,
    build_batch,
    control_batch,
    records,
)
from tests.storage.workload import (
    Listener,
    Workload,
    committed_of,
    content_of,
    key_of,
    say,
    state_of,
)

KEY = key_of(1)
DAY = 86_400_000
SETTINGS = StorageSettings(
    reserve_bytes=0,
    tail_bytes=500,
    index_interval_bytes=300,
    log=LogSettings(
        segment_bytes=1 << 20,
        compact=True,
        delete=False,
        delete_retention_ms=DAY,
        min_cleanable_dirty_ratio=0.01,
    ),
)


def finish_passes(storage, now):
    for _ in range(1000):
        if not storage.run_compaction(now):
            return
    raise AssertionError("compaction does not come to an end")


class Compacted:
    """A log with a clock that the test moves."""

    def __init__(self, settings=SETTINGS):
        self.disk = MemoryDisk()
        self.settings = settings
        self.storage = Storage.open(self.disk, settings, Listener())
        self.now = Now(1_700_000_000_000, 0)
        self.storage.add([CreateLog(KEY)], self.now)

    @property
    def log(self):
        return self.storage.logs[KEY]

    def put(self, *content, producer=-1, epoch=0, sequence=0):
        is_transactional = producer >= 0
        batch = build_batch(
            [(key, value, None, self.now.wall_ms) for key, value in content],
            producer_id=producer,
            producer_epoch=epoch if is_transactional else -1,
            base_sequence=sequence if is_transactional else -1,
            is_transactional=is_transactional,
        )
        item = Append(KEY, batch)
        self.storage.add([item], self.now)
        return item.base_offset

    def end(self, producer, *, commit, epoch=0):
        batch = control_batch(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=self.now.wall_ms,
        )
        item = Append(KEY, batch)
        self.storage.add([item], self.now)
        return item.base_offset

    def roll(self):
        self.storage.add([Roll(KEY, self.log.end)], self.now)

    def clean(self, *, after_ms=0):
        """Close the active segment and run one whole pass."""
        self.now = Now(self.now.wall_ms + after_ms, self.now.steady_ms + after_ms)
        self.put((b"dirt", b"%d" % self.now.wall_ms))
        self.roll()
        self.storage.flush()
        finish_passes(self.storage, self.now)
        self.storage.flush()

    def restart(self):
        before = state_of(self.storage, Listener())
        self.disk.crash()
        self.storage = Storage.open(self.disk, self.settings, Listener())
        assert state_of(self.storage, Listener()) == before

    def headers(self):
        return [BatchHeader.parse(batch) for batch in content_of(self.log)]

    def visible(self):
        return [(key, value) for _, key, value in committed_of(self.log) if key != b"dirt"]


@pytest.fixture
def compacted():
    return Compacted()


def test_only_the_newest_value_of_a_key_stays(compacted):
    for number in range(10):
        compacted.put((b"a", b"%d" % number), (b"b", b"%d" % number))
    compacted.clean()

    assert compacted.visible() == [(b"a", b"9"), (b"b", b"9")]
    offsets = [offset for offset, _, _ in committed_of(compacted.log)]
    assert offsets == [18, 19, 20]
    compacted.restart()
    assert compacted.visible() == [(b"a", b"9"), (b"b", b"9")]


def test_reads_from_a_removed_offset_go_on_behind_it(compacted):
    for number in range(10):
        compacted.put((b"a", b"%d" % number))
    compacted.clean()

    for offset in range(10):
        first = BatchHeader.parse(b"".join(compacted.log.read(offset, 10_000)))
        assert first.last_offset == 9


def test_a_tombstone_stays_until_its_horizon(compacted):
    compacted.put((b"a", b"1"))
    compacted.put((b"a", None))
    compacted.clean()
    assert compacted.visible() == [(b"a", None)]

    compacted.clean(after_ms=DAY - 1)
    assert compacted.visible() == [(b"a", None)]

    compacted.clean(after_ms=1)
    assert compacted.visible() == []


def test_records_without_a_key_go(compacted):
    compacted.put((None, b"1"), (b"a", b"2"))
    compacted.clean()
    assert compacted.visible() == [(b"a", b"2")]


def test_nothing_is_touched_from_the_first_open_transaction_on(compacted):
    compacted.put((b"a", b"1"))
    compacted.put((b"a", b"2"))
    compacted.roll()
    compacted.put((b"b", b"1"), producer=1)
    compacted.put((b"b", b"2"))
    compacted.put((b"b", b"3"))
    compacted.clean()

    assert [h.base_offset for h in compacted.headers()] == [1, 2, 3, 4, 5]


def test_aborted_records_go_at_once_and_do_not_hide_older_ones(compacted):
    compacted.put((b"a", b"kept"))
    compacted.put((b"a", b"aborted"), producer=1)
    compacted.put((b"c", b"committed"), producer=2)
    compacted.end(1, commit=False)
    compacted.end(2, commit=True)
    compacted.clean()

    assert compacted.visible() == [(b"a", b"kept"), (b"c", b"committed")]
    values = [r.value for b in content_of(compacted.log) for r in records(b)]
    assert b"aborted" not in values


def test_r13_before_compaction_aborted_records_are_in_the_log(compacted):
    compacted.put((b"a", b"aborted"), producer=1)
    compacted.end(1, commit=False)
    compacted.storage.flush()

    assert compacted.log.high_watermark == 2
    assert [h.base_offset for h in compacted.headers()] == [0, 1]
    assert compacted.visible() == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_until_its_horizon(compacted, commit):
    compacted.put((b"a", b"1"), producer=1)
    marker = compacted.end(1, commit=commit)
    compacted.put((b"a", b"2"), producer=1, sequence=1)  # so that it is not the producer's last
    compacted.end(1, commit=True)

    def has_marker():
        return any(
            h.is_control and h.record_count and h.base_offset == marker for h in compacted.headers()
        )

    compacted.clean()  # met records of the transaction
    assert has_marker()
    compacted.clean()  # met none: the horizon is set
    assert has_marker()
    assert (commit, len(compacted.log.aborted(0, 100))) in {(True, 0), (False, 1)}
    compacted.clean(after_ms=DAY - 1)
    assert has_marker()
    compacted.clean(after_ms=1)
    assert not has_marker()
    assert compacted.log.aborted(0, 100) == []
    assert compacted.visible() == [(b"a", b"2")]
    compacted.restart()


def test_kafka_8351_state_is_carried_across_groups():
    """A transaction that lies in several groups of segments is known in all of them."""
    settings = StorageSettings(
        reserve_bytes=0,
        tail_bytes=100,
        index_interval_bytes=100,
        log=LogSettings(
            segment_bytes=400, compact=True, delete=False, min_cleanable_dirty_ratio=0.01
        ),
    )
    compacted = Compacted(settings)
    for number in range(6):
        compacted.put((b"a%d" % number, bytes(150)), producer=1, sequence=number)
        compacted.put((b"b%d" % number, bytes(150)), producer=2, sequence=number)
    compacted.end(1, commit=False)
    compacted.end(2, commit=True)
    assert len(compacted.log.segments) > 4
    compacted.clean()
    compacted.clean()

    assert [key for key, _ in compacted.visible()] == [b"b%d" % number for number in range(6)]


def test_kafka_13727_an_aborted_transaction_may_end_in_the_uncleaned_part(compacted):
    """Its marker's segment is not rewritten, its records' segment is."""
    compacted.put((b"a", b"kept"))
    compacted.put((b"a", b"aborted"), producer=1)
    compacted.roll()
    compacted.put((b"b", b"aborted"), producer=1, sequence=1)
    compacted.end(1, commit=False)
    compacted.storage.flush()
    assert len(compacted.log.segments) == 2
    finish_passes(compacted.storage, compacted.now)
    compacted.storage.flush()

    assert compacted.visible() == [(b"a", b"kept")]
    compacted.restart()
    assert compacted.visible() == [(b"a", b"kept")]


def test_the_last_batch_of_each_producer_stays_maybe_empty(compacted):
    compacted.put((b"a", b"1"), producer=1)
    compacted.end(1, commit=True)
    compacted.put((b"a", b"2"))
    compacted.clean()

    empty = [h for h in compacted.headers() if h.record_count == 0]
    assert [(h.producer_id, h.last_sequence, h.last_offset) for h in empty] == [(1, 0, 0)]
    verdict = compacted.log.producers.check(
        BatchHeader.parse(
            build_batch(
                [(b"a", b"1", None, 0)],
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )
    )
    assert isinstance(verdict, Duplicate)


def test_r15_empty_batches_are_read_like_others(compacted):
    for producer in range(5):
        compacted.put((b"a", b"%d" % producer), producer=producer)
        compacted.end(producer, commit=True)
    compacted.put((b"a", b"newest"))
    compacted.clean()

    data = b"".join(compacted.log.read(0, 100_000))
    assert sum(header.record_count == 0 for _, header in batches(data)) == 5
    assert compacted.visible() == [(b"a", b"newest")]


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("checkpoint_first", [True, False])
def test_a_log_deleted_during_a_pass_is_left_alone(compacted, steps, checkpoint_first):
    for number in range(4000):
        compacted.put((b"%d" % (number % 1999), bytes(900)))
    compacted.roll()
    compacted.storage.flush()
    for _ in range(steps):
        assert compacted.storage.run_compaction(compacted.now)
    compacted.put((b"k", b"v"))
    compacted.storage.add([DeleteLog(KEY)], compacted.now)
    if checkpoint_first:
        compacted.storage.checkpoint(b"")
    finish_passes(compacted.storage, compacted.now)
    compacted.storage.checkpoint(b"")

    assert compacted.disk.listdir("logs") == []


def test_a_batch_that_cannot_be_taken_apart_stays(compacted):
    batch = bytearray(build_batch([(b"a", b"1", None, 0)]))
    header = BatchHeader.parse(batch)
    batch[61] = 0xFF  # the record's length
    compacted.storage.add([Append(KEY, seal(header, bytes(batch[61:])))], compacted.now)
    compacted.put((b"b", b"1"))
    compacted.clean()

    assert [h.base_offset for h in compacted.headers()] == [0, 1, 2]


def newest_of(seen):
    newest = {}
    for _, key, value in seen:
        newest[key] = value
    return {key: value for key, value in newest.items() if value is not None}


def test_compaction_never_changes_the_newest_values(request):
    """Random lives: what a read_committed reader builds from a log stays the same."""
    for seed in range(200 if request.config.getoption("--long") else 15):
        say(seed=seed)
        work = Workload(MemoryDisk(seed=seed), seed, records_states=False)
        chance = Random(seed)
        for _ in range(120):
            work.step()
            if chance.random() < 0.2:
                work.flush()
                before = {k: newest_of(committed_of(log)) for k, log in work.storage.logs.items()}
                finish_passes(work.storage, work.now)
                work.flush()
                after = {k: newest_of(committed_of(log)) for k, log in work.storage.logs.items()}
                assert after == before


def test_accept_is_still_the_verdict_after_compaction(compacted):
    compacted.put((b"a", b"1"), producer=1)
    compacted.end(1, commit=True)
    compacted.clean()
    compacted.restart()
    following = build_batch(
        [(b"a", b"2", None, 0)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=1,
        is_transactional=True,
    )
    verdict = compacted.log.producers.check(BatchHeader.parse(following), verified=True)
    assert isinstance(verdict, Accept)
    assert EndMarker.parse(content_of(compacted.log)[1]) is not None
