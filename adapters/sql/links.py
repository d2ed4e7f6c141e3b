"""The user's transaction, whichever library holds it.

A link lets the store run statements in a Session, a Connection or a psycopg connection, and end
its transaction. The async kinds of SQLAlchemy are their sync cores, run inside a greenlet.
"""

import logging
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Dialect, Engine, TwoPhaseTransaction
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase

from dualwrite.errors import ConfigurationError, InvalidTxnState

log = logging.getLogger("dualwrite.adapters.sql")

IN_ERROR = 3
"""libpq's status of a transaction that can only be rolled back."""


Values = Mapping[str, object]
"""What the named parameters of a statement stand for."""


class Link(Protocol):
    """One open local transaction."""

    @property
    def connection(self) -> Connection | None:
        """SQLAlchemy's connection; None for a driver's own."""
        ...

    def execute(self, statement: UpdateBase, values: Values) -> tuple[int, Any]:
        """Run a statement; give the number of rows and the first value that came back."""
        ...

    def check(self) -> None:
        """Refuse what cannot carry a dual write."""
        ...

    def is_doomed(self) -> bool: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def invalidate(self) -> None:
        """Throw the connection away: nobody knows what its server will still do."""
        ...


class ConnectionLink:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def execute(self, statement: UpdateBase, values: Values) -> tuple[int, Any]:
        return _counted(self.connection.execute(statement, values))

    def check(self) -> None:
        if self.connection.in_nested_transaction():
            raise InvalidTxnState("a dual write ends the outermost transaction, not a SAVEPOINT")
        _refuse_kind(self.connection)

    def is_doomed(self) -> bool:
        return _is_doomed(self.connection)

    def flush(self) -> None:
        pass

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def invalidate(self) -> None:
        self.connection.invalidate()


class SessionWatcher(Protocol):
    """Is told what a session does."""

    def after_begin(self, session: Session, ends: object, connection: Connection) -> None: ...
    def after_commit(self, session: Session) -> None: ...


class OwnLink(ConnectionLink):
    """A connection that the store took itself, with a session over it once somebody wants one.

    Most blocks use one of the two only, and a session costs more than a statement.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.pooled = connection.connection
        """What the pool gave: SQLAlchemy asks for another one when this one is gone."""
        self.watcher: SessionWatcher | None = None
        """Told of the session's doings until the link is closed."""
        self.session: Session | None = None
        self.has_session_begun = False
        """The session takes part in the connection's transaction, so it must be the one to end it."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection on which the transaction was begun is gone."""
        return not self.pooled.is_valid

    def execute(self, statement: UpdateBase, values: Values) -> tuple[int, Any]:
        """Run it by the driver's own cursor: the transaction was begun when the link was made, and
        SQLAlchemy's way costs more than the database takes for the statement."""
        form = _driver_form(statement, self.connection.dialect)
        cursor = self.pooled.cursor()
        try:
            cursor.execute(form.text, form.parameters(values))
            first = cursor.fetchone() if form.is_returning else None
            return cursor.rowcount, first[0] if first else None
        finally:
            cursor.close()

    def flush(self) -> None:
        if self.session is not None:
            self.session.flush()

    def commit(self) -> None:
        if self.session is not None and self.has_session_begun:
            self.session.commit()
        else:
            self.connection.commit()

    def rollback(self) -> None:
        if self.session is not None and self.has_session_begun:
            self.session.rollback()
        self.connection.rollback()

    def invalidate(self) -> None:
        self.connection.invalidate()
        if self.session is not None:
            self.session.close()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.connection.close()
        self.watcher = None  # a circle would keep all of it until the garbage collector comes


class SessionLink:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.connection = session.connection()

    def execute(self, statement: UpdateBase, values: Values) -> tuple[int, Any]:
        return _counted(self.connection.execute(statement, values))

    def check(self) -> None:
        if self.session.in_nested_transaction():
            raise InvalidTxnState("a dual write ends the outermost transaction, not a SAVEPOINT")
        # Several binds commit one after the other; the state would cover only one of them.
        used = getattr(self.session.get_transaction(), "_connections", {})
        if any(found is not self.connection for found in used if isinstance(found, Connection)):
            raise ConfigurationError("the session has transactions in more than one database")
        _, _, ends_it, _ = used.get(self.connection, (None, None, True, None))
        if self.connection.in_nested_transaction() or not ends_it:
            raise ConfigurationError(
                "the session's commit() does not end the transaction of the connection that it is"
                " bound to: begin the transaction with the session"
            )
        _refuse_kind(self.connection)

    def is_doomed(self) -> bool:
        return _is_doomed(self.connection)

    def flush(self) -> None:
        self.session.flush()

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()

    def invalidate(self) -> None:
        self.connection.invalidate()
        self.session.close()


