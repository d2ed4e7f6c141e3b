"""SQLite: its one write lock, and a default that loses the last commit at a power loss."""

import sqlite3
import sys

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from dualwrite.adapters.sql import SqlStore
from dualwrite.errors import ConfigurationError, InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import CannotDecideYet
from tests.adapters.databases import Item, SqlDatabase

FIRST = PreparedTxnState(7, 1)


@pytest.fixture
def database(tmp_path):
    found = SqlDatabase(f"sqlite:///{tmp_path}/state.db")
    yield found
    found.close()


def pragmas(connection):
    read = connection.exec_driver_sql
    return (
        read("PRAGMA journal_mode").scalar_one(),
        read("PRAGMA synchronous").scalar_one(),
    )


def test_own_engine_uses_wal_and_syncs_every_commit(tmp_path):
    store = SqlStore(f"sqlite:///{tmp_path}/own.db", create=True)
    transaction = store.begin()
    assert pragmas(transaction.resource("connection")) == ("wal", 3)
    transaction.rollback()
    store.durability().require()
    store.close()


def test_python_default_is_forced_to_extra(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/given.db")
    with engine.connect() as connection:
        assert pragmas(connection) == ("delete", 2)
    store = SqlStore(engine, create=True)

    with Session(engine) as session:
        transaction = store.begin(session)
        assert pragmas(session.connection()) == ("delete", 3)
        transaction.rollback()
    engine.dispose()


def test_hook_that_weakens_new_connections_is_overruled(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/given.db")

    @event.listens_for(engine, "connect")
    def relaxed(connection, _):
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    store = SqlStore(engine, create=True)
    with engine.connect() as connection:
        assert pragmas(connection) == ("wal", 3)
    store.close()
    engine.dispose()


def test_weak_setting_inside_an_open_transaction_is_refused(database):
    store = database.open()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
        connection.execute(text("INSERT INTO item VALUES ('a')"))
        with pytest.raises(ConfigurationError, match="synchronous is NORMAL"):
            store.begin(connection)
        connection.rollback()


def test_database_in_memory_is_refused_unless_accepted():
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="journal_mode is memory"):
        SqlStore(engine, create=True).claim("app-0")
    assert SqlStore(engine, accept={"journal_mode"}).claim("app-0").fence == 1
    engine.dispose()


def test_reader_that_writes_later_waits_for_the_lock(database):
    """A deferred transaction that read first would fail at once, whatever the timeout."""
    store = database.open()
    fences = [store.claim("app-0").fence, store.claim("app-1").fence]
    reader = store.begin()
    reader.resource("session").get(Item, "a")

    writer = store.begin()
    database.write(writer, "a")
    writer.flush()
    store.remember(writer.handle, "app-0", FIRST, fences[0])
    writer.commit()

    database.write(reader, "b")
    reader.flush()
    store.remember(reader.handle, "app-1", FIRST, fences[1])
    reader.commit()
    assert database.has("a")
    assert database.has("b")


def test_write_lock_is_taken_late(database):
    store = database.open()
    transaction = store.begin()
    database.write(transaction, "a")

    assert store.claim("app-1").fence == 1
    transaction.flush()
    with pytest.raises(CannotDecideYet):
        store.claim("app-2")
    transaction.rollback()


def test_timeout_of_a_users_connection_is_left_as_it_was(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/given.db", pool_size=1, max_overflow=0)
    store = SqlStore(engine, create=True, lock_timeout=0.123)
    store.claim("app-0")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 5000
    engine.dispose()


def test_explicit_begin_hook_is_no_autocommit(database):
    """SQLAlchemy's documented recipe switches the driver's own BEGIN off."""
    engine = create_engine(database.url)

    @event.listens_for(engine, "connect")
    def without_begin(connection, _):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN")

    store = SqlStore(engine)
    fence = store.claim("app-0").fence
    with Session(engine) as session:
        transaction = store.begin(session)
        session.add(Item(key="a"))
        store.remember(transaction.handle, "app-0", FIRST, fence)
        transaction.commit()
    engine.dispose()
    assert database.has("a")


def test_autocommit_is_refused(database):
    engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        database.open().begin(connection)
    engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the driver has no such mode")
def test_autocommit_of_the_driver_is_refused(database):
    engine = create_engine(database.url, connect_args={"autocommit": True})
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        database.open().begin(connection)
    with pytest.raises(ConfigurationError, match="autocommit"):
        SqlStore(engine).claim("app-0")
    engine.dispose()


def test_failed_statement_does_not_doom_the_transaction(database):
    """Unlike PostgreSQL: what was written before and after the failure is committed."""
    store = database.open()
    fence = store.claim("app-0").fence
    transaction = store.begin()
    connection = transaction.resource("connection")
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    with pytest.raises(Exception, match="UNIQUE"):
        connection.execute(text("INSERT INTO item VALUES ('a')"))
    store.remember(transaction.handle, "app-0", FIRST, fence)
    transaction.commit()
    assert database.has("a")
    assert store.recall("app-0", fence) == FIRST


@pytest.mark.parametrize("is_ours", [True, False])
def test_t2_swallowed_error_that_rolls_everything_back_commits_nothing(database, is_ours):
    """Some errors end the whole transaction, and the next statement begins another."""
    store = database.open()
    fence = store.claim("app-0").fence
    with database.engine.begin() as connection:
        connection.execute(text("INSERT INTO item VALUES ('there')"))
    with Session(database.engine) as session:
        transaction = store.begin(None if is_ours else session)
        connection = transaction.resource("connection")
        connection.execute(text("INSERT INTO item VALUES ('a')"))
        with pytest.raises(IntegrityError):
            connection.execute(text("INSERT OR ROLLBACK INTO item VALUES ('there')"))
        connection.execute(text("INSERT INTO item VALUES ('b')"))
        with pytest.raises(InvalidTxnState, match="ended by itself"):
            transaction.flush()
        transaction.rollback()
    assert not database.has("b")
    assert store.recall("app-0", fence) == PreparedTxnState.NONE


def test_error_before_the_first_write_costs_nothing(database):
    store = database.open()
    transaction = store.begin()
    connection = transaction.resource("connection")
    with pytest.raises(OperationalError, match="no such table"):
        connection.execute(text("SELECT * FROM missing"))
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    transaction.flush()
    transaction.commit()
    assert database.has("a")


def test_ids_lie_in_the_file_as_text(database, tmp_path):
    database.open().claim("app-0")
    with sqlite3.connect(tmp_path / "state.db") as raw:
        rows = raw.execute("SELECT transactional_id, fence FROM kafka_transaction_state")
        assert rows.fetchall() == [("app-0", 1)]
    raw.close()
