"""What happens on the connections that a store takes itself, seen by a dialect of their own.

SQLAlchemy's events would tell the same, but an engine with one listener pays for all kinds of
events at every statement, which costs half as much as a small INSERT. A dialect executes, commits
and rolls back anyway. Only a connection that is the user's own gets listeners, for one transaction.
"""

from typing import Any, Protocol

from sqlalchemy import Connection, Dialect, Engine

from dualwrite.adapters.sql.transaction import SqlTransaction
from dualwrite.errors import InvalidTxnState


class _Context(Protocol):
    """What SQLAlchemy hands to a dialect together with a statement."""

    root_connection: Connection


class Guards:
    """Tells the transactions that are open on connections of `engine` what is done there."""

    def __init__(self, engine: Engine) -> None:
        self._open: dict[object, SqlTransaction] = {}
        self.engine = engine.execution_options()
        """The same pool and listeners as the application's engine, which sees none of this."""
        self.engine.dialect = _watched(engine.dialect, self)

    def add(self, connection: Connection, transaction: SqlTransaction) -> None:
        self._open[connection] = self._open[connection.connection] = transaction

    def remove(self, connection: Connection, pooled: object) -> None:
        self._open.pop(connection, None)
        self._open.pop(pooled, None)

    def executing(self, statement: str, context: _Context | None) -> None:
        if context is not None and (transaction := self._open.get(context.root_connection)):
            transaction.before_execute(statement)

    def committing(self, pooled: object) -> None:
        if (transaction := self._open.get(pooled)) is None:
            # A block that has lost its connection goes on with another one, but not to a COMMIT.
            raise InvalidTxnState("the local transaction was ended with its connection")
        transaction.before_commit()

    def rolling_back(self, pooled: object) -> None:
        if transaction := self._open.get(pooled):
            transaction.before_rollback()


def _watched(dialect: Dialect, guards: Guards) -> Dialect:
    """The same dialect, all it has learned and will learn included, but with guards."""
    kind = type(dialect)
    # SQLAlchemy wants every class to say this itself.
    is_cached = vars(kind).get("supports_statement_cache", False)
    body = {"guards": guards, "supports_statement_cache": is_cached}
    twin: Dialect = object.__new__(type(kind.__name__, (_Watched, kind), body))
    twin.__dict__ = dialect.__dict__
    return twin


class _Watched(Dialect):
    """What guards want to know of, in terms of a dialect."""

    guards: Guards

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        self.guards.executing(statement, context)
        super().do_execute(cursor, statement, parameters, context)

    def do_executemany(
        self, cursor: Any, statement: str, parameters: Any, context: Any = None
    ) -> None:
        self.guards.executing(statement, context)
        super().do_executemany(cursor, statement, parameters, context)

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        self.guards.executing(statement, context)
        super().do_execute_no_params(cursor, statement, context)

    def do_commit(self, dbapi_connection: Any) -> None:
        self.guards.committing(dbapi_connection)
        super().do_commit(dbapi_connection)

    def do_rollback(self, dbapi_connection: Any) -> None:
        self.guards.rolling_back(dbapi_connection)
        super().do_rollback(dbapi_connection)
