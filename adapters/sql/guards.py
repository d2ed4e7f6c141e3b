"""Listeners on the connections that a store takes itself, registered once for all of them.

Registering and removing a listener costs more than a small statement takes to run, so only a
connection that is the user's own gets listeners for one transaction.
"""

from sqlalchemy import Connection, Engine, event

from dualwrite.adapters.sql.transaction import SqlTransaction


class Guards:
    """Hands the events of an engine's connections to the transactions that are open on them."""

    def __init__(self, engine: Engine) -> None:
        self._open: dict[Connection, SqlTransaction] = {}
        event.listen(engine, "commit", self._commit)
        event.listen(engine, "rollback", self._rollback)
        event.listen(engine, "before_cursor_execute", self._execute)

    def add(self, connection: Connection, transaction: SqlTransaction) -> None:
        self._open[connection] = transaction

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def _commit(self, connection: Connection) -> None:
        if transaction := self._open.get(connection):
            transaction.before_commit(connection)

    def _rollback(self, connection: Connection) -> None:
        if transaction := self._open.get(connection):
            transaction.before_rollback(connection)

    def _execute(
        self,
        connection: Connection,
        cursor: object,
        statement: str,
        parameters: object,
        context: object,
        executemany: bool,
    ) -> None:
        if transaction := self._open.get(connection):
            transaction.before_execute(
                connection, cursor, statement, parameters, context, executemany
            )
