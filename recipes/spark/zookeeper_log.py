"""The ledger in ZooKeeper, for places that have one anyway.

The head's node orders the changes: each one is a multi that sets it with the version that was read,
and writes the other entries beside it. A multi whose answer was lost is followed by another try: if
the first arrives late, one of the two finds the version changed.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from dualwrite.errors import ConfigurationError, OutcomeUnknown, RetryableError
from dualwrite.recipes.spark.decision_log import DecidingTransaction, no_data
from dualwrite.recipes.spark.ledger import HEAD, Change, Entries, Ledger, decode, encode
from dualwrite.store import StoreUnavailable

T = TypeVar("T")

ROOT = "/dualwrite_spark"
START_SECONDS = 15.0
TRIES = 20
BACKOFF_SECONDS = 0.05

_LOST = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)
_OVERTAKEN = (BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency)


class Overtaken(RetryableError):
    """Somebody else has changed the ledger since it was read."""


class ZooKeeperLog:
    """One sink's ledger below `<root>/<sink>`."""

    def __init__(
        self, client: KazooClient, sink: str, root: str = ROOT, *, owns_client: bool = False
    ) -> None:
        self._client = client
        self._owns_client = owns_client
        self._path = f"{root}/{sink}"
        self._ask(lambda: client.ensure_path(self._path))

    @classmethod
    def at(cls, url: str, sink: str, start_seconds: float | None = None) -> "ZooKeeperLog":
        """Connect to `zookeeper://host:port,host:port/root`."""
        hosts, _, root = url.removeprefix("zookeeper://").partition("/")
        if not hosts:
            raise ConfigurationError(f"no hosts in {url!r}; write zookeeper://host:port/root")
        client = KazooClient(hosts=hosts)
        try:
            client.start(timeout=START_SECONDS if start_seconds is None else start_seconds)
        except client.handler.timeout_exception as error:
            client.close()
            raise StoreUnavailable(f"ZooKeeper at {hosts} did not answer") from error
        return cls(client, sink, f"/{root}" if root else ROOT, owns_client=True)

    def read(self) -> Ledger:
        return self._ask(self._read)[0]

    def update(self, change: Change) -> Ledger:
        for tries in range(1, TRIES + 1):
            try:
                ledger, versions = self._ask(self._read)
                entries = change(ledger)
                if entries:
                    self._write(ledger, entries, versions)
                return ledger.with_entries(entries)
            except (Overtaken, StoreUnavailable) as error:
                if tries == TRIES:
                    raise OutcomeUnknown(f"no answer for {self._path}: {error}") from error
                time.sleep(tries * BACKOFF_SECONDS)
        raise AssertionError("unreachable")

    def transaction(self) -> AbstractContextManager[DecidingTransaction]:
        raise no_data("ZooKeeper")

    def close(self) -> None:
        if self._owns_client:
            self._client.stop()
            self._client.close()

    def _read(self) -> tuple[Ledger, dict[str, int]]:
        # What another client was told must be seen here too, whichever server answers.
        self._client.sync(self._path)
        # The head first: a change made while the rest is read shows in its version, and the
        # write then fails.
        names = sorted(map(unquote, self._client.get_children(self._path)), key=lambda n: n != HEAD)
        entries: dict[str, Any] = {}
        versions: dict[str, int] = {}
        for name in names:
            try:
                data, stat = self._client.get(self._node(name))
            except NoNodeError:
                continue
            entries[name], versions[name] = decode(name, data), stat.version
        return Ledger().with_entries(entries), versions

    def _write(self, ledger: Ledger, entries: Entries, versions: dict[str, int]) -> None:
        request = self._client.transaction()
        for name, entry in {HEAD: ledger.head, **entries}.items():
            if name in versions and entry is not None:
                request.set_data(self._node(name), encode(entry), versions[name])
            elif name in versions:
                request.delete(self._node(name), versions[name])
            elif entry is not None:
                request.create(self._node(name), encode(entry))
        for result in self._ask(request.commit):
            if isinstance(result, _OVERTAKEN):
                raise Overtaken(f"{self._path} was changed by somebody else")
            if isinstance(result, Exception):
                raise result

    def _node(self, name: str) -> str:
        return f"{self._path}/{quote(name, safe='')}"

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _LOST as error:
            raise StoreUnavailable(f"ZooKeeper did not answer: {error!r}") from error
