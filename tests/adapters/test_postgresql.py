"""PostgreSQL: takeover against an open writer, COMMITs that fail or get lost, and refusals."""

import threading

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from dualwrite.adapters.sql import SqlStore
from dualwrite.errors import (
    ConfigurationError,
    Fenced,
    InvalidTxnState,
    OutcomeUnknown,
    RetryableError,
)
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import CannotDecideYet, CommitUnknown, StoreUnavailable, Verdict
from tests.adapters.databases import Item, SqlDatabase
from tests.servers.cutting_proxy import CuttingProxy

FIRST, SECOND = PreparedTxnState(7, 1), PreparedTxnState(7, 2)


@pytest.fixture
def database(postgres_url):
    found = SqlDatabase(postgres_url)
    yield found
    found.close()


@pytest.fixture
def store(database):
    return database.open()


def opened(database, store, key="a", state=FIRST, fence=None):
    """A writer that has written data and state, and has not committed."""
    fence = store.claim("app-0").fence if fence is None else fence
    transaction = store.begin()
    database.write(transaction, key)
    transaction.flush()
    store.remember(transaction.handle, "app-0", state, fence)
    return fence, transaction


class TestTakeover:
    """Kafka's fencing does not reach the database; the claim does."""

    def test_claim_waits_for_a_writer_that_commits(self, database, store):
        patient = SqlStore(database.url, lock_timeout=30)
        _, zombie = opened(database, store)
        claims = []
        thread = threading.Thread(target=lambda: claims.append(patient.claim("app-0")))
        thread.start()
        _wait_for_lock(database)
        zombie.commit()
        thread.join()
        patient.close()

        assert claims[0].state == FIRST
        assert database.has("a")

    def test_claim_waits_for_a_writer_that_rolls_back(self, database, store):
        patient = SqlStore(database.url, lock_timeout=30)
        _, zombie = opened(database, store)
        claims = []
        thread = threading.Thread(target=lambda: claims.append(patient.claim("app-0")))
        thread.start()
        _wait_for_lock(database)
        zombie.rollback()
        thread.join()
        patient.close()

        assert claims[0].state == PreparedTxnState.NONE
        assert not database.has("a")

    def test_wait_is_bounded(self, database, store):
        _, zombie = opened(database, store)
        with pytest.raises(CannotDecideYet, match="an open transaction holds the row") as caught:
            database.open().claim("app-0")
        assert "\n" not in str(caught.value)
        zombie.rollback()

    def test_row_that_is_only_being_inserted_is_waited_for(self, database, store):
        with database.engine.connect() as first:
            first.execute(
                store.tables.state.insert().values(
                    transactional_id="app-0",
                    prepared_txn_state="7:1",
                    fence=1,
                    updated_at=text("now()"),
                )
            )
            with pytest.raises(CannotDecideYet):
                store.claim("app-0")
            first.commit()

        assert (store.claim("app-0").state, store.row("app-0").fence) == (FIRST, 2)

    def test_late_state_write_of_a_zombie_hits_nothing(self, database, store):
        fence = store.claim("app-0").fence
        zombie = store.begin()
        zombie.resource("connection").execute(text("INSERT INTO item VALUES ('a')"))
        newer = database.open().claim("app-0")

        with pytest.raises(Fenced):
            store.remember(zombie.handle, "app-0", FIRST, fence)
        zombie.rollback()
        assert not database.has("a")
        assert store.recall("app-0", newer.fence) == PreparedTxnState.NONE

    def test_snapshot_older_than_the_claim_is_retryable(self, database, store):
        fence = store.claim("app-0").fence
        engine = create_engine(database.url, isolation_level="REPEATABLE READ")
        with Session(engine) as session:
            zombie = store.begin(session)
            assert zombie.reads_from_snapshot
            session.execute(text("SELECT 1 FROM item"))
            database.open().claim("app-0")
            with pytest.raises(RetryableError):
                store.remember(zombie.handle, "app-0", FIRST, fence)
            zombie.rollback()
        engine.dispose()
        assert store.claim("app-0").state == PreparedTxnState.NONE

    def test_paused_recoverer_cannot_decide_from_a_stale_read(self, database, store):
        fence, writer = opened(database, store)
        writer.commit()
        paused = store.claim("app-0", fence)
        newer = database.open().claim("app-0", paused.fence)
        _, writer = opened(database, store, "b", SECOND, newer.fence)
        writer.commit()

        with pytest.raises(Fenced):
            store.recall("app-0", paused.fence)


