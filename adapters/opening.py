"""From a URL to a store, for the command line and for settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from dualwrite.errors import ConfigurationError
from dualwrite.store import Store

if TYPE_CHECKING:
    from dualwrite.adapters.sql import SqlStore

EXTRAS: Final = {
    "psycopg": "postgres",
    "pymysql": "mysql",
    "aiosqlite": "async",
    "rocksdict": "rocksdb",
    "kazoo": "zookeeper",
}
"""Which extra of ours brings a driver."""


def open_store(url: str, table: str | None = None, schema: str | None = None) -> Store:
    """Open the store that a URL names.

    `rocksdb:PATH` and `zookeeper://HOST:PORT,HOST:PORT/ROOT` are ours, everything else is
    SQLAlchemy's. Drivers are imported only for the store that is asked for.
    """
    parts = urlsplit(url)
    with naming_extras():
        if parts.scheme == "rocksdb":
            from dualwrite.adapters.rocksdb import RocksDbStore

            return RocksDbStore(parts.netloc + parts.path)
        if parts.scheme == "zookeeper":
            from dualwrite.adapters import zookeeper

            root = parts.path.rstrip("/") or zookeeper.ROOT
            return zookeeper.ZooKeeperStore(parts.netloc, root)
    return open_sql_store(url, table, schema)


def open_sql_store(url: str, table: str | None = None, schema: str | None = None) -> "SqlStore":
    """Open the store in an SQL database; whatever is wrong with the URL is a `ConfigurationError`."""
    from sqlalchemy.exc import ArgumentError

    from dualwrite.adapters.sql import SqlStore
    from dualwrite.adapters.sql.tables import TABLE

    try:
        with naming_extras():
            return SqlStore(url, TABLE if table is None else table, schema)
    except ArgumentError as error:
        raise ConfigurationError(f"not the URL of a store: {error}") from error


@contextmanager
def naming_extras() -> Iterator[None]:
    """Say which extra is missing instead of which module."""
    try:
        yield
    except ImportError as error:
        module = (error.name or str(error)).partition(".")[0]
        extra = EXTRAS.get(module)
        hint = f": pip install 'dualwrite[{extra}]'" if extra else ""
        raise ConfigurationError(f"{module} is not installed{hint}") from error