class PsycopgLink:
    """psycopg's own connection. `wait` is the identity for a sync connection, and awaits for an async one."""

    connection = None

    def __init__(self, driver: Any, engine: Engine, wait: Callable[[Any], Any]) -> None:
        self._driver = driver
        self._dialect = engine.dialect
        self._wait = wait
        self._mark = ""

    def execute(self, statement: UpdateBase, values: Values) -> tuple[int, Any]:
        form = _driver_form(statement, self._dialect)
        return self._ask(form.text, form.parameters(values))

    def _ask(self, query: str, values: Any) -> tuple[int, Any]:
        # The connection may make dicts of its rows.
        cursor = self._driver.cursor(row_factory=lambda _: tuple)
        self._wait(cursor.execute(query, values))
        first = self._wait(cursor.fetchone()) if cursor.description else None
        return cursor.rowcount, first[0] if first else None

    def check(self) -> None:
        if self._driver.autocommit:
            raise ConfigurationError(
                "the connection is in autocommit mode: every statement is final"
            )

    def mark(self) -> None:
        """Leave a mark that goes with the transaction: psycopg tells nobody when that ends."""
        self._mark = secrets.token_hex(8)
        self._ask("SELECT set_config('dualwrite.block', %(mark)s, true)", {"mark": self._mark})

    def is_marked(self) -> bool:
        """Whether it is still the transaction that was marked; one that has failed cannot say."""
        if self.is_doomed():
            return True
        _, found = self._ask("SELECT current_setting('dualwrite.block', true)", {})
        return bool(found == self._mark)

    def is_doomed(self) -> bool:
        return int(self._driver.info.transaction_status) == IN_ERROR

    def flush(self) -> None:
        pass

    def commit(self) -> None:
        self._wait(self._driver.commit())

    def rollback(self) -> None:
        self._wait(self._driver.rollback())

    def invalidate(self) -> None:
        self._wait(self._driver.close())


class _DriverForm(NamedTuple):
    """A statement as the driver takes it."""

    text: str
    parameters: Callable[[Values], Values | Sequence[object]]
    is_returning: bool


@lru_cache(maxsize=16)
def _driver_form(statement: UpdateBase, dialect: Dialect) -> _DriverForm:
    """The store makes its statements once, so that they are compiled once too."""
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    order = compiled.positiontup

    def by_name(values: Values) -> Values:
        return {**constants, **values}

    def by_place(values: Values) -> Sequence[object]:
        named = by_name(values)
        return [named[name] for name in order or ()]

    parameters = by_place if compiled.positional else by_name
    return _DriverForm(compiled.string, parameters, bool(compiled.effective_returning))


def link_to(handle: object, engine: Engine, wait: Callable[[Any], Any]) -> Link:
    """Find the kind of the handle; refuse one that belongs to another database."""
    handle = _sync_core(handle)
    if isinstance(handle, Session):
        session_link = SessionLink(handle)
        _same_database(session_link.connection.engine, engine)
        return session_link
    if isinstance(handle, Connection):
        _same_database(handle.engine, engine)
        return ConnectionLink(handle)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(handle, psycopg.BaseConnection):
        _same_server(handle, engine)
        is_async = isinstance(handle, psycopg.AsyncConnection)
        return PsycopgLink(handle, engine, wait if is_async else _as_it_is)
    raise ConfigurationError(
        "a transaction of an SQL store needs a Session, a Connection or a psycopg connection, "
        f"not {type(handle).__name__}"
    )


def _sync_core(handle: object) -> object:
    for name in ("sync_session", "sync_connection"):
        core = getattr(handle, name, None)
        if core is not None:
            return core
    return handle


def _as_it_is(value: Any) -> Any:
    return value


def _counted(result: Any) -> tuple[int, Any]:
    if not result.returns_rows:
        return result.rowcount, None
    rows = result.all()
    return len(rows), rows[0][0] if rows else None


def _is_doomed(connection: Connection) -> bool:
    info = getattr(connection.connection.driver_connection, "info", None)
    status = getattr(info, "transaction_status", None)
    return status is not None and int(status) == IN_ERROR


def _refuse_kind(connection: Connection) -> None:
    """Refuse a transaction that an ordinary COMMIT does not end."""
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise ConfigurationError("the database's own two-phase transactions cannot be dual writes")
    level = connection.get_execution_options().get("isolation_level")
    if level == "AUTOCOMMIT" or _is_autocommit(connection.connection.driver_connection):
        raise ConfigurationError("the connection is in autocommit mode: every statement is final")


def _is_autocommit(driver: Any) -> bool:
    if hasattr(driver, "in_transaction"):
        # SQLite: without an isolation level somebody else, maybe a hook, must have sent BEGIN.
        return driver.isolation_level is None and not driver.in_transaction
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    return getattr(driver, "autocommit", False) is True


def _same_database(given: Engine, ours: Engine) -> None:
    """The state must lie in the database of the data, or their commits are two."""
    if given.pool is ours.pool:
        return
    there, here = given.url, ours.url
    if given.dialect.name != ours.dialect.name or (
        (there.host, there.port, there.database) != (here.host, here.port, here.database)
    ):
        raise ConfigurationError(
            f"the transaction is in {there.render_as_string()}, the state store in"
            f" {here.render_as_string()}: one COMMIT cannot cover both"
        )


def _same_server(driver: Any, ours: Engine) -> None:
    database = ours.url.database
    if ours.dialect.name != "postgresql" or (database and driver.info.dbname != database):
        raise ConfigurationError(
            f"the transaction is in database {driver.info.dbname}, the state store in"
            f" {ours.url.render_as_string()}: one COMMIT cannot cover both"
        )
