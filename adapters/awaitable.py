"""Any store for an event loop: the same methods, run where they may wait.

`in_thread` runs a call in a worker thread. `in_greenlet` runs it on the loop's own thread, inside
a greenlet from which SQLAlchemy's async drivers await; both take the same synchronous code.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy.util import greenlet_spawn

from dualwrite import slot_ids
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import (
    Claim,
    Durability,
    Heuristic,
    LeasedSlot,
    LocalTransaction,
    ResourceName,
    Store,
    StoreRow,
)

T = TypeVar("T")


class Run(Protocol):
    """Runs a synchronous call without holding up the loop."""

    def __call__(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Awaitable[T]: ...


async def in_thread(call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    return await asyncio.to_thread(call, *args, **kwargs)


async def in_greenlet(call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    return await greenlet_spawn(call, *args, **kwargs)


def awaits(handle: object) -> bool:
    """True for a handle whose own methods are coroutines: it can only be used from a greenlet."""
    kinds = (type(handle).__name__, *(base.__name__ for base in type(handle).__mro__))
    return any(kind in ("AsyncSession", "AsyncConnection") for kind in kinds)


class AwaitableTransaction:
    """A local transaction with awaitable methods."""

    def __init__(self, transaction: LocalTransaction, run: Run) -> None:
        self._transaction = transaction
        self._run = run

    @property
    def handle(self) -> object:
        return self

    @property
    def reads_from_snapshot(self) -> bool:
        return self._transaction.reads_from_snapshot

    def resource(self, name: ResourceName) -> object:
        return self._transaction.resource(name)

    def watch_savepoints(
        self, opened: Callable[[str], None], rolled_back: Callable[[str], None]
    ) -> None:
        self._transaction.watch_savepoints(opened, rolled_back)

    async def flush(self) -> None:
        await self._run(self._transaction.flush)

    async def commit(self) -> None:
        await self._run(self._transaction.commit)

    async def rollback(self) -> None:
        await self._run(self._transaction.rollback)

    async def call(self, method: Callable[..., T], *args: object) -> T:
        """Run a method of the store whose first argument is this transaction."""
        return await self._run(method, self._transaction.handle, *args)


class AwaitableStore:
    """A store with awaitable methods, over any synchronous one."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    async def claim(self, id: str, expect: int | None = None, *, owner: str | None = None) -> Claim:
        return await self._run(self._store.claim, id, expect, owner=owner)

    async def begin(self, handle: object | None = None) -> AwaitableTransaction:
        run = in_greenlet if awaits(handle) else self._run
        return AwaitableTransaction(await run(self._store.begin, handle), run)

    async def remember(
        self, handle: object, id: str, state: PreparedTxnState | str, fence: int
    ) -> None:
        await self._in(handle, self._store.remember, id, state, fence)

    async def recall(self, id: str, fence: int) -> PreparedTxnState:
        return await self._run(self._store.recall, id, fence)

    async def release(self, id: str, fence: int) -> bool:
        return await self._run(self._store.release, id, fence)

    async def row(self, transactional_id: str) -> StoreRow | None:
        return await self._run(self._store.row, transactional_id)

    async def rows(self, app: str | None = None) -> list[StoreRow]:
        return await self._run(self._store.rows, app)

    async def lease(self, owner: str, seconds: float) -> None:
        await self._run(self._store.lease, owner, seconds)

    async def renew(self, owner: str, seconds: float) -> bool:
        return await self._run(self._store.renew, owner, seconds)

    async def end_lease(self, owner: str) -> None:
        await self._run(self._store.end_lease, owner)

    async def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None:
        await self._run(self._store.bind_cluster, transactional_id, fence, cluster_id)

    async def record_heuristic(self, heuristic: Heuristic) -> None:
        await self._run(self._store.record_heuristic, heuristic)

    async def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]:
        return await self._run(self._store.heuristics, transactional_id)

    async def keep_messages(
        self,
        handle: object,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None:
        await self._in(handle, self._store.keep_messages, transactional_id, state, messages)

    async def kept_messages(self, transactional_id: str, state: PreparedTxnState) -> list[bytes]:
        return await self._run(self._store.kept_messages, transactional_id, state)

    async def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None:
        await self._run(self._store.forget_messages, transactional_id, state)

    async def durability(self) -> Durability:
        return await self._run(self._store.durability)

    async def lease_slots(
        self,
        app: str,
        owner: str,
        count: int,
        *,
        is_gone: Callable[[str], bool],
        held: Iterable[str] = (),
    ) -> list[LeasedSlot]:
        return await self._run(
            slot_ids.lease_slots, self._store, app, owner, count, is_gone=is_gone, held=held
        )

    async def take_over(
        self, app: str, owner: str, *, is_gone: Callable[[str], bool], held: Iterable[str] = ()
    ) -> list[LeasedSlot]:
        return await self._run(
            slot_ids.take_over, self._store, app, owner, is_gone=is_gone, held=held
        )

    async def close(self) -> None:
        await self._run(self._store.close)

    async def _in(self, handle: object, method: Callable[..., None], *args: object) -> None:
        if isinstance(handle, AwaitableTransaction):
            await handle.call(method, *args)
        else:
            await (in_greenlet if awaits(handle) else self._run)(method, handle, *args)
