"""The ledger in a SQL database, beside the data that a batch may write there.

The store's own row `spark.<sink>.coordinator` orders the changes: each one claims it, and begins with
a `remember` under that claim, which fails if somebody has claimed since, locks the row until COMMIT
and forces COMMIT to be durable. The entries lie in a table of their own, one row each, `<table>_spark`.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, delete, insert, select
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.elements import quoted_name

from dualwrite.adapters.sql import SqlStore
from dualwrite.adapters.sql.tables import BinaryText
from dualwrite.errors import Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.recipes.spark.ledger import Change, Entries, Ledger, Superseded, decode, encode
from dualwrite.recipes.spark.names import coordinator_id
from dualwrite.store import CommitUnknown, LocalTransaction

TRIES = 20
BACKOFF_SECONDS = 0.01


class SqlDecisionLog:
    """One sink's ledger in the database of an `SqlStore`."""

    def __init__(self, store: SqlStore, sink: str, *, owns_store: bool = False) -> None:
        self._store = store
        self._sink = sink
        self._owns_store = owns_store
        self._table = ledger_table(store, MetaData())
        self._table.create(store.engine, checkfirst=True)

    def read(self) -> Ledger:
        with self._store.engine.connect() as connection:
            return self._read(connection)

    def update(self, change: Change) -> Ledger:
        for tries in range(1, TRIES + 1):
            after: list[Ledger] = []
            try:
                with self.transaction() as transaction:
                    after.append(transaction.update(change))
                return after[0]
            except Superseded:
                raise
            except (Fenced, CommitUnknown):
                # A lost race or answer: the claim of the next try waits for this one's end.
                if tries == TRIES:
                    raise
                time.sleep(random.uniform(0, tries * BACKOFF_SECONDS))
        raise AssertionError("unreachable")

    @contextmanager
    def transaction(self) -> Iterator["SqlDecidingTransaction"]:
        fence = self._store.claim(coordinator_id(self._sink)).fence
        local = self._store.begin()
        try:
            local.flush()
            yield SqlDecidingTransaction(self, local, fence)
            local.commit()
        except BaseException:
            local.rollback()
            raise

    def close(self) -> None:
        if self._owns_store:
            self._store.close()

    def apply(self, local: LocalTransaction, fence: int, change: Change) -> Ledger:
        """Change the ledger inside an open transaction that was begun under `fence`."""
        local.flush()
        name = coordinator_id(self._sink)
        self._store.remember(local.handle, name, PreparedTxnState.NONE, fence)
        connection = cast(Connection, local.resource("connection"))
        ledger = self._read(connection)
        entries = change(ledger)
        self._write(connection, entries)
        return ledger.with_entries(entries)

    def _read(self, connection: Connection) -> Ledger:
        table = self._table
        rows = connection.execute(
            select(table.c.name, table.c.body).where(table.c.sink == self._sink)
        )
        return Ledger().with_entries({name: decode(name, body) for name, body in rows})

    def _write(self, connection: Connection, entries: Entries) -> None:
        table = self._table
        for name, entry in entries.items():
            connection.execute(
                delete(table).where(table.c.sink == self._sink, table.c.name == name)
            )
            if entry is not None:
                connection.execute(
                    insert(table).values(sink=self._sink, name=name, body=encode(entry))
                )


class SqlDecidingTransaction:
    """The user's transaction, with room for one change of the ledger."""

    def __init__(self, log: SqlDecisionLog, local: LocalTransaction, fence: int) -> None:
        self._log = log
        self._local = local
        self._fence = fence

    @property
    def connection(self) -> Any:
        return self._local.resource("connection")

    @property
    def session(self) -> Any:
        return self._local.resource("session")

    def update(self, change: Change) -> Ledger:
        return self._log.apply(self._local, self._fence, change)


def ledger_table(store: SqlStore, metadata: MetaData) -> Table:
    """Name the table after the store's, in the same schema."""
    state = store.tables.state
    return Table(
        quoted_name(f"{state.name}_spark", quote=True),
        metadata,
        Column("sink", BinaryText(255), primary_key=True),
        Column("name", BinaryText(255), primary_key=True),
        Column(
            "body",
            LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
            nullable=False,
        ),
        schema=state.schema,
        mysql_engine="InnoDB",
    )
