"""SQLite.

Python's default (journal_mode=DELETE, synchronous=FULL) loses the last acknowledged commit at a
power loss: the directory is not synced after the journal is removed. synchronous=EXTRA does that,
and in WAL mode it is the same as FULL.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Insert, Table, event, func
from sqlalchemy.dialects.sqlite import insert

from dualwrite.adapters.sql.dialect import Failure, SqlDialect, causes
from dualwrite.errors import ConfigurationError
from dualwrite.store import CommitOutcome, DurabilityCheck, Verdict

FULL, EXTRA = 2, 3
_LEVELS = {0: "OFF", 1: "NORMAL", FULL: "FULL", EXTRA: "EXTRA"}
_SAFE_WITH_FULL = ("wal", "truncate", "persist")
_MOMENT = "%Y-%m-%d %H:%M:%f"

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SURELY_ROLLED_BACK = (
    *_LOCKED,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
)


def primary_code(error: BaseException) -> int | None:
    for cause in causes(error):
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int):
            return code & 0xFF
    return None


class Sqlite(SqlDialect):
    own_isolation_level = None

    def now(self) -> ColumnElement[Any]:
        return func.strftime(_MOMENT, "now")

    def later(self, seconds: float) -> ColumnElement[Any]:
        return func.strftime(_MOMENT, "now", f"{seconds:+.3f} seconds")

    def upsert(
        self, table: Table, values: Mapping[str, object], changes: Mapping[str, object]
    ) -> Insert:
        statement = insert(table).values(dict(values))
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=dict(changes)
        )

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        before = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
        if _in_transaction(connection):
            # A hook of the engine has sent a plain BEGIN; nothing was done in it yet.
            connection.exec_driver_sql("ROLLBACK")
        self.join(connection)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(lock_timeout * 1000)}")
        try:
            # A deferred transaction that reads first cannot wait for the lock afterwards.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def engine_made(self, engine: Engine, *, is_ours: bool) -> None:
        def connected(connection: Any, _: object) -> None:
            cursor = connection.cursor()
            if is_ours:
                cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute(f"PRAGMA synchronous = {EXTRA}")
            cursor.close()

        event.listen(engine, "connect", connected)

    def join(self, connection: Connection) -> None:
        """Force what can be forced: inside a transaction the pragma cannot be changed."""
        if getattr(connection.connection.driver_connection, "autocommit", None) is True:
            # Python 3.12's own mode, in which the driver's commit() and rollback() do nothing.
            raise ConfigurationError(
                "the connection is in autocommit mode: every statement is final"
            )
        if _is_safe(connection):
            return
        if not _in_transaction(connection):
            connection.exec_driver_sql(f"PRAGMA synchronous = {EXTRA}")
        if not _is_safe(connection) and _level(connection) != EXTRA:
            level = _LEVELS.get(_level(connection), "?")
            raise ConfigurationError(
                f"PRAGMA synchronous is {level} with journal_mode={_journal(connection)}; a power loss"
                " could take acknowledged commits back: set EXTRA before the transaction begins"
            )

    def begin_writing(self, connection: Connection) -> None:
        """Take the write lock late, and wait for it: it is the database's only one."""
        if not _in_transaction(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def has_begun(self, connection: Connection) -> bool:
        """`ON CONFLICT ROLLBACK`, a trigger's `RAISE(ROLLBACK)` and a full disk end transactions."""
        return _in_transaction(connection)

    def failure(self, error: BaseException) -> Failure:
        code = primary_code(error)
        if code in _LOCKED:
            return Failure.LOCKED
        if code == sqlite3.SQLITE_READONLY:
            return Failure.DENIED
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
            return Failure.LOST
        text = str(error)
        if "no such table" in text or "no such column" in text or "has no column" in text:
            return Failure.NO_TABLE
        return Failure.OTHER

    def commit_outcome(self, error: BaseException) -> CommitOutcome:
        return "rolled_back" if primary_code(error) in _SURELY_ROLLED_BACK else "unknown"

    def durability(self, connection: Connection, state: Table) -> Iterable[DurabilityCheck]:
        journal, level = _journal(connection), _level(connection)
        is_on_disk = journal not in ("memory", "off")
        yield DurabilityCheck(
            "journal_mode",
            journal,
            "wal, delete, truncate or persist",
            Verdict.SAFE if is_on_disk else Verdict.UNSAFE,
        )
        is_safe = level == EXTRA or (level == FULL and journal in _SAFE_WITH_FULL)
        yield DurabilityCheck(
            "synchronous",
            _LEVELS.get(level, str(level)),
            "EXTRA, or FULL in WAL mode",
            Verdict.SAFE if is_safe else Verdict.FORCED,
        )


def _journal(connection: Connection) -> str:
    return str(_pragma(connection, "journal_mode")).lower()


def _level(connection: Connection) -> int:
    return int(_pragma(connection, "synchronous"))


def _pragma(connection: Connection, name: str) -> Any:
    """Read a setting by the driver's own cursor: every transaction asks for one."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(f"PRAGMA {name}")
        found = cursor.fetchone()
        return found[0] if found else None
    finally:
        cursor.close()


def _is_safe(connection: Connection) -> bool:
    level = _level(connection)
    if level == EXTRA:
        return True
    return level == FULL and _journal(connection) in _SAFE_WITH_FULL


def _in_transaction(connection: Connection) -> bool:
    driver = connection.connection.driver_connection
    return bool(getattr(driver, "in_transaction", False))
