"""What a state store promises: the protocol between dualwrite and the database.

A store remembers, per transactional id, the prepared Kafka transaction **in the same local
transaction as the data**. The local commit is the decision; Kafka follows it (KIP-939).

Two numbers keep instances apart. The *fence* of an id is bumped by every claim, and a state is
only ever written `WHERE fence = mine`: whoever was overtaken writes nothing. The *lease* of an
instance only says whose ids may be taken over without asking. Safety never comes from leases or
clocks, so both may be wrong.

Recovery of one id, whatever the store is:

    claim = store.claim(id)                      # bumps the fence, waits for an open writer
    producer.init_transactions(keep_prepared_txn=True)
    state = store.recall(id, claim.fence)        # read again: decide only from this read
    producer.complete_transaction(state)

`slot_ids` chooses the ids of an instance by these calls alone; adapters do the IO.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from dualwrite.errors import ConfigurationError, OutcomeUnknown, RetryableError
from dualwrite.prepared import PreparedTxnState

NOT_CLAIMED_YET = 0
"""`claim(id, expect=NOT_CLAIMED_YET)` succeeds only if the id has no row: fences begin at 1."""

ResourceName = Literal["session", "connection", "batch", "multi"]
CommitOutcome = Literal["rolled_back", "unknown"]


class CannotDecideYet(RetryableError):
    """An open transaction holds the row; waiting longer is the only safe answer."""


class StoreUnavailable(RetryableError):
    """The store did not answer. A call that only reads or claims may be made again."""


class CommitUnknown(OutcomeUnknown):
    """COMMIT was sent and no definite answer came; `__cause__` is what came instead."""


class Lease(enum.Enum):
    """Whether the owner of a row is alive, by the store's clock."""

    NONE = "none"
    """The row has no owner."""
    LIVE = "live"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim found, and the fence that it set."""

    state: PreparedTxnState
    fence: int
    seq: int = 0
    """Number of the last state remembered for this id; the next one is `seq + 1`."""
    state_fence: int = 0
    """Fence under which `state` was written. Resume mode derives the Kafka id from it."""
    cluster_id: str = ""
    """Kafka cluster that the row is bound to; "" until it is bound."""


@dataclass(frozen=True, slots=True)
class LeasedSlot:
    """An id that now belongs to the instance; recover it before the first use."""

    transactional_id: str
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow:
    """One transactional id as the store knows it."""

    transactional_id: str
    state: PreparedTxnState
    seq: int
    fence: int
    state_fence: int
    owner: str
    lease: Lease
    cluster_id: str
    updated_at: datetime | None = None


class Verdict(enum.Enum):
    SAFE = "safe"
    FORCED = "forced"
    """Unsafe as it stands; the adapter sets it in each of its transactions."""
    UNKNOWN = "unknown"
    """Cannot be read from a client; the text says what to look at."""
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True)
class DurabilityCheck:
    """One setting that an acknowledged commit depends on."""

    name: str
    value: str
    wanted: str
    verdict: Verdict
    is_accepted: bool = False
    """The user opted out of this check by its name."""


@dataclass(frozen=True, slots=True)
class Durability:
    """Whether an acknowledged commit of this store survives a power loss."""

    checks: tuple[DurabilityCheck, ...]

    @property
    def refused(self) -> tuple[DurabilityCheck, ...]:
        return tuple(c for c in self.checks if c.verdict is Verdict.UNSAFE and not c.is_accepted)

    @property
    def is_safe(self) -> bool:
        return not any(c.verdict is Verdict.UNSAFE for c in self.checks)

    def require(self) -> None:
        """Raise `ConfigurationError` for whatever is unsafe and was not accepted by name."""
        if self.refused:
            facts = "; ".join(f"{c.name} is {c.value}, wanted {c.wanted}" for c in self.refused)
            raise ConfigurationError(f"the store can lose acknowledged commits: {facts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristic:
    """A forced end against what the database says, or without knowing it."""

    transactional_id: str
    state: PreparedTxnState
    action: Literal["commit", "abort"]
    reason: str
    recorded_by: str
    recorded_at: datetime | None = None


class LocalTransaction(Protocol):
    """One transaction of the store, from `Store.begin()` to `commit()` or `rollback()`."""

    @property
    def handle(self) -> object:
        """What `Store.remember` takes to write into this transaction."""
        ...

    @property
    def reads_from_snapshot(self) -> bool:
        """True under snapshot isolation: the slot must be reserved before the first statement.

        There, a state row that changed after the snapshot was taken cannot be updated (40001).
        """
        ...

    def resource(self, name: ResourceName) -> object:
        """Give what the user works with; `ConfigurationError` if this store has no such thing."""
        ...

    def watch_savepoints(
        self, opened: Callable[[str], None], rolled_back: Callable[[str], None]
    ) -> None:
        """Call `opened(name)` at each SAVEPOINT, and `rolled_back(name)` when it is rolled back.

        Messages buffered since a savepoint vanish with it. A store without savepoints, or a
        driver that doesn't show them, never calls.
        """
        ...

    def flush(self) -> None:
        """Send pending writes, so that they fail before anything is prepared in Kafka."""
        ...

    def commit(self) -> None:
        """Commit, which decides the Kafka transaction.

        Returning means committed. `CommitUnknown` means that nobody may abort Kafka before a
        claim has told the outcome. Any other exception (among them `Fenced`) means that it is
        surely not committed, and it is then already rolled back.
        """
        ...

    def rollback(self) -> None:
        """Undo everything; never raises for a connection that is already gone."""
        ...


class Store(Protocol):
    """A state store. One object may be used by several threads."""

    def claim(self, id: str, expect: int | None = None, *, owner: str | None = None) -> Claim:
        """Bump the fence durably and return what is remembered.

        Waits, bounded, for an open transaction that has written the row (`CannotDecideYet`
        afterwards). With `expect`, claim only if the fence is still that number, else `Fenced`.
        `owner=None` leaves the owner as it is.
        """
        ...

    def begin(self, handle: object | None = None) -> LocalTransaction:
        """Begin a local transaction, or take part in the caller's own."""
        ...

    def remember(self, handle: object, id: str, state: PreparedTxnState | str, fence: int) -> None:
        """Write `state`, or its text, into the caller's open transaction, as its last statement.

        Raises `Fenced` if the fence has moved on; a store that can check only while committing
        raises it from `LocalTransaction.commit`. Nothing is decided until the caller commits.
        """
        ...

    def recall(self, id: str, fence: int) -> PreparedTxnState:
        """Read what is remembered; `Fenced` unless the fence is still `fence`."""
        ...

    def release(self, id: str, fence: int) -> bool:
        """Give up ownership; False if a newer claim had already taken it."""
        ...

    def row(self, transactional_id: str) -> StoreRow | None: ...

    def rows(self, app: str | None = None) -> list[StoreRow]:
        """Rows whose id is `<app>-<number>`, by number; every row, by id, without `app`."""
        ...

    def lease(self, owner: str, seconds: float) -> None:
        """Begin the lease of an instance."""
        ...

    def renew(self, owner: str, seconds: float) -> bool:
        """Prolong the lease; False if it had run out, so that ids may have been taken over."""
        ...

    def end_lease(self, owner: str) -> None: ...

    def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None:
        """Bind the id to a Kafka cluster; `Fenced` if the fence has moved on."""
        ...

    def record_heuristic(self, heuristic: Heuristic) -> None:
        """Write down a forced end, durably, before it is done."""
        ...

    def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]: ...

    def keep_messages(
        self,
        handle: object,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None:
        """Keep a copy of the messages in the caller's transaction (resume mode).

        Replaces the copy of the id's previous transaction, whose end was acknowledged.
        """
        ...

    def kept_messages(self, transactional_id: str, state: PreparedTxnState) -> list[bytes]: ...

    def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None: ...

    def durability(self) -> Durability: ...

    def aio(self) -> "AsyncStore":
        """The same store with awaitable methods."""
        ...

    def close(self) -> None:
        """Close what the store itself opened; what it was given stays open."""
        ...


class AsyncLocalTransaction(Protocol):
    """`LocalTransaction` for a running event loop."""

    @property
    def handle(self) -> object: ...
    @property
    def reads_from_snapshot(self) -> bool: ...
    def resource(self, name: ResourceName) -> object: ...
    def watch_savepoints(
        self, opened: Callable[[str], None], rolled_back: Callable[[str], None]
    ) -> None: ...
    async def flush(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class AsyncStore(Protocol):
    """`Store` for a running event loop: the same names, awaitable."""

    async def claim(
        self, id: str, expect: int | None = None, *, owner: str | None = None
    ) -> Claim: ...
    async def begin(self, handle: object | None = None) -> AsyncLocalTransaction: ...
    async def remember(
        self, handle: object, id: str, state: PreparedTxnState | str, fence: int
    ) -> None: ...
    async def recall(self, id: str, fence: int) -> PreparedTxnState: ...
    async def release(self, id: str, fence: int) -> bool: ...
    async def row(self, transactional_id: str) -> StoreRow | None: ...
    async def rows(self, app: str | None = None) -> list[StoreRow]: ...
    async def lease(self, owner: str, seconds: float) -> None: ...
    async def renew(self, owner: str, seconds: float) -> bool: ...
    async def end_lease(self, owner: str) -> None: ...
    async def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None: ...
    async def record_heuristic(self, heuristic: Heuristic) -> None: ...
    async def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]: ...
    async def keep_messages(
        self,
        handle: object,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None: ...
    async def kept_messages(
        self, transactional_id: str, state: PreparedTxnState
    ) -> list[bytes]: ...
    async def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None: ...
    async def durability(self) -> Durability: ...
    async def lease_slots(
        self,
        app: str,
        owner: str,
        count: int,
        *,
        is_gone: Callable[[str], bool],
        held: Iterable[str] = (),
    ) -> list[LeasedSlot]: ...
    async def take_over(
        self, app: str, owner: str, *, is_gone: Callable[[str], bool], held: Iterable[str] = ()
    ) -> list[LeasedSlot]: ...
    async def close(self) -> None: ...


def check_store(store: object) -> None:
    """Raise `ConfigurationError` for what is no state store, a URL for example."""
    is_class = isinstance(store, type)
    names = ("claim", "remember", "recall", "release")
    if is_class or not all(hasattr(store, name) for name in names):
        kind = type(store).__name__  # a URL itself may hold a password
        raise ConfigurationError(
            f"store must be a state store such as SqlStore(engine), not of type {kind}"
        )
