"""`TransactionAdmin`: looking at transactions from outside, and ending them by hand.

Every call waits for its answer, `KafkaTimeout` after `max.block.ms`. `AsyncTransactionAdmin` has the
same methods, awaitable.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dualwrite.async_driver import AsyncDriver
from dualwrite.blocking import BlockingDriver
from dualwrite.config import parse_config
from dualwrite.descriptions import (
    BrokerFeatures,
    FinishedTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from dualwrite.errors import InvalidTxnState
from dualwrite.flows.administration import AdminFlows
from dualwrite.flows.steps import Flow
from dualwrite.prepared import PreparedTxnState

__all__ = [
    "AsyncTransactionAdmin",
    "BrokerFeatures",
    "FinishedTransaction",
    "ProducerDescription",
    "TransactionAdmin",
    "TransactionDescription",
    "TransactionListing",
]

T = TypeVar("T")


class TransactionAdmin:
    """The administrator's view of transactions, by librdkafka's configuration keys."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = parse_config(config, transactional=False)
        self._flows = AdminFlows(self._config)
        self._driver = BlockingDriver(self._config, self._flows.cluster)
        self._lock = threading.Lock()
        self._is_closed = False

    def list_transactions(
        self,
        states: Iterable[str] | None = None,
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """List the transactional ids of all brokers; what an old broker cannot filter we do.

        `id_pattern` is a regular expression for the whole id. A state that the broker does not know
        is an error.
        """
        flow = self._flows.list_transactions(
            _several(states or ()), min_duration_ms, id_pattern, int(time.time() * 1000)
        )
        return self._run("list_transactions", flow)

    def describe_transactions(self, ids: Iterable[str]) -> dict[str, TransactionDescription | None]:
        """Describe ids; None for one that the coordinator does not know."""
        flow = self._flows.describe_transactions(_several(ids))
        return self._run("describe_transactions", flow)

    def describe_producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """List the producers that have written to a partition, as its leader knows them."""
        return self._run("describe_producers", self._flows.describe_producers(topic, partition))

    def force_terminate_transaction(self, id: str) -> None:
        """Abort whatever the id has open, prepared or not, and fence its producer.

        Raises `KafkaError` with code 105 for an id that the coordinator does not know.
        """
        self._run("force_terminate_transaction", self._flows.force_terminate(id))

    def end_txn(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool
    ) -> PreparedTxnState:
        """End exactly this transaction by a raw EndTxn, without taking over the id.

        Returns the pair that the id has afterwards (the empty state where the broker does not
        tell). Raises `KafkaError` with the broker's code when it refuses.
        """
        pair = PreparedTxnState(producer_id, epoch)
        return self._run("end_txn", self._flows.end_txn(transactional_id, pair, commit))

    def cluster_id(self) -> str:
        """The id of the cluster; "" if the broker has none."""
        return self._run("cluster_id", self._flows.cluster_id())

    def features(self) -> BrokerFeatures:
        """What the cluster offers."""
        return self._run("features", self._flows.features())

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._is_closed = True
            self._driver.close()

    def _run(self, call: str, flow: Flow[T]) -> T:
        with self._lock:
            if self._is_closed:
                raise _closed(call)
            try:
                return self._driver.run(flow, self._config.block_ms_max, call)
            except Exception:
                raise
            except BaseException:
                self._driver.abandon()
                raise

    def __enter__(self) -> "TransactionAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTransactionAdmin:
    """`TransactionAdmin` for a running event loop: the same names, awaitable."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = parse_config(config, transactional=False)
        self._flows = AdminFlows(self._config)
        self._driver = AsyncDriver(self._config, self._flows.cluster)
        self._is_closed = False

    async def list_transactions(
        self,
        states: Iterable[str] | None = None,
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        flow = self._flows.list_transactions(
            _several(states or ()), min_duration_ms, id_pattern, int(time.time() * 1000)
        )
        return await self._run("list_transactions", flow)

    async def describe_transactions(
        self, ids: Iterable[str]
    ) -> dict[str, TransactionDescription | None]:
        flow = self._flows.describe_transactions(_several(ids))
        return await self._run("describe_transactions", flow)

    async def describe_producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        flow = self._flows.describe_producers(topic, partition)
        return await self._run("describe_producers", flow)

    async def force_terminate_transaction(self, id: str) -> None:
        flow = self._flows.force_terminate(id)
        await self._run("force_terminate_transaction", flow)

    async def end_txn(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool
    ) -> PreparedTxnState:
        pair = PreparedTxnState(producer_id, epoch)
        return await self._run("end_txn", self._flows.end_txn(transactional_id, pair, commit))

    async def cluster_id(self) -> str:
        return await self._run("cluster_id", self._flows.cluster_id())

    async def features(self) -> BrokerFeatures:
        return await self._run("features", self._flows.features())

    async def close(self) -> None:
        self._is_closed = True
        await self._driver.close()

    async def _run(self, call: str, flow: Flow[T]) -> T:
        if self._is_closed:
            raise _closed(call)
        return await self._driver.run(flow, self._config.block_ms_max, call)

    async def __aenter__(self) -> "AsyncTransactionAdmin":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _several(given: Iterable[str]) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"transactional ids and states come as a list, not as {given!r}")
    return list(given)


def _closed(call: str) -> InvalidTxnState:
    return InvalidTxnState(f"{call} is not allowed: the administrator is closed")
