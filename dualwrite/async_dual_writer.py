"""`AsyncDualWriter`: the dual write for a running event loop, with the same names, awaitable.

    async with AsyncDualWriter({"bootstrap.servers": "..."}, store=SqlStore(url), app="orders") as dw:
        async with dw.transaction() as tx:
            tx.session.add(Order(...))
            tx.produce("orders", value=b"..")

Cancelling the task while the block is being left undoes both sides if COMMIT was not sent yet.
Afterwards COMMIT and what follows run to their end, and then the cancellation is raised: `tx.outcome`
tells what happened.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from dualwrite.admin import AsyncTransactionAdmin, BrokerFeatures, TransactionDescription
from dualwrite.async_producer import AsyncTwoPhaseProducer
from dualwrite.dual_writer import IDLE_SECONDS_MAX
from dualwrite.errors import InvalidTxnState, RetryableError
from dualwrite.kafka_access import full_matches
from dualwrite.owner import Owner
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.retries import ATTEMPTS, retry_async
from dualwrite.slot_pool import Slot
from dualwrite.steps import run_async
from dualwrite.store import AsyncStore, LocalTransaction, Store, check_store
from dualwrite.surroundings import Kafka, Surroundings
from dualwrite.transaction import Block, Unit
from dualwrite.upkeep import Leaser, Upkeep
from dualwrite.write_path import WritePath, ends_quietly, raise_named
from dualwrite.writer_settings import KafkaCommit, ModeName, WriterSettings

T = TypeVar("T")

_current: "contextvars.ContextVar[AsyncTransaction | None]" = contextvars.ContextVar(
    "dualwrite_async_transaction", default=None
)


class AsyncTransaction(Block):
    """One dual write. Nothing goes to Kafka before the block ends."""

    _writer: "AsyncDualWriter"

    def __init__(self, writer: "AsyncDualWriter", handle: object | None) -> None:
        super().__init__(writer, handle)
        self._task: asyncio.Task[Any] | None = None
        self._token: contextvars.Token[AsyncTransaction | None] | None = None
        self._joined: AsyncTransaction | None = None
        self._opened: _Opened

    async def __aenter__(self) -> "AsyncTransaction":
        self._task = asyncio.current_task()
        outer = _current.get()
        # A child task inherits the context of its parent, but not the parent's transaction.
        if outer is not None and outer._task is self._task:
            outer.check_joins(self._writer, self._handle)
            self._joined = outer
            return outer
        self._opened = self._writer._require_open()
        self._unit = await self._opened.begin(self._handle)
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._joined is not None:
            if error is not None:
                self._joined.spoil(error)
            return False
        assert self._token is not None
        _current.reset(self._token)
        if error is None:
            await self._opened.commit(self._open_unit())
            return False
        await self._opened.roll_back(self._open_unit())
        return ends_quietly(error)


class AsyncDualWriter:
    """Writes to a database and to Kafka in one transaction, and recovers what a crash left."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        store: Store | AsyncStore,
        app: str,
        slots: int = 8,
        lease_seconds: float = 10,
        kafka_commit: KafkaCommit = "wait",
        slot_timeout: float = 30,
        instance: str | None = None,
        mode: ModeName = "auto",
        adopt: bool = False,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """Check the arguments, which are those of `DualWriter`; nothing is opened yet."""
        self.settings = WriterSettings(
            config=config,
            app=app,
            slots=slots,
            lease_seconds=lease_seconds,
            kafka_commit=kafka_commit,
            slot_timeout=slot_timeout,
            instance=instance or "",
            mode=mode,
            adopt=adopt,
            on_step=on_step,
        )
        check_store(store)
        self._given = store
        self._opened: _Opened | None = None

    @property
    def app(self) -> str:
        return self.settings.app

    @property
    def mode(self) -> str:
        """ "2pc" or "resume" once it is open; what was asked for before."""
        return self._opened.upkeep.mode.name if self._opened else self.settings.mode

    @property
    def is_open(self) -> bool:
        """True once recovery is done: what a readiness probe should ask."""
        return self._opened is not None

    async def open(self) -> "AsyncDualWriter":
        """Lease slots and recover whatever was left in doubt."""
        if self._opened is not None:
            raise InvalidTxnState("the writer is open already")
        given = self._given
        is_ours = hasattr(given, "aio")
        store = given.aio() if hasattr(given, "aio") else given
        opened = _Opened(self.settings, cast(AsyncStore, store), is_ours)
        await opened.start()
        self._opened = opened
        return self

    async def close(self) -> None:
        """Wait for Kafka commits that are under way and give the slots back."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.stop()

    async def __aenter__(self) -> "AsyncDualWriter":
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def transaction(self, handle: object | None = None) -> AsyncTransaction:
        """A block that commits to both sides when it is left; see `DualWriter.transaction`."""
        return AsyncTransaction(self, handle)

    async def run(
        self, function: Callable[[AsyncTransaction], Awaitable[T]], attempts: int = ATTEMPTS
    ) -> T:
        """Await `function(tx)` in a transaction, and the whole again on `RetryableError`."""

        async def block() -> T:
            async with self.transaction() as tx:
                result = await function(tx)
            return result

        return await retry_async(block, attempts)

    def _require_open(self) -> "_Opened":
        if self._opened is None:
            raise InvalidTxnState("the writer is not open: use it as `async with dw:`")
        return self._opened


class _Opened:
    """What exists between `open` and `close`: slots, lease, two tasks."""

    def __init__(self, settings: WriterSettings, store: AsyncStore, is_store_ours: bool) -> None:
        self._settings = settings
        self._store = store
        self._is_store_ours = is_store_ours
        self._ready: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()
        owner = Owner.of_this_process(settings.instance)
        self._kafka = AsyncKafkaAccess(settings)
        # Conversations are typed against the blocking names; `run_async` awaits what they yield.
        self._around = Surroundings(
            app=settings.app,
            owner_name=str(owner),
            store=cast(Store, store),
            kafka=cast(Kafka, self._kafka),
            adopt=settings.adopt,
            pause=asyncio.sleep,
            resume_timeout=settings.resume_timeout_ms / 1000,
        )
        if settings.on_step is not None:
            self._around.at = settings.on_step
        self.upkeep = Upkeep(settings, self._around, owner, cast(Leaser, store), self._give)
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        try:
            await run_async(self.upkeep.open())
        except BaseException:
            await run_async(self.upkeep.close_after_failure())
            await self._close_parts()
            raise
        self.path = WritePath(self._around, self.upkeep.mode)
        self._keepers = [
            asyncio.create_task(self._renew(), name="dualwrite-renewal"),
            asyncio.create_task(self._keep_up(), name="dualwrite-upkeep"),
        ]

    async def stop(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._stopping.set()
        self._wake.set()
        await asyncio.wait(self._keepers)
        await run_async(self.upkeep.close())
        await self._close_parts()

    async def begin(self, handle: object | None) -> Unit:
        slot = await self._take()
        task = self._own(self._begin(slot, handle))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._own(self._undo_begin(task))
            raise

    async def commit(self, unit: Unit) -> None:
        """End the unit in a task of its own, which a cancellation stops only before COMMIT."""
        stop = asyncio.Event()
        await self._to_the_end(self._commit(unit, stop), stop)

    async def roll_back(self, unit: Unit) -> None:
        await self._to_the_end(self._roll_back(unit), asyncio.Event())

    async def _to_the_end(self, work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        task = self._own(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            if not task.done():
                await asyncio.wait({task})
            raise

    async def _begin(self, slot: Slot, handle: object | None) -> Unit:
        try:
            local = cast(LocalTransaction, await self._store.begin(handle))
        except BaseException:
            self._give_back(slot)
            raise
        unit = Unit(slot, local)
        local.watch_savepoints(unit.buffer.savepoint_opened, unit.buffer.savepoint_rolled_back)
        return unit

    async def _undo_begin(self, begun: "asyncio.Task[Unit]") -> None:
        with contextlib.suppress(Exception):
            await self._roll_back(await begun)

    async def _commit(self, unit: Unit, stop: asyncio.Event) -> None:
        is_handed_over = False
        try:
            outcome = await run_async(
                self.path.commit(unit), lambda: stop.is_set() and not unit.is_sent
            )
            if outcome.kafka == "pending" and self._settings.kafka_commit == "background":
                self._own(self._finish(unit))
                is_handed_over = True
            else:
                await run_async(self.path.finish(unit))
        finally:
            if not is_handed_over:
                self._give_back(unit.slot)

    async def _roll_back(self, unit: Unit) -> None:
        try:
            await run_async(self.path.roll_back(unit))
        finally:
            self._give_back(unit.slot)

    async def _finish(self, unit: Unit) -> None:
        try:
            await run_async(self.path.finish(unit))
        finally:
            self._give_back(unit.slot)

    async def _take(self) -> Slot:
        try:
            async with asyncio.timeout(self._settings.slot_timeout):
                while not self.upkeep.pool.lend(slot := await self._ready.get()):
                    pass
        except TimeoutError:
            raise RetryableError(
                f"no slot of app {self._settings.app} became free within"
                f" {self._settings.slot_timeout} s (slots={self._settings.slots})"
            ) from None
        if time.monotonic() - slot.used_at > IDLE_SECONDS_MAX:
            slot.start_over()
            try:
                await run_async(self.upkeep.mode.recover(slot))
            except BaseException as error:  # noqa: BLE001 - raised again, under a better name
                self._give_back(slot)
                raise_named(error)
        return slot

    def _give_back(self, slot: Slot) -> None:
        slot.is_ready = is_usable = slot.is_ready and not slot.is_lost
        self.upkeep.pool.take_back(slot)
        if is_usable:
            self._give(slot)
        else:
            self._wake.set()

    def _give(self, slot: Slot) -> None:
        slot.used_at = time.monotonic()
        self._ready.put_nowait(slot)

    def _own(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that `stop` waits for."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it was told; a cancelled waiter need not be

    async def _renew(self) -> None:
        while not await self._stopped_within(self._settings.round_seconds):
            try:
                await run_async(self.upkeep.renew())
            except Exception as error:  # noqa: BLE001 - the next renewal comes soon
                self._around.tell(logging.WARNING, "renewal_failed", "", error=error)

    async def _keep_up(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.round_seconds):
                    await self._wake.wait()
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                await run_async(self.upkeep.round())
            except Exception as error:  # noqa: BLE001 - the next round comes soon
                self._around.tell(logging.WARNING, "round_failed", "", error=error)

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _close_parts(self) -> None:
        await self._kafka.close()
        if self._is_store_ours:
            await self._store.close()


class AsyncKafkaAccess:
    """`surroundings.Kafka` with awaitable calls."""

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        self._admin = AsyncTransactionAdmin(settings.admin_config)

    def producer(self, transactional_id: str, *, two_phase: bool) -> TwoPhaseProducer:
        config = self._settings.producer_config(transactional_id, two_phase=two_phase)
        # Its methods are awaitable, and nothing but `run_async` ever calls them.
        return cast(TwoPhaseProducer, AsyncTwoPhaseProducer(config))

    async def cluster_id(self) -> str:
        return await self._admin.cluster_id()

    async def features(self) -> BrokerFeatures:
        return await self._admin.features()

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        return (await self._admin.describe_transactions([transactional_id]))[transactional_id]

    async def open_ids(self, pattern: str) -> list[str]:
        listed = await self._admin.list_transactions(states=["Ongoing"], id_pattern=pattern)
        return full_matches(pattern, listed)

    async def end_txn(self, transactional_id: str, pair: PreparedTxnState, commit: bool) -> None:
        await self._admin.end_txn(transactional_id, pair.producer_id, pair.epoch, commit)

    async def close(self) -> None:
        await self._admin.close()
