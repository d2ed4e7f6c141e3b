"""The stores from outside: constructors, the protocol, the tables."""

import inspect
import subprocess
import sys

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy import inspect as inspect_database

from dualwrite import ConfigurationError, Fenced, PreparedTxnState
from dualwrite.adapters.opening import open_store
from dualwrite.adapters.rocksdb import RocksDbStore
from dualwrite.adapters.sql import SqlStore
from dualwrite.adapters.zookeeper import ZooKeeperStore
from dualwrite.store import StoreUnavailable

STATE = PreparedTxnState(7, 42)


def positional(kind):
    parameters = inspect.signature(kind).parameters.values()
    return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def test_constructors():
    """A store takes its database first; table, schema and root have defaults."""
    assert positional(SqlStore)[1:3] == [("table", "kafka_transaction_state"), ("schema", None)]
    assert len(positional(RocksDbStore)) == 1
    assert positional(ZooKeeperStore)[1] == ("root", "/kafka_transaction_state")


@pytest.mark.parametrize("kind", [SqlStore, RocksDbStore, ZooKeeperStore])
def test_protocol(kind):
    """Six calls are all that the recipe with a bare producer needs."""
    for name, arguments in {
        "claim": ["id", "expect"],
        "remember": ["handle", "id", "state", "fence"],
        "recall": ["id", "fence"],
        "release": ["id", "fence"],
        "rows": ["app"],
        "durability": [],
    }.items():
        assert [given for given, _ in positional(getattr(kind, name))[1:]] == arguments, name


@pytest.fixture(params=["sql", "rocksdb"])
def store(request, tmp_path):
    if request.param == "sql":
        made = SqlStore(f"sqlite:///{tmp_path / 'db'}", create=True)
    else:
        made = RocksDbStore(tmp_path / "rocks")
    yield made
    made.close()


def test_claim_remember_recall_release(store):
    """Every claim bumps the fence; only its holder writes, reads and releases."""
    first = store.claim("orders-0")
    assert (first.state, first.fence) == (PreparedTxnState(), 1)
    local = store.begin()
    store.remember(local.handle, "orders-0", STATE, first.fence)
    local.commit()
    assert store.recall("orders-0", first.fence) == STATE
    second = store.claim("orders-0", expect=first.fence)
    assert (second.state, second.fence) == (STATE, 2)
    with pytest.raises(Fenced):
        store.claim("orders-0", expect=first.fence)
    with pytest.raises(Fenced):
        store.recall("orders-0", first.fence)
    local = store.begin()
    with pytest.raises(Fenced):
        store.remember(local.handle, "orders-0", STATE, first.fence)
        local.commit()
    local.rollback()
    assert not store.release("orders-0", first.fence)
    assert store.release("orders-0", second.fence)


def test_rows_of_an_app_are_matched_in_full(store):
    """No app sees the rows of another one whose name begins alike."""
    for name in ("orders-0", "orders-10", "orders-2", "orders-eu-0", "orders"):
        store.claim(name)
    found = [row.transactional_id for row in store.rows("orders")]
    assert found == ["orders-0", "orders-2", "orders-10"]


def test_durability_is_told(store):
    """A store tells what an acknowledged commit depends on."""
    assert store.durability().checks
    assert store.durability().is_safe


def test_tables(tmp_path):
    """Four tables by the KIP's names, for Alembic or create_all."""
    metadata = MetaData()
    SqlStore.table(metadata)
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}")
    metadata.create_all(engine)
    found = inspect_database(engine)
    base = "kafka_transaction_state"
    assert set(found.get_table_names()) == {
        base,
        f"{base}_lease",
        f"{base}_heuristics",
        f"{base}_outbox",
    }
    columns = {column["name"] for column in found.get_columns(base)}
    assert {
        "transactional_id",
        "prepared_txn_state",
        "seq",
        "fence",
        "owner",
        "cluster_id",
        "updated_at",
    } <= columns
    assert found.get_pk_constraint(base)["constrained_columns"] == ["transactional_id"]
    lease = {column["name"] for column in found.get_columns(f"{base}_lease")}
    assert lease == {"owner", "lease_until"}
    assert found.get_pk_constraint(f"{base}_lease")["constrained_columns"] == ["owner"]
    engine.dispose()


