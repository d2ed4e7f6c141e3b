"""One block, both sides: what users see of a dual write."""

import contextlib
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from dualwrite import (
    ConfigurationError,
    DualWriter,
    InvalidTxnState,
    RetryableError,
    Rollback,
    TransactionAdmin,
)
from dualwrite.adapters.sql import SqlStore
from dualwrite.upkeep import Upkeep
from tests.dualwrite.waiting import wait_until
from tests.dualwrite.world import read_committed, topics


def test_block_commits_to_both_sides(world):
    with world.writer() as dw, dw.transaction() as tx:
        world.order(tx, 1)

    assert tx.outcome.database == "committed"
    assert tx.outcome.kafka == "committed"
    assert tx.outcome.slot == f"{world.app}-{tx.outcome.slot[-1]}"
    assert str(world.store.row(tx.outcome.slot).state) == tx.outcome.txn
    world.assert_agree([1])


def test_exception_undoes_both_sides(world):
    with world.writer() as dw:
        with pytest.raises(ValueError, match="mine"), dw.transaction() as tx:
            world.order(tx, 1)
            raise ValueError("mine")
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_rollback_is_quiet(world):
    with world.writer() as dw, dw.transaction() as tx:
        world.order(tx, 1)
        raise Rollback

    assert tx.outcome.database == "rolled_back"
    world.assert_agree_on_nothing()


def test_t17_nothing_reaches_kafka_before_the_block_ends(world):
    with world.writer() as dw, TransactionAdmin({"bootstrap.servers": world.bootstrap}) as admin:
        with dw.transaction() as tx:
            world.order(tx, 1)
            listed = admin.list_transactions(id_pattern=f"^{world.app}-[0-9]+$")
            assert {entry.state for entry in listed} == {"Empty"}

    world.assert_agree([1])


def test_block_without_messages_is_a_plain_database_transaction(world):
    with world.writer() as dw, dw.transaction() as tx:
        tx.session.execute(text(f"INSERT INTO {world.orders} VALUES (1, 'x')"))

    assert (tx.outcome.kafka, tx.outcome.txn) == ("none", "")
    assert world.rows() == [1]


def test_callers_session_is_committed(world):
    with world.writer() as dw, Session(world.engine) as session:
        with dw.transaction(session) as tx:
            assert tx.session is session
            world.order(tx, 1)
        with dw.transaction(session) as tx:
            world.order(tx, 2)

    world.assert_agree([1, 2])


def test_callers_connection_is_committed(world):
    with (
        world.writer() as dw,
        world.engine.connect() as connection,
        dw.transaction(connection) as tx,
    ):
        tx.connection.execute(text(f"INSERT INTO {world.orders} VALUES (1, 'x')"))
        tx.produce(world.topic, key="1", value="x")

    world.assert_agree([1])


@pytest.mark.parametrize("rows", ["tuple_row", "dict_row"])
def test_callers_psycopg_connection_is_committed(postgres_world, postgres, rows):
    import psycopg.rows

    world, made = postgres_world, getattr(psycopg.rows, rows)
    with world.writer() as dw, psycopg.connect(postgres.dsn, row_factory=made) as connection:
        with dw.transaction(connection) as tx:
            tx.connection.execute(f"INSERT INTO {world.orders} VALUES (1, 'x')")
            tx.produce(world.topic, key="1", value="x")

    world.assert_agree([1])


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
def test_t14_session_inside_a_transaction_that_it_does_not_end_is_refused(world, mode):
    """Its commit() sends no COMMIT: whoever began the transaction may still roll everything back."""
    with world.writer() as dw, world.engine.connect() as connection:
        with connection.begin(), Session(connection, join_transaction_mode=mode) as session:
            with pytest.raises(ConfigurationError, match="does not end"), dw.transaction(session):
                pass
        with Session(connection) as session, dw.transaction(session) as tx:  # this one does
            world.order(tx, 1)

    world.assert_agree([1])


def test_t14_commit_that_sends_none_commits_nothing(world):
    class Quiet(Session):
        """As a fixture of somebody's tests may have it."""

        def commit(self):
            self.flush()

    with world.writer() as dw, Quiet(world.engine) as session:
        with pytest.raises(InvalidTxnState, match="no COMMIT"), dw.transaction(session) as tx:
            world.order(tx, 1)
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_t15_messages_of_a_rolled_back_savepoint_vanish(world):
    with world.writer() as dw, dw.transaction() as tx:
        world.order(tx, 1)
        with pytest.raises(ZeroDivisionError), tx.session.begin_nested():
            world.order(tx, 2)
            raise ZeroDivisionError
        with tx.session.begin_nested():
            world.order(tx, 3)

    world.assert_agree([1, 3])


