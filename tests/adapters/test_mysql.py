"""MySQL and MariaDB: statements that commit by themselves, and settings that can only be read."""

import threading

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from dualwrite.adapters.sql import SqlStore
from dualwrite.adapters.sql.mysql import MySql
from dualwrite.errors import ConfigurationError, InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import CommitUnknown
from tests.adapters.databases import SqlDatabase
from tests.dualwrite.waiting import wait_until
from tests.servers.cutting_proxy import CuttingProxy

FIRST = PreparedTxnState(7, 1)


@pytest.fixture
def database(mysql_url):
    found = SqlDatabase(mysql_url, lock_timeout=1.0)
    yield found
    found.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE sneaky (a INT)",
        "  /* why not */ alter table item add b int",
        "TRUNCATE item",
        "LOCK TABLES item WRITE",
        "START TRANSACTION",
        "SET autocommit = 1",
        "SET @@session.autocommit = 1",
        "SET foreign_key_checks = 0, autocommit = 1",
        "-- so\nRESET QUERY CACHE",
        "# so\nCHECK TABLE item",
        "XA COMMIT 'x'",
    ],
)
def test_statement_that_commits_by_itself_is_recognised(statement):
    assert MySql().commits_implicitly(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO item VALUES ('CREATE TABLE x')",
        "CREATE TEMPORARY TABLE t (a INT)",
        "SET @note = 'autocommit'",
        "UPDATE item SET `key` = 'autocommit'",
    ],
)
def test_harmless_statement_is_let_through(statement):
    assert not MySql().commits_implicitly(statement)


def test_ddl_inside_a_dual_write_is_refused(database):
    store = database.open()
    transaction = store.begin()
    connection = transaction.resource("connection")
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    with pytest.raises(InvalidTxnState, match="by itself"):
        connection.execute(text("CREATE TABLE sneaky (a INT)"))
    transaction.rollback()
    assert not database.has("a")


def test_failed_statement_does_not_doom_the_transaction(database):
    """Unlike PostgreSQL: what was written before and after the failure is committed."""
    store = database.open()
    fence = store.claim("app-0").fence
    transaction = store.begin()
    connection = transaction.resource("connection")
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    with pytest.raises(IntegrityError):
        connection.execute(text("INSERT INTO item VALUES ('a')"))
    store.remember(transaction.handle, "app-0", FIRST, fence)
    transaction.commit()
    assert database.has("a")
    assert store.recall("app-0", fence) == FIRST


def test_t2_swallowed_deadlock_commits_nothing(database):
    """The server rolls the whole transaction back, and begins another with the next statement."""
    store = database.open()
    fence = store.claim("app-0").fence
    transaction = store.begin()
    connection = transaction.resource("connection")
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    with database.engine.connect() as other:
        other.execute(text("INSERT INTO item VALUES ('b'), ('c'), ('d')"))  # the heavier one wins
        waiting = threading.Thread(target=lambda: other.execute(lock_of("a")))
        waiting.start()
        wait_until(lambda: waits_for_a_lock(database))
        with pytest.raises(OperationalError, match="Deadlock"):
            connection.execute(lock_of("b"))
        waiting.join()
        other.rollback()
    connection.execute(text("INSERT INTO item VALUES ('e')"))
    transaction.flush()
    store.remember(transaction.handle, "app-0", FIRST, fence)
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        transaction.commit()
    assert not database.has("e")
    assert store.recall("app-0", fence) == PreparedTxnState.NONE


def lock_of(key):
    return text(f"SELECT * FROM item WHERE `key` = '{key}' FOR UPDATE")


def waits_for_a_lock(database):
    with database.engine.connect() as connection:
        return connection.execute(
            text("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        ).scalar_one()


def test_procedure_that_commits_is_noticed(database):
    """Its text shows nothing of it; what it has committed is final, and nothing follows it to Kafka."""
    with database.engine.begin() as connection:
        connection.execute(text("CREATE OR REPLACE PROCEDURE sneaky() BEGIN COMMIT; END"))
    transaction = database.open().begin()
    connection = transaction.resource("connection")
    connection.execute(text("INSERT INTO item VALUES ('a')"))
    connection.execute(text("CALL sneaky()"))
    connection.execute(text("INSERT INTO item VALUES ('b')"))
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        transaction.commit()
    assert not database.has("b")


def test_two_phase_session_is_refused(database):
    """Its COMMIT is another one, which nobody here would see."""
    with (
        Session(database.engine, twophase=True) as session,
        pytest.raises(ConfigurationError, match="two-phase"),
    ):
        database.open().begin(session)


def test_lost_answer_is_unknown_and_a_claim_settles_it(database):
    port = make_url(database.url).port
    fence = database.open().claim("app-0").fence
    with CuttingProxy(port) as proxy:
        through = SqlStore(make_url(database.url).set(host="127.0.0.1", port=proxy.port))
        transaction = through.begin()
        database.write(transaction, "a")
        transaction.flush()
        through.remember(transaction.handle, "app-0", FIRST, fence)
        driver = transaction.resource("connection").connection.driver_connection
        commit = driver.commit
        driver.commit = lambda: proxy.cut_answers() or commit()
        with pytest.raises(CommitUnknown):
            transaction.commit()
        assert proxy.cut.wait(timeout=30)
        through.close()

    assert database.open().claim("app-0", fence).state == FIRST
    assert database.has("a")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(1213, "rolled_back"), (1451, "rolled_back"), (2013, "unknown"), (1180, "unknown")],
)
def test_answers_to_commit(number, outcome):
    assert MySql().commit_outcome(Exception(number, "the server's words")) == outcome


def test_relaxed_log_flushing_is_refused_unless_accepted(database):
    with database.engine.connect() as connection:
        connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))
    try:
        with pytest.raises(ConfigurationError, match="innodb_flush_log_at_trx_commit is 2"):
            database.open().claim("app-0")
        accepting = SqlStore(database.engine, accept={"innodb_flush_log_at_trx_commit"})
        assert accepting.claim("app-0").fence == 1
    finally:
        with database.engine.connect() as connection:
            connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))


def test_autocommit_is_refused(database):
    engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        database.open().begin(connection)
    engine.dispose()


def test_lock_wait_of_a_users_connection_is_left_as_it_was(database):
    engine = create_engine(database.url, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        before = connection.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar()
    SqlStore(engine, lock_timeout=3.0).claim("app-0")
    with engine.connect() as connection:
        after = connection.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar()
    engine.dispose()
    assert before == after
