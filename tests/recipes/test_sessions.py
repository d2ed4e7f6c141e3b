"""Plain `session.commit()` that commits to Kafka too."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

import dualwrite
from dualwrite import ConfigurationError, Fenced, InvalidTxnState
from dualwrite.recipes.sessions import outcome


@pytest.fixture
def registered(world):
    with world.writer() as dw:
        factory = sessionmaker(world.engine)
        dualwrite.register(factory, dw)
        yield world, factory


def order(world, session, number):
    session.execute(text(f"INSERT INTO {world.orders} VALUES ({number}, 'x')"))
    dualwrite.produce(session, world.topic, key=str(number), value=b"x")


def test_commit_commits_both(registered):
    world, factory = registered
    with factory() as session:
        order(world, session, 1)
        session.commit()
        assert outcome(session).kafka == "committed"
        order(world, session, 2)
        session.commit()

    world.assert_agree([1, 2])


def test_begin_block_commits_both(registered):
    world, factory = registered
    with factory.begin() as session:
        order(world, session, 1)
    with factory() as session, session.begin():
        order(world, session, 2)

    world.assert_agree([1, 2])


def test_rollback_close_and_errors_undo_both(registered):
    world, factory = registered
    with factory() as session:
        order(world, session, 1)
        session.rollback()
        order(world, session, 2)
    with pytest.raises(ZeroDivisionError), factory.begin() as session:
        order(world, session, 3)
        raise ZeroDivisionError
    with factory.begin() as session:
        order(world, session, 4)
    with pytest.raises(IntegrityError), factory.begin() as session:
        dualwrite.produce(session, world.topic, key="4", value=b"again")
        session.execute(text(f"INSERT INTO {world.orders} VALUES (4, 'x')"))

    world.assert_agree([4])


def test_savepoints_keep_their_meaning(registered):
    world, factory = registered
    with factory.begin() as session:
        order(world, session, 1)
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            order(world, session, 2)
            raise ZeroDivisionError
        with session.begin_nested():
            order(world, session, 3)

    world.assert_agree([1, 3])


def test_session_that_never_produces_is_an_ordinary_one(registered):
    world, factory = registered
    with factory.begin() as session:
        session.execute(text(f"INSERT INTO {world.orders} VALUES (1, 'x')"))

    assert world.rows() == [1]
    assert outcome(session) is None


def test_fenced_session_can_be_run_again(registered):
    world, factory = registered
    with factory() as session:
        for slot in world.store.rows(world.app):
            world.store.claim(slot.transactional_id, owner="another-instance")
        order(world, session, 1)
        with pytest.raises(Fenced):
            session.commit()
        session.rollback()

    assert world.rows() == []


def test_unregistered_sessions_are_told_so(world):
    with world.engine.connect(), sessionmaker(world.engine)() as session:
        with pytest.raises(InvalidTxnState):
            dualwrite.produce(session, world.topic, value=b"x")
    with world.writer() as dw, pytest.raises(ConfigurationError):
        dualwrite.register(async_sessionmaker(), dw)
