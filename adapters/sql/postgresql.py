"""PostgreSQL."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Table,
    Update,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from dualwrite.adapters.sql.dialect import Failure, SqlDialect, causes
from dualwrite.store import CommitOutcome, DurabilityCheck, Verdict

_FAILURES = {
    "55P03": Failure.LOCKED,
    "57014": Failure.LOCKED,  # statement_timeout is another bound on the same wait
    "40001": Failure.CONFLICT,
    "40P01": Failure.CONFLICT,
    "42P01": Failure.NO_TABLE,
    "42703": Failure.NO_TABLE,
    "3F000": Failure.NO_TABLE,
    "42501": Failure.DENIED,
    "25006": Failure.DENIED,  # a read-only transaction, or a replica
    "28000": Failure.DENIED,
    "28P01": Failure.DENIED,
    "3D000": Failure.DENIED,
    "25P02": Failure.DOOMED,
}

# Classes that arise before the commit record is written: constraints and triggers that were
# deferred to COMMIT, serialization, deadlock. 40003 says by its name that the outcome is unknown.
_SURELY_ROLLED_BACK = frozenset(("22", "23", "25", "40", "42", "44", "P0"))
_COMPLETION_UNKNOWN = "40003"

_IDLE = 0  # of libpq, as psycopg tells it

_STRONG = ("on", "remote_apply")

# `on`, unless the setting is stronger already: `remote_apply` must not be weakened.
_STRONG_SETTING = (
    "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply'"
    " ELSE 'on' END"
)


def sqlstate(error: BaseException) -> str | None:
    """The five characters of the server's answer, whichever driver brought it."""
    for cause in causes(error):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


class PostgreSql(SqlDialect):
    def now(self) -> ColumnElement[Any]:
        return func.clock_timestamp()

    def later(self, seconds: float) -> ColumnElement[Any]:
        return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, float(seconds))

    def upsert(
        self, table: Table, values: Mapping[str, object], changes: Mapping[str, object]
    ) -> Insert:
        statement = insert(table).values(dict(values))
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=dict(changes)
        )

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        connection.execute(
            text("SELECT set_config('lock_timeout', :wait, true)").columns(),
            {"wait": f"{max(1, int(lock_timeout * 1000))}ms"},
        )
        connection.exec_driver_sql(
            f"SELECT set_config('synchronous_commit', {_STRONG_SETTING}, true)"
        )
        yield

    def durable_update(self, statement: Update) -> Update:
        # A role's or a session's synchronous_commit may be off. Setting it inside the statement
        # that must be the last one anyway spares every transaction a round trip.
        forced: ColumnElement[str] = literal_column(
            f"set_config('synchronous_commit', {_STRONG_SETTING}, true)"
        )
        return statement.where(forced.is_not(None)).returning(
            literal_column("current_setting('synchronous_commit')")
        )

    def durable_by(self, returned: object) -> bool:
        return returned in _STRONG

    any_statement_begins = True

    def has_begun(self, connection: Connection) -> bool:
        # A string of several statements may hold a COMMIT; the driver would begin again silently.
        driver: Any = connection.connection.driver_connection
        if hasattr(driver, "is_in_transaction"):  # asyncpg
            return bool(driver.is_in_transaction())
        return bool(driver.info.transaction_status != _IDLE)

    def reads_from_snapshot(self, isolation_level: str, connection: Connection) -> bool:
        return isolation_level.upper() in ("REPEATABLE READ", "SERIALIZABLE")

    def failure(self, error: BaseException) -> Failure:
        state = sqlstate(error)
        if state is None:
            is_lost = any(type(c).__name__ in _LOST_NAMES for c in causes(error))
            return Failure.LOST if is_lost else Failure.OTHER
        if state[:2] in ("08", "53") or state in ("57P01", "57P02", "57P03"):
            return Failure.LOST
        return _FAILURES.get(state, Failure.OTHER)

    def commit_outcome(self, error: BaseException) -> CommitOutcome:
        state = sqlstate(error)
        if state is None or state == _COMPLETION_UNKNOWN:
            return "unknown"
        return "rolled_back" if state[:2] in _SURELY_ROLLED_BACK else "unknown"

    def durability(self, connection: Connection, state: Table) -> Iterable[DurabilityCheck]:
        read = connection.execute(
            text(
                "SELECT current_setting('synchronous_commit'), current_setting('fsync'),"
                " current_setting('full_page_writes'), pg_is_in_recovery(),"
                " (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:name)),"
                " current_setting('synchronous_standby_names')"
            ),
            {"name": connection.dialect.identifier_preparer.format_table(state)},
        ).one()
        synchronous_commit, fsync, full_page_writes, is_replica, persistence, standbys = read
        safe = Verdict.SAFE if synchronous_commit in _STRONG else Verdict.FORCED
        yield DurabilityCheck("synchronous_commit", synchronous_commit, "on", safe)
        yield _check("fsync", fsync, "on", fsync == "on")
        yield _check("full_page_writes", full_page_writes, "on", full_page_writes == "on")
        yield _check("primary", "replica" if is_replica else "yes", "yes", not is_replica)
        if persistence is not None:
            kind = {"p": "logged", "u": "unlogged", "t": "temporary"}.get(persistence, persistence)
            yield _check("state_table", kind, "logged", persistence == "p")
        if not standbys:
            yield DurabilityCheck(
                "synchronous_standby_names",
                "empty",
                "named standbys, if a failover may go to a replica",
                Verdict.UNKNOWN,
            )


_LOST_NAMES = ("OperationalError", "InterfaceError", "ConnectionDoesNotExistError", "TimeoutError")


def _check(name: str, value: str, wanted: str, is_safe: bool) -> DurabilityCheck:
    return DurabilityCheck(name, value, wanted, Verdict.SAFE if is_safe else Verdict.UNSAFE)