class TestCommit:
    def test_transaction_with_a_swallowed_error_is_not_committed(self, database, store):
        fence = store.claim("app-0").fence
        transaction = store.begin()
        connection = transaction.resource("connection")
        connection.execute(text("INSERT INTO item VALUES ('a')"))
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1/0"))

        with pytest.raises(InvalidTxnState):
            store.remember(transaction.handle, "app-0", FIRST, fence)
        with pytest.raises(InvalidTxnState):
            transaction.commit()
        assert not database.has("a")

    def test_error_after_the_state_write_is_not_committed(self, database, store):
        """PostgreSQL answers such a COMMIT with ROLLBACK, and no driver raises."""
        fence, transaction = opened(database, store)
        with pytest.raises(DBAPIError):
            transaction.resource("connection").execute(text("SELECT 1/0"))

        with pytest.raises(InvalidTxnState):
            transaction.commit()
        assert not database.has("a")
        assert store.recall("app-0", fence) == PreparedTxnState.NONE

    def test_deferred_constraint_is_a_definite_answer(self, database, store):
        with database.engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS child"))
            connection.execute(
                text(
                    "CREATE TABLE child (key VARCHAR(50)"
                    " REFERENCES item DEFERRABLE INITIALLY DEFERRED)"
                )
            )
        try:
            fence = store.claim("app-0").fence
            transaction = store.begin()
            transaction.resource("connection").execute(text("INSERT INTO child VALUES ('no')"))
            store.remember(transaction.handle, "app-0", FIRST, fence)
            with pytest.raises(IntegrityError):
                transaction.commit()
            assert store.claim("app-0", fence).state == PreparedTxnState.NONE
        finally:
            with database.engine.begin() as connection:
                connection.execute(text("DROP TABLE child"))

    def test_serialization_failure_at_commit_is_retryable(self, database, store):
        engine = create_engine(database.url, isolation_level="SERIALIZABLE")
        fences = [store.claim(f"app-{number}").fence for number in range(2)]
        sessions = [Session(engine), Session(engine)]
        transactions = [store.begin(session) for session in sessions]
        for number, session in enumerate(sessions):
            session.execute(text("SELECT count(*) FROM item")).scalar()
            session.add(Item(key=f"skew-{number}"))
        for number, transaction in enumerate(transactions):
            transaction.flush()
            store.remember(transaction.handle, f"app-{number}", FIRST, fences[number])

        transactions[0].commit()
        with pytest.raises(RetryableError):
            transactions[1].commit()
        for session in sessions:
            session.close()
        engine.dispose()
        assert database.has("skew-0")
        assert not database.has("skew-1")

    @pytest.mark.parametrize("kind", ["own", "session", "connection", "psycopg"])
    def test_lost_answer_is_unknown_and_a_claim_settles_it(self, database, store, postgres, kind):
        fence = store.claim("app-0").fence
        with CuttingProxy(postgres.port) as proxy:
            url = database.url.replace(str(postgres.port), str(proxy.port))
            through = SqlStore(url)
            through.durability()
            handle, close = _handle(kind, url)
            transaction = through.begin(handle)
            _insert(transaction, kind, "a")
            transaction.flush()
            through.remember(transaction.handle, "app-0", FIRST, fence)
            proxy.cut_answers()
            with pytest.raises(CommitUnknown) as lost:
                transaction.commit()
            assert proxy.cut.wait(timeout=30)
            transaction.rollback()
            close()
            through.close()

        assert isinstance(lost.value, OutcomeUnknown)
        assert lost.value.__cause__ is not None
        claim = database.open().claim("app-0", fence)
        assert claim.state == FIRST
        assert database.has("a")

    def test_killed_server_is_unknown_at_commit(self, database, store):
        fence, transaction = opened(database, store)
        pid = transaction.resource("connection").execute(text("SELECT pg_backend_pid()")).scalar()
        with database.engine.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})

        with pytest.raises(CommitUnknown):
            transaction.commit()
        assert SqlStore(database.engine, lock_timeout=10).claim("app-0", fence).seq == 0
        assert not database.has("a")

    def test_interrupt_during_commit_is_unknown(self, database, store, monkeypatch):
        fence, transaction = opened(database, store)

        def interrupt(*_):
            raise KeyboardInterrupt

        # The driver comes behind the guard: COMMIT counts as sent when this strikes.
        with monkeypatch.context() as patch:
            patch.setattr(type(store.engine.dialect), "do_commit", interrupt)
            with pytest.raises(CommitUnknown) as unknown:
                transaction.commit()
        assert isinstance(unknown.value.__cause__, KeyboardInterrupt)
        # The connection is closed, so the claim need not wait for its lock.
        assert SqlStore(database.engine, lock_timeout=10).claim("app-0", fence).seq == 0

    def test_failing_hook_after_commit_does_not_undo_it(self, database, store, caplog):
        fence = store.claim("app-0").fence
        session = Session(database.engine)

        def hook(_):
            raise RuntimeError("mail server is down")

        event.listen(session, "after_commit", hook)
        transaction = store.begin(session)
        session.add(Item(key="a"))
        store.remember(transaction.handle, "app-0", FIRST, fence)
        transaction.commit()
        session.close()

        assert "mail server is down" in caplog.text
        assert database.has("a")
        assert store.recall("app-0", fence) == FIRST

    @pytest.mark.parametrize("used", [(), ("session",), ("connection",), ("connection", "session")])
    def test_session_and_connection_are_one_transaction(self, database, store, used):
        """The session is made when it is asked for; whether it is used decides who sends COMMIT."""
        fence = store.claim("app-0").fence
        transaction = store.begin()
        session = transaction.resource("session")
        for kind in used:
            if kind == "session":
                session.add(Item(key=kind))
            else:
                statement = text("INSERT INTO item VALUES ('connection')")
                transaction.resource("connection").execute(statement)
        store.remember(transaction.handle, "app-0", FIRST, fence)
        assert transaction.resource("session") is session
        transaction.commit()

        assert [kind for kind in ("session", "connection") if database.has(kind)] == sorted(
            used, reverse=True
        )
        assert store.recall("app-0", fence) == FIRST

    def test_session_undoes_what_the_connection_did(self, database, store):
        transaction = store.begin()
        transaction.resource("connection").execute(text("INSERT INTO item VALUES ('a')"))
        transaction.resource("session").rollback()

        with pytest.raises(InvalidTxnState, match="ended"):
            transaction.commit()
        transaction.rollback()
        assert not database.has("a")

    def test_unused_session_cannot_commit_either(self, database, store):
        transaction = store.begin()
        transaction.resource("connection").execute(text("INSERT INTO item VALUES ('a')"))

        with pytest.raises(InvalidTxnState, match="leaving the block"):
            transaction.resource("session").commit()
        transaction.rollback()
        assert not database.has("a")

    def test_error_of_the_flush_is_not_taken_for_one_of_commit(self, database, store):
        fence, transaction = opened(database, store)
        transaction.resource("session").add(Item(key="a"))
        with pytest.raises(Exception, match="a"):
            transaction.commit()
        assert not database.has("a")
        assert store.claim("app-0", fence).state == PreparedTxnState.NONE