def test_t15_savepoint_as_the_first_statement_commits_nothing_early(world):
    """pysqlite would begin no transaction for a SAVEPOINT, and its release would be final."""
    with world.writer() as dw:
        with pytest.raises(ZeroDivisionError), dw.transaction() as tx:
            with tx.session.begin_nested():
                world.order(tx, 1)
            raise ZeroDivisionError
        with Session(world.engine) as session:
            with pytest.raises(ZeroDivisionError), dw.transaction(session) as tx:
                with session.begin_nested():
                    world.order(tx, 2)
                raise ZeroDivisionError

    world.assert_agree_on_nothing()


def test_t15_savepoints_of_raw_sql_are_those_that_the_database_means(world):
    """Names in any case, the same name again, released ones, comments before the word."""
    with world.writer() as dw, dw.transaction() as tx:
        for number, statements in (
            (1, ["SAVEPOINT Outer_One"]),
            (2, ["SAVEPOINT same"]),
            (3, ["/* again */ SAVEPOINT same"]),
            (4, ["RELEASE SAVEPOINT same", "ROLLBACK TO same"]),  # takes 2 and 3 with it
            (5, ['ROLLBACK TO SAVEPOINT "outer_one"', "release outer_one"]),
        ):
            for statement in statements:
                tx.connection.execute(text(statement))
            world.order(tx, number)

    world.assert_agree([5])


def test_t15_savepoint_from_before_the_block_is_not_rolled_back_inside_it(world):
    """It would undo what the block has written, and whatever was written before it."""
    with world.writer() as dw, world.engine.connect() as connection:
        connection.execute(text(f"INSERT INTO {world.orders} VALUES (1, 'x')"))
        connection.execute(text("SAVEPOINT earlier"))
        with pytest.raises(InvalidTxnState, match="earlier"), dw.transaction(connection) as tx:
            connection.execute(text(f"INSERT INTO {world.orders} VALUES (2, 'x')"))
            tx.produce(world.topic, key="2", value="x")
            connection.execute(text("ROLLBACK TO earlier"))

    world.assert_agree_on_nothing()


def test_t15_first_savepoint_of_raw_sql_commits_nothing_early(world):
    with world.writer() as dw:
        with pytest.raises(ZeroDivisionError), dw.transaction() as tx:
            tx.connection.execute(text("SAVEPOINT first"))
            world.order(tx, 1)
            tx.connection.execute(text("RELEASE first"))
            raise ZeroDivisionError

    world.assert_agree_on_nothing()


def test_t15_inner_block_joins_the_outer_one(world):
    with world.writer() as dw:
        with dw.transaction() as outer:
            world.order(outer, 1)
            with dw.transaction() as inner:
                assert inner is outer
                world.order(inner, 2)
            assert world.topic not in topics(world.bootstrap)
        assert outer.outcome.kafka == "committed"

    world.assert_agree([1, 2])


def test_t15_failed_inner_block_undoes_everything_even_if_its_error_is_swallowed(world):
    with world.writer() as dw:
        with pytest.raises(InvalidTxnState), dw.transaction() as outer:
            world.order(outer, 1)
            with pytest.raises(ValueError), dw.transaction() as inner:
                world.order(inner, 2)
                raise ValueError
        with dw.transaction() as tx:
            world.order(tx, 3)

    world.assert_agree([3])


def test_t15_block_of_another_writer_or_session_inside_is_refused(world):
    with world.writer() as dw, world.writer(app=world.app + "x") as other, dw.transaction() as tx:
        with pytest.raises(InvalidTxnState), other.transaction():
            pass
        with Session(world.engine) as session:
            with pytest.raises(InvalidTxnState), dw.transaction(session):
                pass
        world.order(tx, 1)

    world.assert_agree([1])


