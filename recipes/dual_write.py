"""A dual writer from a URL, for programs that take their settings from outside.

    with writer_at("postgresql://...", {"bootstrap.servers": "..."}, app="orders") as dw:
        with dw.transaction() as tx: ...

URLs: anything that SQLAlchemy knows, `rocksdb:PATH`, `zookeeper://HOSTS/ROOT`. `from_environment()`
reads DUALWRITE_STORE, DUALWRITE_BOOTSTRAP_SERVERS, DUALWRITE_APP and, if set, DUALWRITE_SLOTS and
DUALWRITE_INSTANCE.

ZooKeeper holds the decision for data in the same multi only; for data elsewhere it would be a mere
decision log, and nothing here chooses it for you.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dualwrite.adapters.opening import open_store
from dualwrite.dual_writer import DualWriter
from dualwrite.errors import ConfigurationError
from dualwrite.store import Store

TABLE = "kafka_transaction_state"


def store_at(url: str, table: str = TABLE) -> Store:
    """Open the store that a URL names; the caller closes it."""
    return open_store(url, table)


@contextmanager
def writer_at(
    url: str, config: Mapping[str, Any], *, app: str, table: str = TABLE, **options: Any
) -> Iterator[DualWriter]:
    """An open writer on the store at `url`; `options` are those of `DualWriter`."""
    store = store_at(url, table)
    try:
        with DualWriter(config, store=store, app=app, **options) as writer:
            yield writer
    finally:
        store.close()


@contextmanager
def from_environment(prefix: str = "DUALWRITE_") -> Iterator[DualWriter]:
    """An open writer by environment variables."""
    options: dict[str, Any] = {}
    if (slots := os.environ.get(f"{prefix}SLOTS")) is not None:
        options["slots"] = _whole(f"{prefix}SLOTS", slots)
    if (instance := os.environ.get(f"{prefix}INSTANCE")) is not None:
        options["instance"] = instance
    config = {"bootstrap.servers": _required(f"{prefix}BOOTSTRAP_SERVERS")}
    app = _required(f"{prefix}APP")
    with writer_at(_required(f"{prefix}STORE"), config, app=app, **options) as writer:
        yield writer


def _required(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigurationError(f"the environment variable {name} is not set")
    return value


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
    return int(value)
