"""State stores in PostgreSQL, MySQL, MariaDB and SQLite."""

from dualwrite.adapters.sql.store import SqlStore
from dualwrite.adapters.sql.tables import StateTables
from dualwrite.adapters.sql.transaction import SqlTransaction

__all__ = ["SqlStore", "SqlTransaction", "StateTables"]