def test_t2_swallowed_statement_error_commits_nothing(postgres_world):
    """PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and no driver raises."""
    world = postgres_world
    with world.writer() as dw:
        with pytest.raises(InvalidTxnState), dw.transaction() as tx:
            world.order(tx, 1)
            with pytest.raises(Exception, match="division by zero"):
                tx.session.connection().execute(text("SELECT 1/0"))
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_t2_error_that_a_hook_swallows_while_committing_commits_nothing(postgres_world):
    """The hook runs when everything else is done: what it spoils must be seen right before COMMIT."""
    world = postgres_world
    with world.writer() as dw:
        with pytest.raises(InvalidTxnState), dw.transaction() as tx:

            @event.listens_for(tx.session, "before_commit")
            def spoil(session):
                with contextlib.suppress(DBAPIError):
                    session.connection().execute(text("SELECT 1/0"))

            world.order(tx, 1)
        assert (tx.outcome.database, tx.outcome.kafka) == ("rolled_back", "aborted")
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_t3_error_in_the_flush_undoes_both(world):
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = world.orders
        id: Mapped[int] = mapped_column(primary_key=True)
        note: Mapped[str]

    with world.writer() as dw:
        with dw.transaction() as tx:
            tx.session.add(Order(id=1, note="x"))
            tx.produce(world.topic, key="1", value="x")
        with pytest.raises(IntegrityError), dw.transaction() as tx:
            tx.session.add(Order(id=1, note="again"))
            tx.produce(world.topic, key="1", value="again")
        assert tx.outcome.kafka in ("none", "aborted")
        with dw.transaction() as tx:
            tx.session.add(Order(id=2, note="x"))
            tx.produce(world.topic, key="2", value="x")

    world.assert_agree([1, 2])


