"""The four tables of an SQL store.

The state table is KIP-939's, with one row per transactional id, so that two writers never wait
for each other's row. Leases have a table of their own: a renewal must never touch a state row,
which would make a transaction under snapshot isolation fail (40001).
"""

import re
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.types import TypeDecorator, TypeEngine

from dualwrite.errors import ConfigurationError

TABLE = "kafka_transaction_state"

# PostgreSQL cuts names off after 63 bytes; the longest suffix has 11.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,51}", re.ASCII)


class BinaryText(TypeDecorator[str]):
    """Text that is compared byte by byte.

    MySQL's collations take `A` for `a`, and `utf8mb4_bin` still ignores trailing spaces, so that
    two producers would share a row; there the bytes are kept as VARBINARY.
    """

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.VARBINARY(255))  # type: ignore[arg-type]
        if dialect.name == "postgresql":
            return dialect.type_descriptor(String(255, collation="C"))
        return dialect.type_descriptor(String(255))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | bytes | None:
        if value is None or dialect.name not in ("mysql", "mariadb"):
            return value
        return value.encode("utf-8")

    def process_result_value(self, value: str | bytes | None, dialect: Dialect) -> str | None:
        return value.decode("utf-8") if isinstance(value, bytes) else value


class StateTables(NamedTuple):
    """Tables of one store, bound to a `MetaData`."""

    state: Table
    lease: Table
    heuristics: Table
    outbox: Table


def check_name(name: str) -> str:
    """Return the name, or raise: names become part of SQL, where nothing can be bound."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"table and schema names must match {_NAME.pattern}: {name!r}")
    return name


def state_tables(metadata: MetaData, table: str = TABLE, schema: str | None = None) -> StateTables:
    """Add the tables to `metadata`, so that Alembic sees them like the application's own."""
    check_name(table)
    quoted_schema = None if schema is None else quoted_name(check_name(schema), quote=True)

    def named(suffix: str, *columns: Column[Any], **options: Any) -> Table:
        name = quoted_name(table + suffix, quote=True)
        made: Table = Table(
            name, metadata, *columns, schema=quoted_schema, mysql_engine="InnoDB", **options
        )
        return made

    moment = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    counter = BigInteger().with_variant(Integer(), "sqlite")
    return StateTables(
        state=named(
            "",
            Column("transactional_id", BinaryText(255), primary_key=True),
            Column("prepared_txn_state", String(32), nullable=False, server_default=""),
            Column("seq", BigInteger, nullable=False, server_default=text("0")),
            Column("fence", BigInteger, nullable=False),
            Column("state_fence", BigInteger, nullable=False, server_default=text("0")),
            Column("owner", BinaryText(255), nullable=False, server_default=""),
            Column("cluster_id", String(255), nullable=False, server_default=""),
            Column("updated_at", moment, nullable=False),
            # Half-empty pages keep the update of a state row inside its page (HOT).
            postgresql_with={"fillfactor": 50},
        ),
        lease=named(
            "_lease",
            Column("owner", BinaryText(255), primary_key=True),
            Column("lease_until", moment, nullable=False),
        ),
        heuristics=named(
            "_heuristics",
            Column("id", counter, primary_key=True, autoincrement=True),
            Column("transactional_id", BinaryText(255), nullable=False),
            Column("prepared_txn_state", String(32), nullable=False),
            Column("action", String(16), nullable=False),
            Column("reason", Text, nullable=False),
            Column("recorded_by", String(255), nullable=False),
            Column("recorded_at", moment, nullable=False),
        ),
        outbox=named(
            "_outbox",
            Column("transactional_id", BinaryText(255), primary_key=True),
            Column("position", Integer, primary_key=True, autoincrement=False),
            Column("prepared_txn_state", String(32), nullable=False),
            Column("message", blob, nullable=False),
        ),
    )