class TestHandles:
    @pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
    def test_users_own_transaction_carries_the_state(self, database, store, kind):
        fence = store.claim("app-0").fence
        handle, close = _handle(kind, database.url)
        transaction = store.begin(handle)
        _insert(transaction, kind, "a")
        store.remember(transaction.handle, "app-0", FIRST, fence)
        transaction.commit()
        close()

        assert database.has("a")
        assert store.recall("app-0", fence) == FIRST

    @pytest.mark.parametrize("kind", ["session", "connection", "psycopg"])
    def test_kips_recipe_without_a_transaction_object(self, database, store, kind):
        fence = store.claim("app-0").fence
        handle, close = _handle(kind, database.url)
        if kind == "session":
            handle.add(Item(key="a"))
        else:
            handle.execute("INSERT INTO item VALUES ('a')" if kind == "psycopg" else _SQL_A)
        store.keep_messages(handle, "app-0", FIRST, [b"kept"])
        store.remember(handle, "app-0", FIRST, fence)
        handle.commit()
        close()

        assert database.has("a")
        assert store.recall("app-0", fence) == FIRST
        assert store.kept_messages("app-0", FIRST) == [b"kept"]

    def test_commit_inside_the_block_is_refused(self, database, store):
        with Session(database.engine) as session:
            transaction = store.begin(session)
            session.add(Item(key="a"))
            with pytest.raises(InvalidTxnState, match="leaving the block"):
                session.commit()
            transaction.rollback()
        assert not database.has("a")

    def test_rollback_inside_the_block_ends_the_dual_write(self, database, store):
        fence = store.claim("app-0").fence
        with Session(database.engine) as session:
            transaction = store.begin(session)
            session.add(Item(key="a"))
            session.flush()
            session.rollback()
            with pytest.raises(InvalidTxnState):
                store.remember(transaction.handle, "app-0", FIRST, fence)
            transaction.rollback()

    def test_session_can_be_used_again_after_the_dual_write(self, database, store):
        with Session(database.engine) as session:
            transaction = store.begin(session)
            session.add(Item(key="a"))
            transaction.commit()
            session.add(Item(key="b"))
            session.commit()
        assert database.has("b")

    def test_autocommit_is_refused(self, database, store):
        engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
            store.begin(connection)
        engine.dispose()
        with (
            psycopg.connect(_dsn(database.url), autocommit=True) as driver,
            pytest.raises(ConfigurationError, match="autocommit"),
        ):
            store.begin(driver)

    def test_claims_do_not_mind_an_autocommit_engine(self, database):
        engine = create_engine(database.url, isolation_level="AUTOCOMMIT")
        fence = SqlStore(engine).claim("app-0").fence
        engine.dispose()
        assert fence == 1

    def test_savepoint_cannot_carry_a_dual_write(self, database, store):
        with (
            Session(database.engine) as session,
            session.begin_nested(),
            pytest.raises(InvalidTxnState, match="SAVEPOINT"),
        ):
            store.begin(session)

    def test_savepoints_are_told(self, database, store):
        seen = []
        transaction = store.begin()
        transaction.watch_savepoints(
            lambda name: seen.append(("opened", name)),
            lambda name: seen.append(("rolled back", name)),
        )
        session = transaction.resource("session")
        with session.begin_nested():
            session.add(Item(key="kept"))
        nested = session.begin_nested()
        session.add(Item(key="dropped"))
        session.flush()
        nested.rollback()
        session.execute(text("SAVEPOINT by_hand"))
        session.execute(text("ROLLBACK TO SAVEPOINT by_hand"))
        transaction.commit()

        whats = ["opened", "opened", "rolled back", "opened", "rolled back"]
        assert [what for what, _ in seen] == whats
        assert seen[0][1] != seen[1][1] == seen[2][1]
        assert seen[3][1] == seen[4][1] == "by_hand"
        assert database.has("kept")
        assert not database.has("dropped")

    def test_second_database_in_a_session_is_refused(self, database, store, tmp_path):
        other = create_engine(f"sqlite:///{tmp_path}/other.db")
        with Session(database.engine) as session:
            transaction = store.begin(session)
            with pytest.raises(ConfigurationError, match="second database"):
                session.connection(bind_arguments={"bind": other})
            transaction.rollback()
        other.dispose()

    def test_handle_of_another_database_is_refused(self, store, tmp_path):
        other = create_engine(f"sqlite:///{tmp_path}/other.db")
        with Session(other) as session, pytest.raises(ConfigurationError, match="cover both"):
            store.begin(session)
        other.dispose()


