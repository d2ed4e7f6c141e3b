"""ZooKeeper: conformance, and what is particular to a multi."""

import itertools

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from dualwrite.adapters.conformance import StoreConformance
from dualwrite.adapters.zookeeper import ZooKeeperDecisionLog, ZooKeeperStore
from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import CommitUnknown, Lease, StoreUnavailable
from tests.servers.cutting_proxy import CuttingProxy

FIRST = PreparedTxnState(7, 1)
_roots = itertools.count()


class ZooKeeperDatabase:
    waits_for_writer = False
    has_clock_leases = False
    absent_resource = "session"

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.root = f"/test-{next(_roots)}"
        self.client = KazooClient(hosts=hosts)
        self.client.start()
        self.client.ensure_path(f"{self.root}/data")
        self._stores: list[ZooKeeperStore] = []

    def open(self) -> ZooKeeperStore:
        self._stores.append(ZooKeeperStore(self.client, root=f"{self.root}/state"))
        return self._stores[-1]

    def write(self, transaction, key: str) -> None:
        transaction.resource("multi").create(f"{self.root}/data/{key}", b"written")

    def has(self, key: str) -> bool:
        return self.client.exists(f"{self.root}/data/{key}") is not None

    def close(self) -> None:
        self.client.stop()
        self.client.close()


@pytest.fixture
def database(zookeeper):
    found = ZooKeeperDatabase(zookeeper.hosts)
    yield found
    found.close()


class TestZooKeeper(StoreConformance):
    @pytest.fixture
    def database(self, zookeeper):
        found = ZooKeeperDatabase(zookeeper.hosts)
        yield found
        found.close()


def prepared(database, store, key="a"):
    fence = store.claim("app-0").fence
    transaction = store.begin()
    database.write(transaction, key)
    store.remember(transaction.handle, "app-0", FIRST, fence)
    return fence, transaction


def test_refused_operation_of_the_application_is_raised(database):
    store = database.open()
    fence, transaction = prepared(database, store)
    transaction.commit()
    transaction = store.begin()
    database.write(transaction, "a")
    store.remember(transaction.handle, "app-0", PreparedTxnState(7, 2), fence)

    with pytest.raises(NodeExistsError):
        transaction.commit()
    assert store.recall("app-0", fence) == FIRST


def test_multi_that_is_too_large_is_refused_before_it_is_sent(database):
    store = database.open()
    fence = store.claim("app-0").fence
    transaction = store.begin()
    transaction.resource("multi").create(f"{database.root}/data/big", b"x" * 0xFFFFF)
    store.remember(transaction.handle, "app-0", FIRST, fence)

    with pytest.raises(ConfigurationError, match=r"jute\.maxbuffer"):
        transaction.commit()
    assert not database.has("big")


def test_lost_answer_is_settled_by_a_claim(database, zookeeper):
    with CuttingProxy(zookeeper.port) as proxy:
        client = KazooClient(hosts=f"127.0.0.1:{proxy.port}")
        client.start()
        store = ZooKeeperStore(client, root=f"{database.root}/state")
        fence, transaction = prepared(database, store)
        # The versions are read before the multi, so only its own answer may be lost.
        sent = client.transaction

        def cutting():
            request = sent()
            commit = request.commit

            def cut_and_commit():
                proxy.cut_answers()
                return commit()

            request.commit = cut_and_commit
            return request

        client.transaction = cutting
        with pytest.raises(CommitUnknown):
            transaction.commit()
        assert proxy.cut.wait(timeout=30)
        client.stop()
        client.close()

    claim = database.open().claim("app-0", fence)
    assert (claim.state == FIRST) == database.has("a")
    assert claim.state == FIRST


def test_claim_makes_a_late_multi_fail(database):
    store = database.open()
    _, transaction = prepared(database, store)
    newer = store.claim("app-0")

    with pytest.raises(Fenced):
        transaction.commit()
    assert not database.has("a")
    assert store.recall("app-0", newer.fence) == PreparedTxnState.NONE


def test_lease_ends_with_the_session(database):
    holder = ZooKeeperStore(database.hosts, root=f"{database.root}/state")
    holder.claim("app-0", owner="holder")
    holder.lease("holder", 10)
    watcher = database.open()
    assert [row.lease for row in watcher.rows("app")] == [Lease.LIVE]

    holder.close()

    assert [row.lease for row in watcher.rows("app")] == [Lease.EXPIRED]


def test_sql_session_is_not_taken_for_a_multi(database):
    with pytest.raises(ConfigurationError, match="atomic"):
        database.open().begin(object())


def test_decision_log_is_named_so(database):
    log = ZooKeeperDecisionLog(database.client, root=f"{database.root}/decisions")
    fence = log.claim("app-0").fence
    transaction = log.begin()
    log.remember(transaction.handle, "app-0", FIRST, fence)
    transaction.commit()

    assert log.recall("app-0", fence) == FIRST
    assert "no atomicity" in ZooKeeperDecisionLog.__doc__


@pytest.mark.parametrize("root", ["state", "/a//b", "/../a", "/a/"])
def test_root_is_checked(database, root):
    with pytest.raises(ConfigurationError):
        ZooKeeperStore(database.client, root=root)


def test_unreachable_server_is_named(monkeypatch):
    monkeypatch.setattr("dualwrite.adapters.zookeeper.START_SECONDS", 0.5)
    with pytest.raises(StoreUnavailable):
        ZooKeeperStore("127.0.0.1:1")
