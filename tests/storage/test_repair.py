"""The repair command on a directory of the file system."""

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import (
    Append,
    CorruptJournal,
    CreateLog,
    LogOffline,
    Meta,
    RealDisk,
    Storage,
    StorageSettings,
)
from dualwrite.broker.storage.repair import main
from dualwrite.wire.records import build_batch, control_batch
from tests.storage.workload import Listener, committed_of, key_of

KEY, OTHER = key_of(1), key_of(2)
NOW = Now(1_700_000_000_000, 0)
SETTINGS = StorageSettings(index_interval_bytes=100, reserve_bytes=1 << 16)


def open_storage(path):
    listener = Listener()
    return Storage.open(RealDisk(path), SETTINGS, listener), listener


def put(storage, number, **producer):
    batch = build_batch([(b"k", b"%d" % number, None, NOW.wall_ms)], **producer)
    storage.add([Append(KEY, batch), Append(OTHER, batch), Meta(b"%d" % number)], NOW)
    storage.flush()


def damage(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.fixture
def data_dir(tmp_path):
    storage, _ = open_storage(tmp_path / "data")
    storage.add([CreateLog(KEY), CreateLog(OTHER)], NOW)
    for number in range(30):
        put(storage, number)
    storage.close()
    return tmp_path / "data"


def test_a_sound_directory(data_dir, capsys):
    assert main([str(data_dir)]) == 0
    assert "2 logs, nothing damaged" in capsys.readouterr().out
    storage, listener = open_storage(data_dir)
    assert storage.logs[KEY].end == 30
    assert len(listener.metas) == 30
    storage.close()


def test_a_damaged_journal_is_cut(data_dir, capsys):
    journal = data_dir / "journal" / "0001.wal"
    if not any(journal.read_bytes()[:64]):
        journal = data_dir / "journal" / "0002.wal"
    damage(journal, 2_000)
    with pytest.raises(CorruptJournal, match="--cut-journal"):
        open_storage_and_close(data_dir)
    assert main([str(data_dir)]) == 1
    assert "is damaged at byte" in capsys.readouterr().err

    assert main([str(data_dir), "--cut-journal"]) == 0

    storage, listener = open_storage(data_dir)
    kept = storage.logs[KEY].end
    assert 0 < kept < 30
    assert listener.metas == [b"%d" % number for number in range(kept)]
    put(storage, 99)
    storage.close()
    storage, _ = open_storage(data_dir)
    assert storage.logs[KEY].end == kept + 1
    storage.close()


def open_storage_and_close(path):
    disk = RealDisk(path)
    try:
        Storage.open(disk, SETTINGS, Listener()).close()
    except CorruptJournal:
        disk.close()
        raise


def test_damaged_stretches_are_dropped(data_dir, capsys):
    storage, listener = open_storage(data_dir)
    batch = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    put(storage, 30, **batch)
    marker = control_batch(
        commit=False, producer_id=5, producer_epoch=1, coordinator_epoch=0, timestamp_ms=0
    )
    storage.add([Append(KEY, marker)], NOW)
    put(storage, 31, **{**batch, "producer_epoch": 1})
    committed = control_batch(
        commit=True, producer_id=5, producer_epoch=2, coordinator_epoch=0, timestamp_ms=0
    )
    storage.add([Append(KEY, committed)], NOW)
    storage.flush()
    before = committed_of(storage.logs[KEY])
    storage.checkpoint(listener.snapshot())
    segment = data_dir / storage.logs[KEY].active.path
    at = segment.read_bytes().index(marker[8:12] + bytes(4) + marker[16:])
    storage.close()
    damage(segment, 10)
    damage(segment, at)

    storage, _ = open_storage(data_dir)
    with pytest.raises(LogOffline, match=r"\.log is damaged at byte 0"):
        storage.logs[KEY].read(0, 100)
    assert storage.logs[KEY].offline
    assert len(committed_of(storage.logs[OTHER])) == 30
    storage.close()
    assert main([str(data_dir)]) == 1
    assert "is damaged at byte 0" in capsys.readouterr().out

    assert main([str(data_dir), "--drop-damaged"]) == 0

    storage, _ = open_storage(data_dir)
    log = storage.logs[KEY]
    after = committed_of(log)
    assert after
    assert set(after) < set(before)
    assert after[-1][2] == b"31"
    assert all(value != b"30" for _, _, value in after)
    put(storage, 32)
    assert log.offline is None
    storage.close()
    assert main([str(data_dir)]) == 0
