"""Connections that a store takes itself: what is seen of them, and what is left of them."""

import gc
import weakref

import pytest
from sqlalchemy import event, insert, text

from dualwrite.errors import InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from tests.adapters.databases import Item, SqlDatabase

FIRST = PreparedTxnState(7, 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    url = f"sqlite:///{tmp_path}/state.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    found = SqlDatabase(url)
    yield found
    found.close()


def test_t2_block_that_has_lost_its_connection_commits_nothing(database):
    store = database.open()
    fence = store.claim("app-0").fence
    transaction = store.begin()
    connection = transaction.resource("connection")
    connection.execute(insert(Item).values(key="a"))
    connection.invalidate()
    connection.rollback()
    connection.execute(insert(Item).values(key="b"))  # on another connection of the pool

    with pytest.raises(InvalidTxnState, match="with its connection"):
        connection.commit()
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        transaction.flush()
    with pytest.raises(InvalidTxnState, match="ended by itself"):
        transaction.commit()
    transaction.rollback()
    assert not database.has("a")
    assert not database.has("b")
    assert store.recall("app-0", fence) == PreparedTxnState.NONE


def test_listeners_of_the_application_hear_of_a_block(database):
    heard = []
    store = database.open()
    event.listen(store.engine, "commit", lambda _: heard.append("commit"))
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda *given: heard.append("insert") if "item" in given[2] else None,
    )
    transaction = store.begin()
    transaction.resource("connection").execute(insert(Item).values(key="a"))
    transaction.flush()
    transaction.commit()

    assert heard[-2:] == ["insert", "commit"]
    assert database.has("a")


def test_connections_of_the_application_are_its_own(database):
    store = database.open()
    transaction = store.begin()
    with store.engine.begin() as connection:
        connection.execute(text("SELECT 1"))
        connection.commit()
    transaction.rollback()
    with store.engine.begin() as connection:
        connection.execute(insert(Item).values(key="a"))
    assert database.has("a")


def test_nothing_of_a_block_waits_for_the_garbage_collector(database):
    store = database.open()
    gc.collect()
    gc.disable()
    try:
        transaction = store.begin()
        transaction.resource("connection").execute(insert(Item).values(key="a"))
        transaction.flush()
        transaction.commit()
        kept = weakref.ref(transaction)
        del transaction
        assert kept() is None
    finally:
        gc.enable()
