"""`AsyncTwoPhaseProducer`: `TwoPhaseProducer` for a running event loop, the same names, awaitable.

`produce` only buffers; nothing else has to be awaited for a record than prepare, commit or flush. A
call that is cancelled has the same standing as one that timed out: make the same call again.
"""

import logging
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dualwrite import tracing
from dualwrite.async_driver import AsyncDriver
from dualwrite.config import milliseconds, parse_config
from dualwrite.content import (
    Content,
    HeadersGiven,
    Row,
    as_bytes,
    as_callback,
    as_headers,
    as_partition,
    as_state,
    as_timestamp,
)
from dualwrite.delivery import DeliveryCallback
from dualwrite.errors import DualWriteError
from dualwrite.failures import KafkaTimeout
from dualwrite.flows.states import State
from dualwrite.flows.steps import Flow
from dualwrite.flows.transaction import Completion, TransactionFlows
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import by_topic
from dualwrite.prepared import PreparedTxnState

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CLOSE_MS = 5_000


class AsyncTwoPhaseProducer:
    """The producer of one event loop; see `TwoPhaseProducer` for what each call promises."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = parse_config(config, transactional=True)
        self._flows = TransactionFlows(self._config, random.Random().randrange)
        self._driver = AsyncDriver(self._config, self._flows.cluster)
        self._is_traced = False

    async def init_transactions(
        self, keep_prepared_txn: bool = False, timeout: float | None = None
    ) -> None:
        await self._run("init_transactions", self._flows.init(keep_prepared_txn), timeout)

    async def begin_transaction(self) -> None:
        async with self._driver.lock:
            self._flows.begin()
            self._is_traced = tracing.is_on()

    async def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> None:
        value = None if value is None else as_bytes(value)
        key = None if key is None else as_bytes(key)
        partition = as_partition(partition)
        timestamp = as_timestamp(timestamp)
        as_callback(on_delivery)
        given = as_headers(headers) if headers else None
        if self._is_traced:
            given = tracing.carry(given)
        flows = self._flows
        async with self._driver.lock:
            flows.states.require("produce")
            if topic not in flows.cluster.topics:
                await self._run_held("produce", flows.know_topic(topic))
                flows.states.require("produce")
            now_ms = time.monotonic() * 1000
            timestamp_ms = timestamp or int(time.time() * 1000)
            if flows.sender.put(
                topic, key, value, partition, timestamp_ms, given, on_delivery, now_ms
            ):
                await self._run_held("produce", flows.pump())

    async def produce_batch(self, topic: str, rows: Iterable[Row], partition: int = -1) -> int:
        flows = self._flows
        remaining = iter(rows)
        total = 0
        async with self._driver.lock:
            flows.states.require("produce")
            if topic not in flows.cluster.topics:
                await self._run_held("produce_batch", flows.know_topic(topic))
            while True:
                taken, is_due = flows.sender.put_rows(
                    topic, remaining, partition, int(time.time() * 1000), time.monotonic() * 1000
                )
                total += taken
                if not is_due:
                    return total
                await self._run_held("produce_batch", flows.send_full())
                flows.states.require("produce")

    async def send_offsets_to_transaction(
        self,
        offsets: Any,
        group_metadata: GroupMetadata | bytes | str,
        timeout: float | None = None,
    ) -> None:
        flow = self._flows.send_offsets(by_topic(offsets), GroupMetadata.of(group_metadata))
        await self._run("send_offsets_to_transaction", flow, timeout)

    async def start_prepare(self, timeout: float | None = None) -> PreparedTxnState:
        return await self._run("start_prepare", self._flows.start_prepare(), timeout)

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        return await self._run_and_tell("prepare_transaction", self._flows.prepare(), timeout)

    async def complete_transaction(
        self, state: PreparedTxnState | str, timeout: float | None = None
    ) -> Completion:
        flow = self._flows.complete(as_state(state))
        return await self._run_and_tell("complete_transaction", flow, timeout)

    async def flush_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        flow = self._flows.flush_transaction()
        return await self._run_and_tell("flush_transaction", flow, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        await self._run_and_tell("commit_transaction", self._flows.commit(), timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        await self._run_and_tell("abort_transaction", self._flows.abort(), timeout)

    async def bump_epoch(self, timeout: float | None = None) -> None:
        await self._run("bump_epoch", self._flows.bump(), timeout)

    async def flush(self, timeout: float | None = None) -> int:
        self._flows.states.require("flush")
        try:
            await self._run("flush", self._flows.drain(), timeout)
        except KafkaTimeout:
            logger.debug("flush: %d records are still under way", len(self))
        self._flows.sender.deliveries.serve()
        return len(self)

    async def poll(self, timeout: float = 0) -> int:
        self._flows.states.require("poll")
        until_ms = (time.monotonic() + timeout) * 1000 if timeout > 0 else 0
        if self._flows.sender.outstanding:
            await self._run("poll", self._flows.pump(until_ms), None)
        return self._flows.sender.deliveries.serve()

    async def close(self, timeout: float | None = None, *, leave_open: bool = False) -> None:
        """Abort an open transaction and close the connections. A prepared one is left as it is.

        `leave_open` aborts nothing: somebody else ends the transaction by its pair.
        """
        states = self._flows.states
        if states.state is State.CLOSED:
            return
        try:
            is_open = states.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)
            if is_open and not leave_open:
                limit_ms = milliseconds(timeout, _CLOSE_MS)
                await self._driver.run(self._flows.abort(), limit_ms, "close")
        except DualWriteError as error:
            name = self._flows.transactional_id
            logger.warning("close could not abort transactional_id=%s: %s", name, error)
        finally:
            states.close()
            await self._driver.close()
        self._flows.sender.deliveries.serve_quietly()

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        return self._flows.prepared

    @property
    def producer_pair(self) -> PreparedTxnState:
        return self._flows.pair

    @property
    def transaction_version(self) -> int:
        return self._flows.version

    def __len__(self) -> int:
        return self._flows.sender.outstanding + len(self._flows.sender.deliveries)

    async def __aenter__(self) -> "AsyncTwoPhaseProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: str, flow: Flow[T], timeout: float | None) -> T:
        async with self._driver.lock:
            return await self._run_held(call, flow, timeout)

    async def _run_held(self, call: str, flow: Flow[T], timeout: float | None = None) -> T:
        self._flows.states.require_open(call)
        limit_ms = milliseconds(timeout, self._config.block_ms_max)
        context = f"{call} of {self._flows.transactional_id!r}"
        return await self._driver.run_held(flow, limit_ms, context)

    async def _run_and_tell(self, call: str, flow: Flow[T], timeout: float | None) -> T:
        try:
            with tracing.span(call, transactional_id=self._flows.transactional_id):
                return await self._run(call, flow, timeout)
        finally:
            self._flows.sender.deliveries.serve_quietly()
