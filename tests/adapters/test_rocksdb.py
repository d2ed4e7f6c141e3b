"""RocksDB: conformance, the process lock, and what is particular to a WriteBatch."""

import subprocess
import sys

import pytest
from rocksdict import Options, Rdict

from dualwrite.adapters.conformance import StoreConformance
from dualwrite.adapters.rocksdb import RocksDbStore
from dualwrite.errors import ConfigurationError
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import Lease, StoreUnavailable, Verdict


class RocksDatabase:
    waits_for_writer = False
    has_clock_leases = True
    absent_resource = "session"

    def __init__(self, path, is_raw: bool) -> None:
        self.db = Rdict(str(path), Options(raw_mode=is_raw))
        self._stores: list[RocksDbStore] = []

    def open(self) -> RocksDbStore:
        self._stores.append(RocksDbStore(self.db))
        return self._stores[-1]

    def write(self, transaction, key: str) -> None:
        transaction.resource("batch").put(key.encode(), b"written")

    def has(self, key: str) -> bool:
        return self.db.get(key.encode()) is not None

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self.db.close()


class TestRocksDb(StoreConformance):
    @pytest.fixture
    def database(self, tmp_path):
        found = RocksDatabase(tmp_path / "db", is_raw=False)
        yield found
        found.close()


class TestRawRocksDb(StoreConformance):
    @pytest.fixture
    def database(self, tmp_path):
        found = RocksDatabase(tmp_path / "db", is_raw=True)
        yield found
        found.close()


def test_everything_survives_closing_and_leases_do_not(tmp_path):
    store = RocksDbStore(tmp_path / "db")
    fence = store.claim("app-0", owner="me").fence
    transaction = store.begin()
    transaction.resource("batch").put(b"order", b"1")
    store.remember(transaction.handle, "app-0", PreparedTxnState(7, 1), fence)
    transaction.commit()
    store.close()
    del transaction

    again = RocksDbStore(tmp_path / "db")
    row = again.row("app-0")
    assert (str(row.state), row.fence, row.lease) == ("7:1", fence, Lease.EXPIRED)
    assert again.db.get(b"order") == b"1"
    again.close()


def test_second_process_cannot_take_over(tmp_path):
    path = tmp_path / "db"
    program = (
        "import sys\n"
        "from dualwrite.adapters.rocksdb import RocksDbStore\n"
        f"store = RocksDbStore({str(path)!r})\n"
        "store.claim('app-0', owner='holder')\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            RocksDbStore(path)
        holder.kill()
        holder.wait()

    store = RocksDbStore(path)
    assert store.claim("app-0", owner="next").fence == 2
    store.close()


def test_sync_is_forced(tmp_path):
    store = RocksDbStore(tmp_path / "db")
    (check,) = store.durability().checks
    assert (check.name, check.verdict) == ("WriteOptions.sync", Verdict.FORCED)
    store.close()


def test_only_own_transactions_can_remember(tmp_path):
    store = RocksDbStore(tmp_path / "db")
    fence = store.claim("app-0").fence
    with pytest.raises(ConfigurationError):
        store.remember(store.db, "app-0", PreparedTxnState(7, 1), fence)
    store.close()
