"""From a URL to a store, for the command line and for settings."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dualwrite.errors import ConfigurationError
from dualwrite.store import Store

if TYPE_CHECKING:
    from dualwrite.adapters.sql import SqlStore


def open_store(url: str, table: str | None = None, schema: str | None = None) -> Store:
    """Open the store that a URL names.

    `rocksdb:///path` and `zookeeper://host:port,host:port/root` are ours, everything else is
    SQLAlchemy's. Drivers are imported only for the store that is asked for.
    """
    parts = urlsplit(url)
    if parts.scheme == "rocksdb":
        from dualwrite.adapters.rocksdb import RocksDbStore

        return RocksDbStore(parts.path)
    if parts.scheme == "zookeeper":
        from dualwrite.adapters import zookeeper

        return zookeeper.ZooKeeperStore(parts.netloc, parts.path or zookeeper.ROOT)
    return open_sql_store(url, table, schema)


def open_sql_store(url: str, table: str | None = None, schema: str | None = None) -> "SqlStore":
    from sqlalchemy.exc import ArgumentError

    from dualwrite.adapters.sql import SqlStore
    from dualwrite.adapters.sql.tables import TABLE

    try:
        return SqlStore(url, TABLE if table is None else table, schema)
    except (ArgumentError, ImportError) as error:
        raise ConfigurationError(f"cannot open this store: {error}") from error
