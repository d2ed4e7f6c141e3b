"""A random life of a storage, and what must be true of it at every position of the journal."""

import sys
from hashlib import blake2b
from random import Random

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import Accept, encode_snapshot
from dualwrite.broker.storage import (
    Append,
    CreateLog,
    DeleteLog,
    LogSettings,
    LogStart,
    Meta,
    Storage,
    StorageSettings,
)
from dualwrite.wire.records import (
    BatchHeader,
    EndMarker,
    batches,
    build_batch,
    control_batch,
    records,
)

START_MS = 1_700_000_000_000

SMALL = StorageSettings(
    journal_file_bytes=4096,
    group_bytes=1500,
    journal_ahead_bytes=512,
    reserve_bytes=2048,
    checkpoint_bytes=8192,
    tail_bytes=300,
    tail_total_bytes=900,
    index_interval_bytes=200,
    open_files=3,
    log=LogSettings(
        segment_bytes=700,
        retention_bytes=3000,
        compact=True,
        delete_retention_ms=5_000,
        min_cleanable_dirty_ratio=0.1,
    ),
)


def say(**facts):
    """Shown by pytest when the test fails: all that is needed to run the case again."""
    sys.stdout.write(" ".join(f"{name}={value}" for name, value in facts.items()) + "\n")


def key_of(number):
    return number.to_bytes(16, "big"), number


class Listener:
    """The caller's side of `Meta`: a list that a snapshot holds whole."""

    def __init__(self):
        self.metas = []

    def __call__(self, payload):
        if payload.startswith(b"snapshot:"):
            self.metas = payload.removeprefix(b"snapshot:").split(b",")[1:]
        else:
            self.metas.append(payload)

    def snapshot(self):
        return b"snapshot:" + b"".join(b"," + meta for meta in self.metas)


def content_of(log):
    """All batches of a log from its start, read in small pieces."""
    out = []
    offset = log.log_start
    while buffers := log.read(offset, 400, log.end):
        data = b"".join(buffers)
        position = 0
        while position < len(data):
            header = BatchHeader.parse(data, position)
            out.append(data[position : position + header.length])
            position += header.length
            assert header.last_offset >= offset
            offset = header.last_offset + 1
        if offset >= log.end:
            break
    return out


def committed_of(log, fetch_bytes=400):
    """What a read_committed consumer gets, by the rules of KIP-98: (offset, key, value)."""
    out = []
    offset = log.log_start
    upper = log.last_stable
    while offset < upper:
        data = b"".join(log.read(offset, fetch_bytes, upper))
        if not data:
            break
        waiting = sorted((txn.first_offset, txn.producer_id) for txn in log.aborted(offset, upper))
        hidden = set()
        for position, header in batches(data):
            batch = data[position : position + header.length]
            while waiting and waiting[0][0] <= header.last_offset:
                hidden.add(waiting.pop(0)[1])
            marker = EndMarker.parse(batch) if header.is_control else None
            if marker is not None and not marker.commit:
                hidden.discard(header.producer_id)
            is_hidden = header.is_transactional and header.producer_id in hidden
            if not header.is_control and not is_hidden:
                for record in records(batch):
                    found = header.base_offset + record.offset_delta
                    if found >= offset:
                        out.append((found, record.key, record.value))
            offset = header.last_offset + 1
    return out


def state_of(storage, listener):
    """Everything that must come back after a crash, as a digest per log."""
    logs = {}
    for key, log in sorted(storage.logs.items()):
        digest = blake2b()
        for batch in content_of(log):
            digest.update(batch)
        # The order of the dictionary is no part of the state.
        log.producers.producers = dict(sorted(log.producers.producers.items()))
        logs[key] = {
            "start": log.log_start,
            "end": log.end,
            "cleaned_to": log.cleaned_to,
            "segments": [(s.base_offset, s.generation, s.end_offset) for s in log.segments],
            "content": digest.hexdigest(),
            "producers": encode_snapshot(log.producers, aborted_from=log.end),
            "aborted": list(log.producers.aborted),
        }
    return logs, list(listener.metas)


