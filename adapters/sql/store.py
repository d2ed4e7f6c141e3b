"""`SqlStore`: the state beside the data, in one SQL database."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable
from sqlalchemy.util import await_only

from dualwrite.adapters.awaitable import AwaitableStore, in_greenlet, in_thread
from dualwrite.adapters.claims import settled_claim
from dualwrite.adapters.extras import naming_extras
from dualwrite.adapters.sql.dialect import SqlDialect
from dualwrite.adapters.sql.failures import translated
from dualwrite.adapters.sql.guards import Guards
from dualwrite.adapters.sql.links import Link, OwnLink, link_to
from dualwrite.adapters.sql.mysql import MySql
from dualwrite.adapters.sql.operations import Operations
from dualwrite.adapters.sql.own_session import own_async_session, own_session
from dualwrite.adapters.sql.postgresql import PostgreSql
from dualwrite.adapters.sql.sqlite import Sqlite
from dualwrite.adapters.sql.tables import TABLE, StateTables, state_tables
from dualwrite.adapters.sql.transaction import Resources, SqlTransaction
from dualwrite.content import as_state
from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import check_id
from dualwrite.store import Claim, Durability, Heuristic, StoreRow

LOCK_TIMEOUT_SECONDS = 5.0
OWNER_BYTES_MAX = 255

_DIALECTS: dict[str, Callable[[], SqlDialect]] = {
    "postgresql": PostgreSql,
    "mysql": MySql,
    "mariadb": MySql,
    "sqlite": Sqlite,
}
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
"""Which driver a URL means that names none: the one that our extra installs."""
_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async"}


class SqlStore:
    """Remembers prepared transactions in PostgreSQL, MySQL, MariaDB or SQLite.

    `engine_or_url` is an Engine, an AsyncEngine or a URL. The tables must exist (`dualwrite schema
    apply`, or Alembic with `SqlStore.table(metadata)`); `create=True` makes them, for tests and
    single-file applications. `accept` names durability checks whose failure is accepted.
    """

    def __init__(
        self,
        engine_or_url: Engine | AsyncEngine | URL | str,
        table: str = TABLE,
        schema: str | None = None,
        *,
        create: bool = False,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        accept: Collection[str] = (),
    ) -> None:
        self.tables = state_tables(MetaData(), table, schema)
        self.lock_timeout = lock_timeout
        self._accept = frozenset(accept)
        self._url: URL | None = None
        self._async_engine: AsyncEngine | None = None
        self._engine = self._open(engine_or_url)
        self._dialect = _dialect_named(self._engine.dialect.name)()
        self._dialect.engine_made(self._engine, is_ours=self._url is not None)
        level = self._dialect.own_isolation_level
        options: dict[str, Any] = {} if level is None else {"isolation_level": level}
        self._own_engine = self._engine.execution_options(**options)
        self._guards = Guards(self._engine)
        self._operations = Operations(self._dialect, self.tables)
        self._is_durable = False
        self._snapshot_levels: dict[tuple[int, object], bool] = {}
        self._must_create = create
        if create and self._async_engine is None:
            self.create_tables()

    def _open(self, engine_or_url: Engine | AsyncEngine | URL | str) -> Engine:
        if isinstance(engine_or_url, Engine):
            return engine_or_url
        if isinstance(engine_or_url, AsyncEngine):
            self._async_engine = engine_or_url
            return engine_or_url.sync_engine
        with naming_extras():
            return self._open_url(engine_or_url)

    def _open_url(self, url: URL | str) -> Engine:
        try:
            named = make_url(url)
            _dialect_named(named.get_backend_name())  # before a driver is asked for
            driver = _DRIVERS.get(named.drivername, named.drivername)
            self._url = named.set(drivername=driver)
            if self._url.get_dialect().is_async:
                self._async_engine = create_async_engine(self._url)
                return self._async_engine.sync_engine
            return create_engine(self._url)
        except ArgumentError as error:
            raise ConfigurationError(f"not the URL of a store: {error}") from error

    @staticmethod
    def table(metadata: MetaData, table: str = TABLE, schema: str | None = None) -> StateTables:
        """Add the tables to the application's own `MetaData`, for Alembic or `create_all`."""
        return state_tables(metadata, table, schema)

    @property
    def engine(self) -> Engine:
        return self._engine

    # Schema -----------------------------------------------------------------------------------

    def create_tables(self) -> None:
        """Make whatever table is missing. Nothing that exists is altered."""
        with translated(self._dialect, "creating the tables"), self._engine.begin() as connection:
            self.tables.state.metadata.create_all(connection)

    def create_sql(self) -> str:
        """The statements of `create_tables` as text, for this database."""
        dialect = self._engine.dialect
        parts = [str(CreateTable(table).compile(dialect=dialect)).strip() for table in self.tables]
        return ";\n\n".join(parts) + ";\n"

    def schema_differences(self) -> list[str]:
        """What is missing in the database, as sentences; empty if everything is there."""
        differences = []
        with translated(self._dialect, "reading the schema"), self._engine.connect() as connection:
            found = inspect(connection)
            for table in self.tables:
                name = str(table.name)
                if not found.has_table(name, schema=table.schema):
                    differences.append(f"table {name} is missing")
                    continue
                there = {column["name"] for column in found.get_columns(name, table.schema)}
                missing = [c.name for c in table.columns if c.name not in there]
                differences += [f"column {name}.{column} is missing" for column in missing]
        return differences

    # Claims and states ------------------------------------------------------------------------

    def claim(self, id: str, expect: int | None = None, *, owner: str | None = None) -> Claim:
        check_id(id)
        if owner is not None and len(owner.encode()) > OWNER_BYTES_MAX:
            raise ConfigurationError(f"owner has more than {OWNER_BYTES_MAX} bytes: {owner!r}")
        self._require_durability()
        return settled_claim(
            lambda: self._claim(id, expect, owner),
            lambda: self.row(id),
            expect,
            owner,
        )

    def _claim(self, transactional_id: str, expect: int | None, owner: str | None) -> Claim:
        with self._writing(f"claiming {transactional_id}") as connection:
            return self._operations.claim(connection, transactional_id, expect, owner)

    def begin(self, handle: object | None = None) -> SqlTransaction:
        self._require_durability()
        with translated(self._dialect, "beginning"):
            if handle is None:
                return self._begin_own()
            link = self._link(handle)
        return self._joined(link, _resources_of(handle), is_own=False, close=_leave_open)

    def _begin_own(self) -> SqlTransaction:
        connection = self._guards.engine.connect()
        link = OwnLink(connection)
        try:
            connection.begin()
            resources = self._own_resources(link)
            local = self._joined(link, resources, is_own=True, close=partial(self._end_own, link))
        except BaseException:
            link.close()
            raise
        self._guards.add(connection, local)
        return local

    def _end_own(self, link: OwnLink) -> None:
        self._guards.remove(link.connection, link.pooled)
        link.close()

    def _own_resources(self, link: OwnLink) -> Resources:
        if self._async_engine is None:
            return {
                "session": lambda: own_session(link),
                "connection": lambda: link.connection,
            }
        shown = AsyncConnection(self._async_engine, link.connection)
        return {
            "session": lambda: own_async_session(link, shown),
            "connection": lambda: shown,
        }

    def _joined(
        self, link: Link, resources: Resources, *, is_own: bool, close: Callable[[], None]
    ) -> SqlTransaction:
        link.check()
        connection = link.connection
        if connection is not None:
            self._dialect.join(connection)
        return SqlTransaction(
            self._dialect,
            link,
            resources,
            close=close,
            is_own=is_own,
            reads_from_snapshot=self._reads_from_snapshot(connection),
        )

    def _reads_from_snapshot(self, connection: Connection | None) -> bool:
        if connection is None:
            return True  # psycopg's own: reserving the slot early is always right
        named = connection.get_execution_options().get("isolation_level")
        key = (id(connection.engine.pool), named)
        if key not in self._snapshot_levels:
            level = str(named or connection.get_isolation_level())
            self._snapshot_levels[key] = self._dialect.reads_from_snapshot(level, connection)
        return self._snapshot_levels[key]

    def remember(self, handle: object, id: str, state: PreparedTxnState | str, fence: int) -> None:
        prepared = str(as_state(state))
        check_id(id)
        link = self._open_link(handle)
        link.flush()
        values = {"id": id, "prepared": prepared, "mine": fence}
        with translated(self._dialect, f"remembering {id}"):
            count, returned = link.execute(self._operations.remember, values)
        if count == 0:
            raise Fenced(f"{id} no longer has fence {fence}")
        if not self._dialect.durable_by(returned):
            raise ConfigurationError(f"COMMIT would not be durable: the setting is {returned}")

    def recall(self, id: str, fence: int) -> PreparedTxnState:
        check_id(id)
        with self._reading(f"recalling {id}") as connection:
            return self._operations.recall(connection, id, fence)

    def release(self, id: str, fence: int) -> bool:
        check_id(id)
        with self._writing(f"releasing {id}") as connection:
            return self._operations.release(connection, id, fence)

    def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None:
        with self._writing(f"binding {transactional_id}") as connection:
            self._operations.bind_cluster(connection, transactional_id, fence, cluster_id)

    def row(self, transactional_id: str) -> StoreRow | None:
        with self._reading(f"reading {transactional_id}") as connection:
            return self._operations.row(connection, transactional_id)

    def rows(self, app: str | None = None) -> list[StoreRow]:
        with self._reading("reading the rows") as connection:
            return self._operations.rows(connection, app)

    # Leases -----------------------------------------------------------------------------------

    def lease(self, owner: str, seconds: float) -> None:
        with self._writing("leasing") as connection:
            self._operations.lease(connection, owner, seconds)

    def renew(self, owner: str, seconds: float) -> bool:
        with self._writing("renewing the lease") as connection:
            return self._operations.renew(connection, owner, seconds)

    def end_lease(self, owner: str) -> None:
        with self._writing("ending the lease") as connection:
            self._operations.end_lease(connection, owner)

    # Heuristics and kept messages -------------------------------------------------------------

    def record_heuristic(self, heuristic: Heuristic) -> None:
        with self._writing("recording a forced end") as connection:
            self._operations.record_heuristic(connection, heuristic)

    def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]:
        with self._reading("reading forced ends") as connection:
            return self._operations.heuristics(connection, transactional_id)

    def keep_messages(
        self,
        handle: object,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None:
        link = self._open_link(handle)
        with translated(self._dialect, f"keeping messages of {transactional_id}"):
            values: dict[str, object] = {"id": transactional_id, "prepared": str(state)}
            link.execute(self._operations.forget_all, {"id": transactional_id})
            for place, message in enumerate(messages):
                one = {**values, "place": place, "kept": message}
                link.execute(self._operations.keep_message, one)

    def kept_messages(self, transactional_id: str, state: PreparedTxnState) -> list[bytes]:
        with self._reading(f"reading kept messages of {transactional_id}") as connection:
            return self._operations.kept_messages(connection, transactional_id, state)

    def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None:
        with self._writing(f"forgetting messages of {transactional_id}") as connection:
            self._operations.forget_messages(connection, transactional_id, state)

    # Life -------------------------------------------------------------------------------------

    def durability(self) -> Durability:
        with self._reading("reading durability settings") as connection:
            checks = self._dialect.durability(connection, self.tables.state)
            return Durability(
                tuple(replace(check, is_accepted=check.name in self._accept) for check in checks)
            )

    def aio(self) -> AwaitableStore:
        """The same store for an event loop.

        A URL with an async driver, and an AsyncEngine, are used without threads; an Engine is
        used from threads, for it may have been made with options that a URL does not show.
        """
        if self._async_engine is not None:
            return AwaitableStore(self, in_greenlet)
        asynchronous = None if self._url is None else _async_url(self._url)
        if asynchronous is None:
            return AwaitableStore(self, in_thread)
        store = SqlStore(
            asynchronous,
            str(self.tables.state.name),
            None if self.tables.state.schema is None else str(self.tables.state.schema),
            lock_timeout=self.lock_timeout,
            accept=self._accept,
        )
        return AwaitableStore(store, in_greenlet)

    def close(self) -> None:
        if self._url is None:
            return
        if self._async_engine is not None:
            await_only(self._async_engine.dispose())
        else:
            self._engine.dispose()

    def _require_durability(self) -> None:
        if not self._is_durable:
            if self._must_create and self._async_engine is not None:
                self.create_tables()
            self.durability().require()
            self._is_durable = True

    def _link(self, handle: object) -> Link:
        return link_to(handle, self._engine, await_only)

    def _open_link(self, handle: object) -> Link:
        """The transaction behind what `remember` was given: ours, or the user's own object."""
        if isinstance(handle, SqlTransaction):
            return handle.link
        link = self._link(handle)
        link.check()
        if link.connection is not None:
            self._dialect.join(link.connection)
        return link

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with (
            translated(self._dialect, doing),
            self._own_engine.connect() as connection,
            self._dialect.own_transaction(connection, self.lock_timeout),
        ):
            yield connection
            connection.commit()

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Connection]:
        with translated(self._dialect, doing), self._own_engine.connect() as connection:
            yield connection


def _dialect_named(name: str) -> Callable[[], SqlDialect]:
    found = _DIALECTS.get(name)
    if found is None:
        known = ", ".join(sorted(_DIALECTS))
        raise ConfigurationError(f"no state store for {name}; there is {known}")
    return found


def _async_url(url: URL) -> URL | None:
    driver = _ASYNC_DRIVERS.get(url.get_backend_name())
    return None if driver is None else url.set(drivername=driver)


def _resources_of(handle: object) -> Resources:
    if isinstance(handle, Session):
        return {"session": lambda: handle, "connection": handle.connection}
    if isinstance(handle, AsyncSession):
        connection = await_only(handle.connection())
        return {"session": lambda: handle, "connection": lambda: connection}
    return {"connection": lambda: handle}


def _leave_open() -> None:
    """The user's own session or connection stays open."""
