"""Flipped bits and cut files: detected or harmless, and never a wrong byte served."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import (
    CorruptCheckpoint,
    CorruptJournal,
    LogOffline,
    MemoryDisk,
    Meta,
    Storage,
    StorageSettings,
)
from dualwrite.broker.storage.journal_format import HEADER_SIZE
from dualwrite.wire.records import batches
from tests.storage.workload import SMALL, Listener, Workload, committed_of, markers, say, state_of


class Recording:
    """A data directory after a random life, with the states it went through."""

    def __init__(self, seed, *, ends_with_checkpoint):
        self.disk = MemoryDisk(seed=seed)
        work = Workload(self.disk, seed)
        for _ in range(150):
            work.step()
        work.flush()
        if ends_with_checkpoint:
            work.storage.checkpoint(work.listener.snapshot())
        else:
            for _ in range(4):
                work.add(work.appends())
            self.before_last = work.storage.durable
            work.flush()
        self.position = work.storage.position
        self.checkpointed = work.storage._checkpointed_position
        if ends_with_checkpoint:
            self.before_last = self.position
        self.states = work.states
        self.now = work.now
        self.committed = {key: committed_of(log) for key, log in work.storage.logs.items()}
        self.disk.kill()
        self.files = files_of(self.disk)

    def copy(self):
        return deepcopy(self.disk)


def files_of(disk, directory=""):
    found = []
    for name in disk.listdir(directory):
        path = f"{directory}/{name}" if directory else name
        try:
            found += files_of(disk, path)
        except FileNotFoundError:
            found.append(path)
    return sorted(found)


def verdict(recording, disk, path, *, is_cut_journal=False):
    """What opening and reading everything comes to; raises if a wrong byte is served."""
    listener = Listener()
    try:
        storage = Storage.open(disk, SMALL, listener)
    except (CorruptJournal, CorruptCheckpoint) as error:
        return "refused" if path in str(error) else f"refused without a name: {error}"
    # A flip in the last group can't be told from a torn write.
    earliest = recording.checkpointed if is_cut_journal else recording.before_last
    assert earliest <= storage.position <= recording.position
    known, metas = recording.states[storage.position]
    assert set(storage.logs) == set(known)
    assert listener.metas == metas
    if read(recording, storage, path):
        return "offline"
    return "harmless" if storage.position == recording.position else "cut"


def read(recording, storage, path):
    """Read everything: the logs that are offline; raises if a wrong byte is served."""
    known, _ = recording.states[storage.position]
    offline = set()
    for key, log in list(storage.logs.items()):
        alone = Storage.__new__(Storage)
        alone.logs = {key: log}
        try:
            found, _ = state_of(alone, Listener())
        except LogOffline:
            assert log.directory in path, "another log must not suffer"
            assert path.rpartition(".")[0] in log.offline
            assert "byte" in log.offline or "missing" in log.offline
            offline.add(key)
            continue
        if path.endswith(".txnindex"):
            # Made anew from what is left of the log: other numbers, the same for readers.
            assert committed_of(log) == recording.committed[key]
            found[key]["aborted"] = known[key]["aborted"]
        assert found[key] == known[key]
    return offline


def flip(disk, seed):
    """Flip a bit somewhere in the files; says in which of them."""
    chance = Random(seed)
    path = weighted_file(disk, chance)
    data = disk.contents(path)
    bit = chance.randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    say(seed=seed, path=path, bit=bit)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["journal", "checkpoint"])
def recording(request):
    return Recording(7, ends_with_checkpoint=request.param)


def weighted_file(disk, chance):
    """Files of logs and of the rest alike: the journal would else get nearly all."""
    group = chance.choice(["journal", "logs", "logs", "checkpoint"])
    paths = [p for p in files_of(disk) if p.startswith(group) and disk.contents(p)]
    return chance.choice(paths)


@pytest.mark.timeout(3600)
def test_a_flipped_bit_is_never_served(recording, request):
    verdicts = {}
    for seed in range(10_000 if request.config.getoption("--long") else 200):
        disk = recording.copy()
        path = flip(disk, seed)
        found = verdict(recording, disk, path)
        verdicts[found] = verdicts.get(found, 0) + 1
    say(**verdicts)
    assert set(verdicts) in (
        {"harmless", "offline", "refused"},
        {"harmless", "offline", "refused", "cut"},
    )


@pytest.mark.timeout(3600)
def test_a_bit_that_is_flipped_under_an_open_storage_is_never_served(recording, request):
    verdicts = Counter()
    for seed in range(10_000 if request.config.getoption("--long") else 60):
        disk = recording.copy()
        storage = Storage.open(disk, SMALL, Listener())
        path = flip(disk, seed)
        verdicts["offline" if read(recording, storage, path) else "harmless"] += 1
    say(**verdicts)
    assert set(verdicts) == {"harmless", "offline"}


def clean(storage, listener, now):
    """End what is open, compact everything and make that durable."""
    for producer in (1, 2, 3):
        if entry := markers(storage, producer, now, commit=True):
            storage.add(entry, now)
    for log in storage.logs.values():
        log.settings = replace(log.settings, segment_ms=1, min_cleanable_dirty_ratio=0)
    storage.run_retention(now)
    storage.flush()
    while storage.run_compaction(now):
        storage.flush()
    storage.flush()
    storage.checkpoint(listener.snapshot())


@pytest.mark.timeout(3600)
def test_the_cleaner_makes_no_flipped_bit_sound(recording, request):
    """What it reads and writes anew gets a checksum that fits."""
    disk = recording.copy()
    listener = Listener()
    storage = Storage.open(disk, SMALL, listener)
    before = {key: log.cleaned_to for key, log in storage.logs.items()}
    clean(storage, listener, recording.now)
    assert all(log.cleaned_to > before[key] for key, log in storage.logs.items())
    expected = {key: committed_of(log) for key, log in storage.logs.items()}

    verdicts = Counter()
    for seed in range(5_000 if request.config.getoption("--long") else 30):
        disk = recording.copy()
        listener = Listener()
        storage = Storage.open(disk, SMALL, listener)
        path = flip(disk, seed)
        clean(storage, listener, recording.now)
        disk.kill()
        verdicts[verdict_of_cleaned(disk, path, expected)] += 1
    say(**verdicts)
    assert set(verdicts) == {"harmless", "offline"}


def verdict_of_cleaned(disk, path, expected):
    storage = Storage.open(disk, SMALL, Listener())
    offline = []
    for key, log in storage.logs.items():
        try:
            assert committed_of(log) == expected[key]
        except LogOffline:
            assert log.directory in path, "another log must not suffer"
            offline.append(key)
    return "offline" if offline else "harmless"


@pytest.mark.timeout(3600)
def test_a_cut_file_is_never_served(recording, request):
    verdicts = {}
    for seed in range(2_000 if request.config.getoption("--long") else 50):
        chance = Random(seed)
        disk = recording.copy()
        path = weighted_file(disk, chance)
        size = chance.randrange(len(disk.contents(path)))
        del disk.contents(path)[size:]
        say(seed=seed, path=path, size=size)
        # The groups here reach beyond what is zeroed ahead, so that a cut may look like a crash.
        found = verdict(recording, disk, path, is_cut_journal=path.startswith("journal"))
        verdicts[found] = verdicts.get(found, 0) + 1
    say(**verdicts)
    assert {"offline", "refused"} <= set(verdicts) <= {"harmless", "offline", "refused", "cut"}


def journals(recording):
    return [path for path in recording.files if path.startswith("journal")]


def test_a_damaged_beginning_of_a_journal_file_is_named():
    """The chain breaks at the end of the file before it, which is sound (flips 1054 and 2419)."""
    recording = Recording(7, ends_with_checkpoint=False)
    verdicts = set()
    for path in journals(recording):
        for number in range(HEADER_SIZE):
            disk = recording.copy()
            disk.contents(path)[number] ^= 1 << number % 8
            say(path=path, byte=number)
            verdicts.add(verdict(recording, disk, path))
    assert "refused" in verdicts
    assert verdicts <= {"harmless", "refused", "cut"}


def test_a_journal_file_that_lost_its_beginning_is_named():
    recording = Recording(7, ends_with_checkpoint=False)
    verdicts = set()
    for path in journals(recording):
        for size in (1, HEADER_SIZE - 1):
            disk = recording.copy()
            del disk.contents(path)[size:]
            say(path=path, size=size)
            verdicts.add(verdict(recording, disk, path, is_cut_journal=True))
    assert "refused" in verdicts
    assert verdicts <= {"harmless", "refused", "cut"}


def test_a_missing_segment_takes_only_its_log_offline(recording):
    for path in recording.files:
        if not path.endswith(".log") or not recording.disk.contents(path):
            continue
        disk = recording.copy()
        disk.unlink(path)
        say(path=path)
        assert verdict(recording, disk, path) in {"offline", "harmless"}


@pytest.mark.parametrize(
    "files",
    [("log",), ("index",), ("txnindex",), ("log", "index"), ("log", "index", "txnindex")],
    ids="+".join,
)
@pytest.mark.parametrize("is_exchange", [True, False], ids=["exchanged", "copied"])
def test_a_segment_in_another_ones_place_is_never_served(recording, files, is_exchange, request):
    """As a restore by hand might leave it: sound bytes under a wrong name."""
    contents = recording.disk.contents
    stems = [p.removesuffix(".log") for p in recording.files if p.endswith(".log") and contents(p)]
    verdicts = []
    pairs = list(combinations(stems, 2))
    if not request.config.getoption("--long"):
        pairs = Random(939).sample(pairs, 12)
    for one, other in pairs:
        disk = recording.copy()
        if contents(f"{one}.log") == contents(f"{other}.log"):
            continue
        for kind in files:
            here, there = f"{one}.{kind}", f"{other}.{kind}"
            if here in recording.files and there in recording.files:
                disk.contents(there)[:] = contents(here)
                if is_exchange:
                    disk.contents(here)[:] = contents(there)
        say(one=one, other=other)
        verdicts.append(verdict_of_misplaced(recording, disk, one, other))
    say(pairs=len(verdicts), offline=verdicts.count("offline"))
    assert files == ("txnindex",) or "offline" in verdicts
    assert set(verdicts) <= {"offline", "harmless"}


def verdict_of_misplaced(recording, disk, *stems):
    storage = Storage.open(disk, SMALL, Listener())
    known, _ = recording.states[storage.position]
    offline = []
    for key, log in storage.logs.items():
        alone = Storage.__new__(Storage)
        alone.logs = {key: log}
        try:
            found, _ = state_of(alone, Listener())
        except LogOffline:
            assert any(log.directory in stem for stem in stems), "another log must not suffer"
            offline.append(key)
        else:
            assert committed_of(log) == recording.committed[key]
            # An index of aborted transactions that is made anew may count otherwise.
            assert found[key] | {"aborted": ()} == known[key] | {"aborted": ()}
    return "offline" if offline else "harmless"


def test_an_index_that_is_made_anew_takes_nothing_damaged_over():
    """The index with its checksums is lost, and a bit of the segment is flipped."""
    recording = Recording(7, ends_with_checkpoint=True)
    verdicts = []
    for path in recording.files:
        stem, _, kind = path.rpartition(".")
        if kind != "log" or f"{stem}.index" not in recording.files:
            continue
        is_compacted = not stem.endswith(".0")
        for position, header in batches(bytes(recording.disk.contents(path))):
            # A compacted segment has gaps: there the base offset, its last byte, may be anything.
            for byte in (16, 22, 60, header.length - 1, *([] if is_compacted else [7])):
                disk = recording.copy()
                disk.unlink(f"{stem}.index")
                disk.contents(path)[position + byte] ^= 1
                say(path=path, position=position, byte=byte)
                verdicts.append(verdict(recording, disk, path))
    assert verdicts
    assert set(verdicts) == {"offline"}


def test_a_cut_segment_is_noticed_before_anything_is_appended_behind_the_gap():
    recording = Recording(7, ends_with_checkpoint=True)
    cut = [p for p in recording.files if p.endswith(".log") and recording.disk.contents(p)]
    for path in cut:
        disk = recording.copy()
        del disk.contents(path)[-1:]

        storage = Storage.open(disk, SMALL, Listener())

        damaged = [log for log in storage.logs.values() if log.offline is not None]
        assert [log.directory in path for log in damaged] == [True], path
    assert cut


def test_a_journal_that_was_cut_is_refused():
    """Groups of the usual size lie inside of what was zeroed ahead of them."""
    disk = MemoryDisk()
    storage = Storage.open(disk, StorageSettings(reserve_bytes=0), Listener())
    ends = []
    for number in range(50):
        storage.add([Meta(b"%d" % number)], Now(0, 0))
        storage.flush()
        ends.append(storage._journal.tip.offset)
    disk.kill()
    for size in (ends[2], ends[25] + 3, ends[48]):
        cut = deepcopy(disk)
        del cut.contents("journal/0001.wal")[size:]
        with pytest.raises(CorruptJournal, match=rf"0001\.wal is damaged at byte {size}"):
            Storage.open(cut, StorageSettings(reserve_bytes=0), Listener())