class Workload:
    """Runs on a storage step by step; the same seed takes the same steps."""

    def __init__(self, disk, seed, *, records_states=True, settings=SMALL):
        self.random = Random(seed)
        self.disk = disk
        self.settings = settings
        self.records_states = records_states
        self.states = {}
        self.last_stable = {}
        self.now = Now(START_MS, 0)
        self.topics = 0
        self.open_storage()

    def open_storage(self):
        self.listener = Listener()
        self.storage = Storage.open(self.disk, self.settings, self.listener)
        self.storage.add = self.add_and_note
        self.now = Now(
            max(self.now.wall_ms, START_MS), max(self.now.steady_ms, self.storage.steady_ms)
        )
        self.note()

    def add_and_note(self, entry, now):
        """Retention and the cleaner add entries, too."""
        position = Storage.add(self.storage, entry, now)
        self.note()
        return position

    def note(self):
        if self.records_states:
            self.states[self.storage.position] = state_of(self.storage, self.listener)

    def observe(self):
        """What readers have seen can't be taken back (R12)."""
        for key, log in self.storage.logs.items():
            assert log.high_watermark <= log.end
            assert log.last_stable >= self.last_stable.get(key, 0), "last stable offset went back"
            self.last_stable[key] = log.last_stable

    def add(self, entry):
        for item in entry:
            if isinstance(item, Meta):
                self.listener(bytes(item.payload))
        self.storage.add(entry, self.now)

    def flush(self):
        self.storage.flush()
        self.observe()

    def step(self):
        random = self.random
        self.now = Now(self.now.wall_ms + 700, self.now.steady_ms + 700)
        logs = self.storage.logs
        if not logs or random.random() < 0.04:
            self.topics += 1
            self.add([CreateLog(key_of(self.topics)), Meta(b"topic-%d" % self.topics)])
        choice = random.random()
        if choice < 0.60:
            self.add(self.appends())
        elif choice < 0.70:
            self.end_transactions()
        elif choice < 0.73 and len(logs) > 2:
            key = random.choice(sorted(logs))
            self.last_stable.pop(key, None)
            self.add([DeleteLog(key)])
        elif choice < 0.78:
            log = logs[random.choice(sorted(logs))]
            if log.last_stable > log.log_start:
                self.add([LogStart(log.key, random.randint(log.log_start, log.last_stable))])
        elif choice < 0.84:
            self.maintain()
        elif choice < 0.88:
            self.flush()
            self.storage.checkpoint(self.listener.snapshot())
            self.observe()
        else:
            self.flush()

    def maintain(self):
        self.storage.run_retention(self.now)
        for _ in range(20):
            if not self.storage.run_compaction(self.now):
                break

    def appends(self):
        """Batches for up to three logs in one entry, with producers of every kind."""
        random = self.random
        keys = sorted(self.storage.logs)
        entry = []
        for key in random.sample(keys, min(len(keys), random.randint(1, 3))):
            producer = random.randint(-1, 3)
            entry.append(Append(key, self.batch(self.storage.logs[key], producer)))
        return entry

    def batch(self, log, producer):
        random = self.random
        content = [
            (
                b"k%d" % random.randint(0, 6),
                random.choice([None, random.randbytes(random.randint(1, 60))]),
                None,
                self.now.wall_ms,
            )
            for _ in range(random.randint(1, 4))
        ]
        if producer < 0:
            return build_batch(content)
        state = log.producers.producers.get(producer)
        is_transactional = producer > 0
        epoch, sequence = 0, 0
        if state is not None:
            epoch = max(0, state.epoch)
            sequence = state.batches[-1].last_sequence + 1 if state.batches else 0
        batch = build_batch(
            content,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
            compression=random.randint(0, 1),
        )
        verdict = log.producers.check(BatchHeader.parse(batch), verified=True)
        assert isinstance(verdict, Accept), verdict
        return batch

    def end_transactions(self):
        """Markers for one producer's open transactions everywhere, in one entry."""
        producer = self.random.randint(1, 3)
        commit = self.random.random() < 0.5
        entry = markers(self.storage, producer, self.now, commit=commit)
        if entry:
            self.add([*entry, Meta(b"end-%d" % producer)])


def markers(storage, producer, now, *, commit):
    """One for each log in which the producer has an open transaction."""
    entry = []
    for key, log in sorted(storage.logs.items()):
        state = log.producers.producers.get(producer)
        if state is not None and state.first_offset is not None:
            batch = control_batch(
                commit=commit,
                producer_id=producer,
                producer_epoch=state.epoch + 1,
                coordinator_epoch=0,
                timestamp_ms=now.wall_ms,
            )
            marker = EndMarker.parse(batch)
            assert isinstance(log.producers.check_marker(marker, tv2=True), Accept)
            entry.append(Append(key, batch))
    return entry
