"""The async face of the SQL store: own sessions, and handles of the user's own."""

import asyncio

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from dualwrite.adapters.sql import SqlStore
from dualwrite.errors import Fenced, InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import CommitUnknown
from tests.adapters.databases import Item, SqlDatabase
from tests.servers.cutting_proxy import CuttingProxy

FIRST = PreparedTxnState(7, 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        found = SqlDatabase(f"sqlite:///{tmp_path}/state.db")
    else:
        found = SqlDatabase(request.getfixturevalue("postgres_url"))
    yield found
    found.close()


def async_url(database):
    return database.url.replace("sqlite:", "sqlite+aiosqlite:")


def test_own_session_is_an_async_session(database):
    async def run():
        store = SqlStore(database.url).aio()
        fence = (await store.claim("app-0")).fence
        transaction = await store.begin()
        session = transaction.resource("session")
        assert isinstance(session, AsyncSession)
        session.add(Item(key="a"))
        await transaction.flush()
        connection = transaction.resource("connection")
        assert (await connection.execute(text("SELECT count(*) FROM item"))).scalar() == 1
        await store.remember(transaction.handle, "app-0", FIRST, fence)
        await transaction.commit()
        await store.close()
        return fence

    fence = asyncio.run(run())
    assert database.has("a")
    assert database.open().recall("app-0", fence) == FIRST


@pytest.mark.parametrize("kind", ["session", "connection"])
@pytest.mark.parametrize("given", ["url", "engine", "async engine"])
def test_users_own_async_handle_carries_the_state(database, kind, given):
    async def run():
        engine = create_async_engine(async_url(database))
        sync_engine = create_engine(database.url)
        source = {"url": async_url(database), "engine": sync_engine, "async engine": engine}[given]
        store = SqlStore(source).aio()
        fence = (await store.claim("app-0")).fence
        async with AsyncSession(engine) if kind == "session" else engine.connect() as handle:
            transaction = await store.begin(handle)
            await handle.execute(text("INSERT INTO item VALUES ('a')"))
            await transaction.flush()
            await store.remember(transaction.handle, "app-0", FIRST, fence)
            await transaction.commit()
        await store.close()
        await engine.dispose()
        sync_engine.dispose()
        return fence

    fence = asyncio.run(run())
    assert database.has("a")
    assert database.open().recall("app-0", fence) == FIRST


def test_overtaken_writer_is_fenced(database):
    async def run():
        store = SqlStore(database.url).aio()
        stale = (await store.claim("app-0")).fence
        await store.claim("app-0")
        transaction = await store.begin()
        transaction.resource("session").add(Item(key="a"))
        with pytest.raises(Fenced):
            await store.remember(transaction.handle, "app-0", FIRST, stale)
        await transaction.rollback()
        await store.close()

    asyncio.run(run())
    assert not database.has("a")


def test_bare_commit_is_refused(database):
    async def run():
        engine = create_async_engine(async_url(database))
        store = SqlStore(engine).aio()
        async with AsyncSession(engine) as session:
            transaction = await store.begin(session)
            session.add(Item(key="a"))
            with pytest.raises(InvalidTxnState):
                await session.commit()
            await transaction.rollback()
        await engine.dispose()

    asyncio.run(run())
    assert not database.has("a")


def test_psycopg_async_connection_carries_the_state(postgres_url):
    database = SqlDatabase(postgres_url)

    async def run():
        store = SqlStore(postgres_url).aio()
        fence = (await store.claim("app-0")).fence
        url = postgres_url.replace("postgresql+psycopg", "postgresql")
        async with await psycopg.AsyncConnection.connect(url) as driver:
            transaction = await store.begin(driver)
            await driver.execute("INSERT INTO item VALUES ('a')")
            await store.remember(transaction.handle, "app-0", FIRST, fence)
            await transaction.commit()
        await store.close()
        return fence

    fence = asyncio.run(run())
    assert database.has("a")
    assert database.open().recall("app-0", fence) == FIRST
    database.close()


def test_lost_answer_is_unknown(postgres_url, postgres):
    database = SqlDatabase(postgres_url)
    fence = database.open().claim("app-0").fence

    async def run(proxy):
        store = SqlStore(postgres_url.replace(str(postgres.port), str(proxy.port))).aio()
        transaction = await store.begin()
        transaction.resource("session").add(Item(key="a"))
        await transaction.flush()
        await store.remember(transaction.handle, "app-0", FIRST, fence)
        proxy.cut_answers()
        with pytest.raises(CommitUnknown):
            await transaction.commit()
        await store.close()

    with CuttingProxy(postgres.port) as proxy:
        asyncio.run(run(proxy))
        assert proxy.cut.wait(timeout=30)
    assert database.open().claim("app-0", fence).state == FIRST
    assert database.has("a")
    database.close()