@pytest.mark.parametrize("names", [{"table": "a; DROP"}, {"schema": 'x"'}, {"table": ""}])
def test_names_are_validated(tmp_path, names):
    """Names of tables never reach SQL unchecked."""
    with pytest.raises(ConfigurationError):
        SqlStore(f"sqlite:///{tmp_path / 'db'}", **names)


@pytest.mark.parametrize("wrong", [{"table": None}, {"table": 5}, {"schema": 5}], ids=str)
def test_names_are_text(wrong):
    """A name of another type is a configuration error, too."""
    with pytest.raises(ConfigurationError):
        SqlStore("sqlite://", **wrong)


@pytest.mark.parametrize("kind", [SqlStore, RocksDbStore, ZooKeeperStore, open_store])
@pytest.mark.parametrize(
    "wrong", [None, 5, "", object()], ids=["None", "number", "empty", "object"]
)
def test_what_is_no_database(kind, wrong):
    """A store says at once that it was given nothing to keep its rows in."""
    with pytest.raises(ConfigurationError):
        kind(wrong)


@pytest.mark.parametrize("root", [None, 5, "", "/", "no-slash", "/a b", "/a//b", "/a/../b"])
def test_roots_in_zookeeper(root):
    """A root that is no path of nodes is refused before anybody is asked."""
    with pytest.raises(ConfigurationError, match="root"):
        ZooKeeperStore("127.0.0.1:1", root)


def test_closed_rocksdb_store_says_so(tmp_path):
    """After closing, every call tells why it cannot be done."""
    store = RocksDbStore(tmp_path / "db")
    store.close()
    for call in (
        lambda: store.claim("orders-0"),
        lambda: store.recall("orders-0", 1),
        lambda: store.release("orders-0", 1),
        store.rows,
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()


def test_missing_tables_are_named(tmp_path):
    """Without tables the error says which command makes them."""
    store = SqlStore(f"sqlite:///{tmp_path / 'db'}")
    with pytest.raises(ConfigurationError, match="dualwrite schema apply"):
        store.claim("orders-0")
    store.close()


@pytest.mark.parametrize("opened", [open_store, SqlStore])
@pytest.mark.parametrize("url", ["", "nonsense", "no-such://x", "oracle://h/x"])
def test_wrong_urls(opened, url):
    """A URL that names no store is a configuration error."""
    with pytest.raises(ConfigurationError, match="store"):
        opened(url)


def test_missing_extras_are_named():
    """Without an optional package the error says which extra to install."""
    program = """
import sys
for name in ("rocksdict", "kazoo", "psycopg", "pymysql", "aiosqlite", "starlette"):
    sys.modules[name] = None
from dualwrite import ConfigurationError
from dualwrite.adapters.opening import open_store
for url, extra in {"rocksdb:/x": "rocksdb", "zookeeper://h:1/x": "zookeeper",
                   "postgresql://h/x": "postgres", "mysql://h/x": "mysql",
                   "sqlite+aiosqlite://": "async"}.items():
    try:
        open_store(url)
    except ConfigurationError as error:
        assert f"dualwrite[{extra}]" in str(error), (url, error)
    else:
        raise AssertionError(url)
for module, extra in {"adapters.rocksdb": "rocksdb", "adapters.zookeeper": "zookeeper",
                      "recipes.console": "console"}.items():
    try:
        __import__(f"dualwrite.{module}")
    except ModuleNotFoundError as error:
        assert f"dualwrite[{extra}]" in str(error), (module, error)
    else:
        raise AssertionError(module)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
