"""MySQL and MariaDB.

Durability is a matter of the server's global variables here: they can be read, not forced. DDL
commits the open transaction by itself, so it is refused inside a dual write.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Insert, Table, func, literal_column, text
from sqlalchemy.dialects.mysql import insert

from dualwrite.adapters.sql.dialect import Failure, SqlDialect, first_number
from dualwrite.store import CommitOutcome, DurabilityCheck, Verdict

_LOST = (2002, 2003, 2006, 2013, 2014, 2055, 1053, 1927)
_LOCKED = (1205, 3572)
_CONFLICT = (1213, 1020)
_NO_TABLE = (1146, 1054, 1049)
_DENIED = (1044, 1045, 1142, 1143, 1290, 1792)
_SURELY_ROLLED_BACK = (1020, 1062, 1213, 1451, 1452)

_IMPLICIT_COMMIT = re.compile(
    r"(?:\s|/\*.*?\*/|(?:--\s|#)[^\n]*\n)*"
    r"(?:ALTER|CREATE(?!\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|RENAME|TRUNCATE"
    r"|GRANT|REVOKE|LOCK\s+TABLES|UNLOCK\s+TABLES|BEGIN|START|STOP|COMMIT|XA"
    r"|SET\s+[^'\"]*autocommit|SET\s+PASSWORD|CHANGE|INSTALL|UNINSTALL|IMPORT\s+TABLE"
    r"|ANALYZE|CACHE|CHECK|FLUSH|LOAD\s+INDEX|OPTIMIZE|REPAIR|RESET)\b",
    re.IGNORECASE | re.DOTALL,
)
_MARK = "dualwrite_block"
_NO_SAVEPOINT = (1305,)


class MySql(SqlDialect):
    def now(self) -> ColumnElement[Any]:
        return func.utc_timestamp(literal_column("6"))

    def later(self, seconds: float) -> ColumnElement[Any]:
        micros: ColumnElement[Any] = literal_column(
            f"INTERVAL {int(seconds * 1_000_000)} MICROSECOND"
        )
        return func.date_add(self.now(), micros)

    def upsert(
        self, table: Table, values: Mapping[str, object], changes: Mapping[str, object]
    ) -> Insert:
        return insert(table).values(dict(values)).on_duplicate_key_update(dict(changes))

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        before = connection.execute(text("SELECT @@innodb_lock_wait_timeout")).scalar_one()
        _set_lock_wait(connection, max(1, round(lock_timeout)))
        try:
            yield
        finally:
            if not connection.invalidated:
                _set_lock_wait(connection, int(before))

    def mark(self, connection: Connection) -> None:
        """Set a savepoint: a deadlock ends the whole transaction, and so does a procedure that commits.

        Whatever is executed next then begins another one, and nobody is told.
        """
        connection.exec_driver_sql(f"SAVEPOINT {_MARK}")

    def is_marked(self, connection: Connection) -> bool:
        # By the driver's own cursor: whoever listens would take it for the application's.
        cursor = connection.connection.cursor()
        try:
            cursor.execute(f"RELEASE SAVEPOINT {_MARK}")
        except Exception as error:
            if first_number(error, _NO_SAVEPOINT):
                return False
            raise
        finally:
            cursor.close()
        return True

    def commits_implicitly(self, statement: str) -> bool:
        return _IMPLICIT_COMMIT.match(statement) is not None

    def reads_from_snapshot(self, isolation_level: str, connection: Connection) -> bool:
        """MySQL updates the newest row whatever was read; MariaDB may refuse it (1020)."""
        if isolation_level.upper() not in ("REPEATABLE READ", "SERIALIZABLE"):
            return False
        found = _variables(connection, "innodb_snapshot_isolation")
        return found.get("innodb_snapshot_isolation", "OFF") == "ON"

    def failure(self, error: BaseException) -> Failure:
        kinds = (
            (_LOST, Failure.LOST),
            (_LOCKED, Failure.LOCKED),
            (_CONFLICT, Failure.CONFLICT),
            (_NO_TABLE, Failure.NO_TABLE),
            (_DENIED, Failure.DENIED),
        )
        return next((kind for codes, kind in kinds if first_number(error, codes)), Failure.OTHER)

    def commit_outcome(self, error: BaseException) -> CommitOutcome:
        return "rolled_back" if first_number(error, _SURELY_ROLLED_BACK) else "unknown"

    def durability(self, connection: Connection, state: Table) -> Iterable[DurabilityCheck]:
        wanted = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON"}
        found = _variables(connection, *wanted, "log_bin", "sync_binlog")
        if found.get("log_bin") == "ON":
            wanted["sync_binlog"] = "1"
        for name, value in wanted.items():
            is_safe = found.get(name) == value
            verdict = Verdict.SAFE if is_safe else Verdict.UNSAFE
            yield DurabilityCheck(name, found.get(name, "?"), value, verdict)
        engine = connection.execute(
            text(
                "SELECT engine FROM information_schema.tables"
                " WHERE table_name = :name AND table_schema = coalesce(:schema, database())"
            ),
            {"name": state.name, "schema": state.schema},
        ).scalar_one_or_none()
        if engine is not None:
            verdict = Verdict.SAFE if engine == "InnoDB" else Verdict.UNSAFE
            yield DurabilityCheck("state_table", str(engine), "InnoDB", verdict)


def _set_lock_wait(connection: Connection, seconds: int) -> None:
    connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {seconds}")


def _variables(connection: Connection, *names: str) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    rows = connection.exec_driver_sql(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    return {str(name): str(value) for name, value in rows}