def test_t4_constraint_that_fails_at_commit_aborts_kafka(postgres_world):
    world = postgres_world
    with world.engine.begin() as connection:
        connection.execute(
            text(
                f"CREATE TABLE {world.orders}_line (order_id INT REFERENCES {world.orders}"
                " DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    with world.writer() as dw:
        with pytest.raises(IntegrityError), dw.transaction() as tx:
            world.order(tx, 1)
            tx.session.execute(text(f"INSERT INTO {world.orders}_line VALUES (99)"))
        assert (tx.outcome.database, tx.outcome.kafka) == ("rolled_back", "aborted")
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([2])


def test_t3_bare_commit_inside_the_block_is_refused(world):
    with world.writer() as dw, pytest.raises(InvalidTxnState), dw.transaction() as tx:
        world.order(tx, 1)
        tx.session.commit()

    assert world.rows() == []


def test_t16_serialization_failure_runs_the_whole_block_again(postgres_world):
    world = postgres_world
    engine = create_engine(world.url, isolation_level="SERIALIZABLE")
    store = SqlStore(engine, table=world.state_table)
    meet = threading.Barrier(2)
    attempts = []

    def block(number):
        def run(tx):
            attempts.append(number)
            tx.session.execute(text(f"SELECT count(*) FROM {world.orders}")).scalar()
            if attempts.count(number) == 1:
                meet.wait(20)
            world.order(tx, number)

        return run

    with world.writer(store=store) as dw:
        threads = [threading.Thread(target=dw.run, args=(block(n),)) for n in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    engine.dispose()
    assert len(attempts) >= 3
    world.assert_agree([1, 2])


def test_t20_renewals_do_not_disturb_snapshot_isolation(postgres_world):
    world = postgres_world
    engine = create_engine(world.url, isolation_level="REPEATABLE READ")
    store = SqlStore(engine, table=world.state_table)
    with world.writer(store=store, lease_seconds=0.5, slots=1) as dw:
        for number in range(5):
            with dw.transaction() as tx:
                world.order(tx, number)
                tx.session.execute(text("SELECT pg_sleep(0.1)"))

    engine.dispose()
    world.assert_agree(range(5))


def test_upkeep_leaves_a_slot_alone_that_is_in_use(postgres_world, monkeypatch):
    """A transaction may take longer than several rounds of upkeep."""
    rounds = []
    real_round = Upkeep.round

    def counted_round(upkeep):
        yield from real_round(upkeep)
        rounds.append(upkeep)

    monkeypatch.setattr(Upkeep, "round", counted_round)

    def on_step(name):
        if name == "begun":
            wanted = len(rounds) + 3  # the first of them may have been half done
            wait_until(lambda: len(rounds) >= wanted)

    with postgres_world.writer(lease_seconds=0.5, slots=1, on_step=on_step) as dw:
        with dw.transaction() as tx:
            postgres_world.order(tx, 1)

    postgres_world.assert_agree([1])


def test_block_that_its_writer_does_not_outlive_is_undone_and_says_why(world):
    dw = world.writer().open()
    with pytest.raises(InvalidTxnState, match="writer was closed"), dw.transaction() as tx:
        world.order(tx, 1)
        dw.close()

    world.assert_agree_on_nothing()


def test_t19_slots_limit_open_transactions(world):
    with world.writer(slots=1, slot_timeout=0.1) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
            caught = []

            def second():
                try:
                    with dw.transaction():
                        pass
                except RetryableError as error:
                    caught.append(error)

            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
            assert "no slot" in str(caught[0])
        with dw.transaction() as tx:
            world.order(tx, 2)

    world.assert_agree([1, 2])


def test_threads_share_a_writer(world):
    def write(first):
        for number in range(first, first + 5):
            dw.run(lambda tx, number=number: world.order(tx, number), attempts=10)

    with world.writer(slots=3) as dw:
        threads = [threading.Thread(target=write, args=(start,)) for start in (0, 10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    expected = [start + n for start in (0, 10, 20, 30) for n in range(5)]
    world.assert_agree(expected)


def test_background_kafka_commit_returns_at_the_decision(world):
    with world.writer(kafka_commit="background") as dw:
        for number in range(5):
            with dw.transaction() as tx:
                world.order(tx, number)
            assert tx.outcome.database == "committed"
            assert tx.outcome.kafka in ("pending", "committed")

    world.assert_agree(range(5))


def test_background_kafka_commit_is_taken_in_although_nobody_writes_on(world):
    with world.writer(kafka_commit="background") as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        wait_until(lambda: tx.outcome.kafka == "committed")

    world.assert_agree([1])


def test_background_kafka_commit_ends_before_its_slot_is_used_again(world):
    with world.writer(kafka_commit="background", slots=1) as dw:
        written = []
        for number in range(20):
            with dw.transaction() as tx:
                assert [tx.outcome.kafka for tx in written] == ["committed"] * number
                world.order(tx, number)
            written.append(tx)

    world.assert_agree(range(20))


def test_threads_share_a_writer_whose_kafka_commits_are_in_the_background(world):
    def write(first):
        for number in range(first, first + 5):
            dw.run(lambda tx, number=number: world.order(tx, number), attempts=10)

    with world.writer(kafka_commit="background", slots=2) as dw:
        threads = [threading.Thread(target=write, args=(start,)) for start in (0, 10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    world.assert_agree([start + n for start in (0, 10, 20, 30) for n in range(5)])


def test_background_kafka_commit_works_in_resume_mode(world):
    with world.writer(kafka_commit="background", mode="resume", slots=1) as dw:
        for number in range(3):
            with dw.transaction() as tx:
                world.order(tx, number)

    world.assert_agree(range(3))


def test_t14_autocommit_connection_is_refused(world):
    with world.writer() as dw:
        engine = world.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, pytest.raises(ConfigurationError):
            with dw.transaction(connection):
                pass
        with dw.transaction() as tx:  # the slot was given back
            world.order(tx, 1)


@pytest.mark.parametrize(
    "statement", ["COMMIT", " rollback work", "/* so */ END", "-- so\nROLLBACK"]
)
@pytest.mark.parametrize("resource", ["session", "connection"])
def test_t14_statement_that_ends_the_transaction_is_refused(world, statement, resource):
    """It would part the data from the state: rows without messages, or messages without rows."""
    with world.writer() as dw:
        with pytest.raises(InvalidTxnState), dw.transaction() as tx:
            world.order(tx, 1)
            getattr(tx, resource).execute(text(statement))
        with dw.transaction() as tx:
            with contextlib.suppress(InvalidTxnState):
                getattr(tx, resource).execute(text(statement))
            world.order(tx, 2)

    world.assert_agree([2])


@pytest.mark.parametrize("end", ["commit", "rollback", "text"])
def test_t14_psycopg_connection_that_was_ended_inside_the_block_is_refused(
    postgres_world, postgres, end
):
    """psycopg tells nobody that the transaction has ended; the block must notice by itself."""
    import psycopg

    world = postgres_world
    with world.writer() as dw, psycopg.connect(postgres.dsn) as own:
        with pytest.raises(InvalidTxnState), dw.transaction(own) as tx:
            tx.produce(world.topic, key="1", value=b"x")
            own.execute("ROLLBACK") if end == "text" else getattr(own, end)()
        with dw.transaction(own) as tx, own.transaction():
            own.execute(f"INSERT INTO {world.orders} VALUES (2, 'x')")
            tx.produce(world.topic, key="2", value=b"x")

    world.assert_agree([2])


def test_t13_session_of_another_database_is_refused(world, tmp_path):
    foreign = create_engine(f"sqlite:///{tmp_path / 'foreign.db'}")
    with world.writer() as dw, Session(foreign) as session:
        with pytest.raises(ConfigurationError), dw.transaction(session):
            pass
    foreign.dispose()


def test_t13_session_with_two_databases_is_refused(sqlite_world, tmp_path):
    world = sqlite_world
    foreign = create_engine(f"sqlite:///{tmp_path / 'foreign.db'}")
    with world.writer() as dw, sessionmaker(world.engine)() as session:
        with pytest.raises(ConfigurationError), dw.transaction(session) as tx:
            world.order(tx, 1)
            session.execute(text("SELECT 1"), bind_arguments={"bind": foreign})
    foreign.dispose()

    assert world.rows() == []


def test_delivery_callbacks_and_headers(world):
    delivered = []
    with world.writer() as dw, dw.transaction() as tx:
        tx.produce(
            world.topic,
            value="x",
            key="1",
            headers={"a": "b"},
            on_delivery=lambda error, message: delivered.append((error, message.value())),
        )

    assert delivered == [(None, b"x")]
    assert read_committed(world.bootstrap, world.topic) == [(b"1", b"x")]


def test_transaction_cannot_be_used_after_its_end(world):
    with world.writer() as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)
        with pytest.raises(InvalidTxnState):
            tx.produce(world.topic, value="late")
        with pytest.raises(InvalidTxnState):
            _ = tx.session


def test_writer_must_be_open(world):
    dw = world.writer()
    with pytest.raises(InvalidTxnState), dw.transaction():
        pass
    with dw, pytest.raises(InvalidTxnState):
        dw.open()
    assert not dw.is_open


def test_writer_can_be_opened_again(world):
    dw = world.writer()
    for number in range(3):
        with dw, dw.transaction() as tx:
            world.order(tx, number)

    world.assert_agree(range(3))


@pytest.mark.parametrize(
    "options",
    [
        {"app": "a/b"},
        {"app": ""},
        {"slots": 0},
        {"lease_seconds": 0},
        {"kafka_commit": "never"},
        {"mode": "3pc"},
        {"config": {"transactional.id": "x"}},
        {"config": {"transaction.timeout.ms": 5}},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(sqlite_world, options):
    with pytest.raises(ConfigurationError):
        sqlite_world.writer(**options)


def test_an_address_in_place_of_the_settings_is_refused(sqlite_world):
    with pytest.raises(ConfigurationError, match="dict"):
        DualWriter(sqlite_world.bootstrap, store=sqlite_world.store, app="orders")
    with pytest.raises(ConfigurationError, match="dict"):
        TransactionAdmin(sqlite_world.bootstrap)


def test_kafka_that_is_not_there_is_not_waited_for_longer_than_in_a_transaction(sqlite_world):
    settings = sqlite_world.writer().settings

    assert settings.admin_config["max.block.ms"] == 15_000
    assert settings.producer_config("a-0", two_phase=True)["max.block.ms"] == 15_000


def test_misspelt_kafka_setting_is_refused(sqlite_world):
    with pytest.raises(ConfigurationError, match="did you mean"):
        sqlite_world.writer(config={"compresion.type": "gzip"}).open()


def test_t9_store_that_can_lose_commits_is_refused(postgres_world):
    world = postgres_world
    with world.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {world.state_table} SET UNLOGGED"))

    with pytest.raises(ConfigurationError, match="can lose"):
        world.writer().open()


def test_t26_writer_that_read_before_another_committed_is_not_lost(sqlite_world):
    """SQLite refuses a transaction that read first and writes after another's commit."""
    world = sqlite_world
    attempts = []

    def block(tx):
        attempts.append(True)
        tx.session.execute(text(f"SELECT count(*) FROM {world.orders}")).scalar_one()
        if len(attempts) == 1:
            with world.engine.begin() as connection:
                connection.execute(text(f"INSERT INTO {world.orders} VALUES (50, 'other')"))
        world.order(tx, 1)

    with world.writer() as dw:
        dw.run(block)

    assert world.rows() == [1, 50]
    assert world.records() == [1]