class TestDurability:
    def test_synchronous_commit_is_forced(self, database):
        engine = create_engine(database.url, connect_args={"options": "-c synchronous_commit=off"})
        store = SqlStore(engine)
        verdicts = {check.name: check.verdict for check in store.durability().checks}
        assert verdicts["synchronous_commit"] is Verdict.FORCED

        fence = store.claim("app-0").fence
        transaction = store.begin()
        connection = transaction.resource("connection")
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "off"
        store.remember(transaction.handle, "app-0", FIRST, fence)
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        transaction.commit()
        with engine.connect() as after:
            assert after.execute(text("SHOW synchronous_commit")).scalar() == "off"
        engine.dispose()

    def test_stronger_setting_is_not_weakened(self, database):
        engine = create_engine(
            database.url, connect_args={"options": "-c synchronous_commit=remote_apply"}
        )
        store = SqlStore(engine)
        fence = store.claim("app-0").fence
        transaction = store.begin()
        store.remember(transaction.handle, "app-0", FIRST, fence)
        connection = transaction.resource("connection")
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "remote_apply"
        transaction.rollback()
        engine.dispose()

    def test_unlogged_state_table_is_refused_unless_accepted(self, database, store):
        with database.engine.begin() as connection:
            connection.execute(text("ALTER TABLE kafka_transaction_state SET UNLOGGED"))
        try:
            with pytest.raises(ConfigurationError, match="state_table is unlogged"):
                store.claim("app-0")
            accepting = SqlStore(database.engine, accept={"state_table"})
            assert accepting.claim("app-0").fence == 1
            assert not accepting.durability().is_safe
        finally:
            with database.engine.begin() as connection:
                connection.execute(text("ALTER TABLE kafka_transaction_state SET LOGGED"))


