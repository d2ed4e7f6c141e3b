"""The power goes at every operation that the storage asks of its disk."""

from random import Random

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import ProducerStates
from dualwrite.broker.storage import Append, CreateLog, LogStart, StorageError, StorageSettings
from dualwrite.broker.storage import storage as storage_module
from dualwrite.broker.storage.entry import Roll
from dualwrite.broker.storage.files import FileCache
from dualwrite.broker.storage.memory_disk import Fault, MemoryDisk, MemoryFile, PowerLoss
from dualwrite.broker.storage.storage import Storage
from dualwrite.wire.records import build_batch, control_batch
from tests.storage.workload import Listener, Workload, key_of, say, state_of

NOW = Now(1_700_000_000_000, 0)
STEPS = 120
STOPS = (Fault.STOP_BEFORE, Fault.STOP_HALFWAY, Fault.STOP_AFTER)


def run(disk, seed, steps=STEPS):
    """Run until the end or until the power goes; the workload either way."""
    work = None
    try:
        work = Workload(disk, seed)
        for _ in range(steps):
            work.step()
    except PowerLoss:
        pass
    return work


def count_operations(seed):
    disk = MemoryDisk(seed=seed)
    work = run(disk, seed)
    assert work.storage.position > STEPS / 2
    return disk.operations


def check_recovered(work, durable, position):
    """After a crash the storage is exactly where it was at some position in between."""
    known = work.states
    seen = dict(work.last_stable)
    work.records_states = False
    work.open_storage()
    storage = work.storage
    assert durable <= storage.position <= position
    assert storage.durable == storage.position
    assert [log.offline for log in storage.logs.values() if log.offline] == []
    assert state_of(storage, work.listener) == known[storage.position]
    for key, log in storage.logs.items():
        assert log.high_watermark == log.end
        if key in seen:
            assert log.last_stable >= seen[key], "last stable offset went back"


def crash_at(seed, operation, fault, mode):
    disk = MemoryDisk(seed=seed)
    disk.fault = lambda number, what, path: fault if number == operation else None
    work = run(disk, seed)
    chance = Random(f"{seed}/{operation}/{fault}/{mode}")
    restart(disk, mode, chance)
    if work is None:  # not even the first open was done
        work = Workload(disk, seed)
        assert work.storage.position == 0
    else:
        check_recovered(work, work.storage.durable, work.storage.position)
    # Life goes on, and the next crash finds it so.
    work.records_states = True
    work.note()
    for _ in range(15):
        work.step()
    durable, position = work.storage.durable, work.storage.position
    restart(disk, "nothing" if mode == "kill" else mode, chance)
    check_recovered(work, durable, position)


def restart(disk, mode, chance):
    if mode == "kill":
        disk.kill()
    else:
        disk.crash(None if mode == "nothing" else chance, reorder=mode == "reorder")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["kill", "nothing", "prefix", "reorder"])
def test_power_loss_at_any_operation(mode, request):
    chance = Random(mode)
    for seed in range(40 if request.config.getoption("--long") else 2):
        total = count_operations(seed)
        cases = [(operation, fault) for operation in range(1, total + 1) for fault in STOPS]
        for operation, fault in chance.sample(cases, 60):
            say(seed=seed, operation=operation, of=total, fault=fault, mode=mode)
            crash_at(seed, operation, fault, mode)


def test_names_that_a_killed_process_left_are_durable_before_they_are_built_upon():
    """It was killed between making a name and syncing it; the power goes after its successor's work."""
    for seed in range(2):
        made = []

        def note(number, what, path, made=made):
            if what in ("create", "rename") and not path.startswith("logs"):
                made.append((number, path))

        disk = MemoryDisk(seed=seed)
        disk.fault = note
        run(disk, seed)
        for operation, path in made:
            say(seed=seed, operation=operation, path=path)
            crash_at(seed, operation, Fault.STOP_AFTER, "kill")
        assert {path.split("/")[0] for _, path in made} >= {"checkpoint.new", "journal"}


def test_what_only_the_checkpoint_names_is_there_for_a_second_crash():
    """A segment with an aborted transaction is dropped, and the log is recovered twice."""
    disk = MemoryDisk()
    settings = StorageSettings(reserve_bytes=0)
    storage = Storage.open(disk, settings, Listener())
    pair = {"producer_id": 1, "producer_epoch": 0}
    batch = build_batch([(b"k", b"v", None, 0)], **pair, base_sequence=0, is_transactional=True)
    abort = control_batch(commit=False, **pair, coordinator_epoch=0, timestamp_ms=0)
    key = key_of(1)
    storage.add([CreateLog(key), Append(key, batch), Append(key, abort), Roll(key, 2)], NOW)
    storage.add([Append(key, build_batch([(b"k", b"w", None, 0)]))], NOW)
    storage.checkpoint(b"")
    storage.add([LogStart(key, 2)], NOW)
    storage.flush()
    expected = state_of(storage, Listener())
    for _ in range(2):
        disk.kill()
        storage = Storage.open(disk, settings, Listener())
        assert storage.logs[key].offline is None
        assert state_of(storage, Listener()) == expected


@pytest.mark.timeout(3600)
def test_power_loss_during_recovery(request):
    seeds = range(300 if request.config.getoption("--long") else 25)
    for seed in seeds:
        say(seed=seed)
        chance = Random(seed)
        disk = MemoryDisk(seed=seed)
        work = run(disk, seed, 60)
        durable, position = work.storage.durable, work.storage.position
        for _ in range(3):
            disk.crash(chance)
            stop = disk.operations + chance.randint(1, 12)
            disk.fault = lambda number, what, path, stop=stop: (
                Fault.STOP_HALFWAY if number == stop else None
            )
            try:
                check_recovered(work, durable, position)
            except PowerLoss:
                continue
            # What one recovery has found, the next must find too.
            durable = work.storage.durable
        disk.crash(chance)
        check_recovered(work, durable, position)


def no_sync_of(folder):
    """A disk that takes fdatasync for done in one folder."""

    def plant(monkeypatch):
        sync = MemoryFile.fdatasync
        monkeypatch.setattr(
            MemoryFile, "fdatasync", lambda file: file.path.startswith(folder) or sync(file)
        )

    return plant


def no_sync_of_names(monkeypatch):
    monkeypatch.setattr(FileCache, "sync_names", lambda files: files.new_names.clear())


def early_removal(monkeypatch):
    """Removes files that the last checkpoint still names."""
    retire = Storage._retire

    def remove(storage, segments):
        retire(storage, segments)
        storage._remove(storage._retired, [])

    monkeypatch.setattr(Storage, "_retire", remove)


def forgets_producers(monkeypatch):
    snapshot = storage_module.encode_snapshot
    monkeypatch.setattr(
        storage_module,
        "encode_snapshot",
        lambda states, aborted_from: snapshot(ProducerStates(), aborted_from=aborted_from),
    )


BUGS = [
    no_sync_of("journal"),
    no_sync_of("logs"),
    no_sync_of_names,
    early_removal,
    forgets_producers,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: getattr(plant, "__name__", "bug"))
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)

    with pytest.raises((AssertionError, KeyError, StorageError, OSError, ValueError)):
        crash_often()


def crash_often():
    chance = Random(1)
    for _ in range(60):
        operation = chance.randint(1, 500)
        say(operation=operation)
        crash_at(0, operation, Fault.STOP_BEFORE, "nothing")
