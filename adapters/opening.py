"""From a URL to a store, for the command line and for settings."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dualwrite.adapters.extras import naming_extras
from dualwrite.errors import ConfigurationError
from dualwrite.store import Store

if TYPE_CHECKING:
    from dualwrite.adapters.sql import SqlStore


def open_store(
    url: str,
    table: str | None = None,
    schema: str | None = None,
    *,
    start_seconds: float | None = None,
) -> Store:
    """Open the store that a URL names.

    `rocksdb:PATH` and `zookeeper://HOST:PORT,HOST:PORT/ROOT` are ours, everything else is
    SQLAlchemy's. Drivers are imported only for the store that is asked for. `start_seconds` is how
    long a ZooKeeper is waited for; an SQL driver has that in its URL.
    """
    try:
        parts = urlsplit(url)
    except (AttributeError, ValueError) as error:  # it is no text, or its brackets are wrong
        raise ConfigurationError(f"not the URL of a store: {error}") from error
    with naming_extras():
        if parts.scheme == "rocksdb":
            from dualwrite.adapters.rocksdb import RocksDbStore

            return RocksDbStore(parts.netloc + parts.path)
        if parts.scheme == "zookeeper":
            from dualwrite.adapters import zookeeper

            root = parts.path.rstrip("/") or zookeeper.ROOT
            return zookeeper.ZooKeeperStore(parts.netloc, root, start_seconds=start_seconds)
    return open_sql_store(url, table, schema)


def open_sql_store(url: str, table: str | None = None, schema: str | None = None) -> "SqlStore":
    """Open the store in an SQL database."""
    from dualwrite.adapters.sql import SqlStore
    from dualwrite.adapters.sql.tables import TABLE

    return SqlStore(url, TABLE if table is None else table, schema)