class TestSchema:
    def test_missing_tables_are_named_with_the_command(self, postgres_url):
        store = SqlStore(postgres_url, table="never_made")
        with pytest.raises(ConfigurationError, match="dualwrite schema apply"):
            store.claim("app-0")
        with pytest.raises(ConfigurationError, match="dualwrite schema apply"):
            store.rows("app")
        store.close()

    @pytest.mark.parametrize("name", ["", "a b", 'a"; DROP TABLE item; --', "1a", "ä", "x" * 53])
    def test_names_are_checked(self, postgres_url, name):
        with pytest.raises(ConfigurationError):
            SqlStore(postgres_url, table=name)
        with pytest.raises(ConfigurationError):
            SqlStore(postgres_url, schema=name)

    def test_own_table_and_schema(self, database, postgres_url):
        with database.engine.begin() as connection:
            connection.execute(text('CREATE SCHEMA IF NOT EXISTS "Other"'))
        store = SqlStore(postgres_url, table="State", schema="Other", create=True)
        assert store.claim("app-0").fence == 1
        assert store.schema_differences() == []
        store.close()
        with database.engine.begin() as connection:
            connection.execute(text('DROP SCHEMA "Other" CASCADE'))

    def test_unreachable_database_is_named(self):
        store = SqlStore("postgresql://nobody@127.0.0.1:1/none")
        with pytest.raises(StoreUnavailable):
            store.rows("app")
        store.close()


_SQL_A = text("INSERT INTO item VALUES ('a')")


def _dsn(url):
    return url.replace("postgresql+psycopg", "postgresql")


def _handle(kind, url):
    """A handle of the user's own, and what closes it."""
    if kind == "own":
        return None, lambda: None
    if kind == "psycopg":
        driver = psycopg.connect(_dsn(url))
        return driver, driver.close
    engine = create_engine(url)
    handle = Session(engine) if kind == "session" else engine.connect()

    def close():
        handle.close()
        engine.dispose()

    return handle, close


def _insert(transaction, kind, key):
    if kind in ("own", "session"):
        transaction.resource("session").add(Item(key=key))
    elif kind == "connection":
        transaction.resource("connection").execute(
            text("INSERT INTO item VALUES (:key)"), {"key": key}
        )
    else:
        transaction.resource("connection").execute("INSERT INTO item VALUES (%s)", (key,))


def _wait_for_lock(database):
    """Wait until somebody waits for a lock."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    waiting = 0
    while not waiting:
        with database.engine.connect() as connection:
            waiting = connection.execute(query).scalar()


@pytest.mark.parametrize("before", [[], ["SELECT 1"]])
@pytest.mark.parametrize("after", [[], ["SELECT 1"]])
@pytest.mark.parametrize("resource", ["session", "connection"])
def test_commit_inside_a_string_of_statements_is_noticed(store, resource, before, after):
    """What it has committed is final, and the driver begins again for whatever comes next."""
    fence = store.claim("app-0").fence
    transaction = store.begin()
    made = transaction.resource(resource)
    connection = made if resource == "connection" else made.connection()
    for statement in [*before, "SELECT 1; COMMIT", *after]:
        connection.exec_driver_sql(statement)
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        transaction.flush()
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        store.remember(transaction.handle, "app-0", FIRST, fence)
    transaction.rollback()

    assert store.recall("app-0", fence) == PreparedTxnState.NONE
