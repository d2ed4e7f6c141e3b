"""`Connection`: raw requests to one broker, for tools and tests that speak the protocol themselves.

    with Connection("127.0.0.1:9092") as connection:
        response = connection.send(EndTxnRequest("orders-0", 7, 42, True), version=5)

It opens the connection as the client does (ApiVersions, SASL, TLS by librdkafka's keys), and then
sends what it is given: nothing is retried, nothing is hidden. A connection that breaks is a
`ConnectionError`.
"""

import threading
from collections.abc import Mapping
from typing import Any

from dualwrite.async_driver import AsyncDriver
from dualwrite.blocking import BlockingDriver
from dualwrite.config import ClientConfig, parse_config
from dualwrite.flows.cluster import Cluster, ConnectionLost
from dualwrite.flows.steps import Flow, Offer
from dualwrite.wire.message import schema_of

_NEWEST = 2**15


def _parse(config: Mapping[str, Any] | str) -> ClientConfig:
    given = {"bootstrap.servers": config} if isinstance(config, str) else config
    return parse_config(given, transactional=False)


def _cluster(config: ClientConfig) -> Cluster:
    return Cluster(
        config.bootstrap[:1],
        timeout_ms=config.socket_timeout_ms,
        backoff_ms=config.retry_backoff_ms,
        backoff_ms_max=config.retry_backoff_ms_max,
    )


def _exchange(cluster: Cluster, request: Any, version: int | None) -> Flow[Any]:
    link = yield from cluster.any_link()
    if version is None:
        version = cluster.version(link, schema_of(type(request)).api_key, _NEWEST)
    try:
        return (yield from cluster.call(link, request, version))
    except ConnectionLost as lost:
        raise ConnectionError(str(lost)) from lost


def _learn(cluster: Cluster) -> Flow[Offer]:
    link = yield from cluster.any_link()
    return cluster.links[link]


class Connection:
    """A blocking connection to the first of the bootstrap servers."""

    def __init__(self, config: Mapping[str, Any] | str) -> None:
        self._config = _parse(config)
        self._cluster = _cluster(self._config)
        self._driver = BlockingDriver(self._config, self._cluster)
        self._lock = threading.Lock()

    def send(self, request: Any, version: int | None = None, timeout: float | None = None) -> Any:
        """Send a message of `dualwrite.wire.messages` and return the answer.

        Without `version` it is the newest that both sides speak; with it, exactly that one, even if
        the broker does not offer it.
        """
        return self._run(_exchange(self._cluster, request, version), timeout)

    def offer(self, timeout: float | None = None) -> Offer:
        """What the broker said of itself: versions by API key and finalized features."""
        offer: Offer = self._run(_learn(self._cluster), timeout)
        return offer

    def close(self) -> None:
        self._driver.close()

    def _run(self, flow: Flow[Any], timeout: float | None) -> Any:
        limit_ms = self._config.block_ms_max if timeout is None else timeout * 1000
        with self._lock:
            return self._driver.run(flow, limit_ms, "request")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncConnection:
    """`Connection` for a running event loop."""

    def __init__(self, config: Mapping[str, Any] | str) -> None:
        self._config = _parse(config)
        self._cluster = _cluster(self._config)
        self._driver = AsyncDriver(self._config, self._cluster)

    async def send(
        self, request: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        return await self._run(_exchange(self._cluster, request, version), timeout)

    async def offer(self, timeout: float | None = None) -> Offer:
        offer: Offer = await self._run(_learn(self._cluster), timeout)
        return offer

    async def close(self) -> None:
        await self._driver.close()

    async def _run(self, flow: Flow[Any], timeout: float | None) -> Any:
        limit_ms = self._config.block_ms_max if timeout is None else timeout * 1000
        return await self._driver.run(flow, limit_ms, "request")

    async def __aenter__(self) -> "AsyncConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
