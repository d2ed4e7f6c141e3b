"""`DualWriter`: one block, one transaction in the database and in Kafka.

    dw = DualWriter({"bootstrap.servers": "..."}, store=SqlStore(engine), app="orders")
    with dw:
        with dw.transaction() as tx:
            tx.session.add(Order(...))
            tx.produce("orders", key=b"..", value=b"..")
        tx.outcome

Leaving the block commits both sides, an exception undoes both (`Rollback` quietly). Threads may share
a writer; each transaction belongs to one thread. A block inside another one joins it.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from dualwrite.errors import InvalidTxnState, RetryableError
from dualwrite.kafka_access import KafkaAccess
from dualwrite.owner import Owner
from dualwrite.retries import ATTEMPTS, retry
from dualwrite.slot_pool import Slot
from dualwrite.slot_queue import SlotQueue
from dualwrite.steps import run
from dualwrite.store import Store, check_store
from dualwrite.surroundings import Surroundings
from dualwrite.transaction import Block, TransactionView, Unit
from dualwrite.upkeep import StoreLeaser, Upkeep
from dualwrite.write_path import WritePath, ends_quietly, raise_named
from dualwrite.writer_settings import KafkaCommit, ModeName, WriterSettings

T = TypeVar("T")

logger = logging.getLogger("dualwrite.writer")

IDLE_SECONDS_MAX = 86_400
"""A slot that was idle for longer is recovered before its next use: a coordinator forgets ids that
are not used for seven days (`transactional.id.expiration.ms`)."""

COLLECT_SECONDS = 0.02
"""After so long a Kafka commit in the background is looked after, if no writer came for its slot."""

_current: "contextvars.ContextVar[Transaction | None]" = contextvars.ContextVar(
    "dualwrite_transaction", default=None
)


class Transaction(Block):
    """One dual write. Nothing goes to Kafka before the block ends."""

    _writer: "DualWriter"

    def __init__(self, writer: "DualWriter", handle: object | None) -> None:
        super().__init__(writer, handle)
        self._thread = threading.get_ident()
        self._token: contextvars.Token[Transaction | None] | None = None
        self._joined: Transaction | None = None
        self._opened: _Opened

    def __enter__(self) -> "Transaction":
        outer = _current.get()
        if outer is not None and outer._thread == self._thread:
            outer.check_joins(self._writer, self._handle)
            self._joined = outer
            return outer
        self._opened = self._writer._require_open()
        self._unit = self._opened.begin(self._handle)
        self._token = _current.set(self)
        return self

    def __exit__(
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
            self._opened.commit(self._open_unit())
            return False
        self._opened.roll_back(self._open_unit())
        return ends_quietly(error)


class ExplicitTransaction(TransactionView):
    """A dual write that is ended by `commit()` or `rollback()` instead of by leaving a block."""

    def __init__(self, opened: "_Opened", handle: object | None) -> None:
        super().__init__()
        self._opened = opened
        self._unit = opened.begin(handle)

    def commit(self) -> None:
        """Commit both sides, as leaving a block does."""
        self._opened.commit(self._usable())

    def rollback(self) -> None:
        """Undo both sides."""
        self._opened.roll_back(self._usable())


class DualWriter:
    """Writes to a database and to Kafka in one transaction, and recovers what a crash left."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        store: Store,
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
        """Check the arguments; nothing is opened before `open()` or `with`.

        `config` has librdkafka's keys, `bootstrap.servers` at least. `app` names the service: its
        instances share transactional ids `<app>-0`, `<app>-1`, … and recover each other.

        `slots` is how many transactions this instance can have open at a time; more wait
        `slot_timeout` seconds. Within `lease_seconds` of an instance's death its peers take over.
        `kafka_commit="background"` returns at the database's decision, before Kafka has committed.
        `instance` is a name that a restarted instance keeps: it may claim its earlier rows at once.

        `mode` is chosen by what the brokers can ("2pc" or "resume") unless it is given. `adopt`
        accepts a database or cluster that is not the one remembered. `on_step` is told each step of
        a write and of recovery by name.
        """
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
        self._store = store
        self._opened: _Opened | None = None

    @property
    def store(self) -> Store:
        return self._store

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

    def open(self) -> "DualWriter":
        """Lease slots and recover whatever was left in doubt."""
        if self._opened is not None:
            raise InvalidTxnState("the writer is open already")
        opened = _Opened(self.settings, self._store)
        opened.start()
        self._opened = opened
        return self

    def close(self) -> None:
        """Wait for Kafka commits that are under way and give the slots back."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.stop()

    def __enter__(self) -> "DualWriter":
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self, handle: object | None = None) -> Transaction:
        """A block that commits to both sides when it is left.

        `handle` is the caller's own session or connection, whose transaction is then ended by this
        block. Waits `slot_timeout` for a free slot, then `RetryableError`.
        """
        return Transaction(self, handle)

    def begin(self, handle: object | None = None) -> ExplicitTransaction:
        """Begin a transaction for code that cannot use a block; it must be ended in any case."""
        return ExplicitTransaction(self._require_open(), handle)

    def run(self, function: Callable[[Transaction], T], attempts: int = ATTEMPTS) -> T:
        """Call `function(tx)` in a transaction, and the whole again on `RetryableError`."""

        def block() -> T:
            with self.transaction() as tx:
                result = function(tx)
            return result

        return retry(block, attempts)

    def _require_open(self) -> "_Opened":
        if self._opened is None:
            raise InvalidTxnState("the writer is not open: use it as `with dw:`, or call open()")
        return self._opened


class _Opened:
    """What exists between `open` and `close`: slots, lease, a few threads."""

    def __init__(self, settings: WriterSettings, store: Store) -> None:
        self._settings = settings
        self._slots = SlotQueue()
        owner = Owner.of_this_process(settings.instance)
        self._kafka = KafkaAccess(settings)
        self._around = Surroundings(
            app=settings.app,
            owner_name=str(owner),
            store=store,
            kafka=self._kafka,
            adopt=settings.adopt,
        )
        self._around.resume_timeout = settings.resume_timeout_ms / 1000
        if settings.on_step is not None:
            self._around.at = settings.on_step
        self.upkeep = Upkeep(settings, self._around, owner, StoreLeaser(store), self._give)
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        try:
            run(self.upkeep.open())
        except BaseException:
            run(self.upkeep.close_after_failure())
            self._kafka.close()
            raise
        self.path = WritePath(self._around, self.upkeep.mode)
        works = {"renewal": self._renew, "upkeep": self._keep_up}
        if self._settings.kafka_commit == "background":
            works["commit"] = self._collect
        for name, work in works.items():
            thread = threading.Thread(target=work, name=f"dualwrite-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._slots.has_ending.set()
        for thread in self._threads:
            thread.join()
        self._finish_all()
        run(self.upkeep.close())
        self._kafka.close()

    def begin(self, handle: object | None) -> Unit:
        slot = self.take()
        try:
            # The slot is taken before the first statement: a state row that changes after the
            # transaction's snapshot could not be written (40001), and nobody who holds database
            # locks ever waits for a slot.
            local = self._around.store.begin(handle)
        except BaseException:
            self.give_back(slot)
            raise
        unit = Unit(slot, local)
        local.watch_savepoints(unit.buffer.savepoint_opened, unit.buffer.savepoint_rolled_back)
        return unit

    def commit(self, unit: Unit) -> None:
        is_handed_over = False
        try:
            outcome = run(self.path.commit(unit))
            if outcome.kafka == "pending" and self._is_left_to_others():
                run(self.path.start_finish(unit))
                is_handed_over = True  # first: a unit that two would end could end the next one
                self._slots.put_ending(unit)
            else:
                run(self.path.finish(unit))
        finally:
            if not is_handed_over:
                self.give_back(unit.slot)

    def roll_back(self, unit: Unit) -> None:
        try:
            run(self.path.roll_back(unit))
        finally:
            self.give_back(unit.slot)

    def take(self) -> Slot:
        deadline = time.monotonic() + self._settings.slot_timeout
        while True:
            slot = self._slots.take(max(0.0, deadline - time.monotonic()))
            if slot is None:
                raise RetryableError(
                    f"no slot of app {self._settings.app} became free within"
                    f" {self._settings.slot_timeout} s (slots={self._settings.slots})"
                )
            if not isinstance(slot, Slot):
                self._finish(slot)
            elif self.upkeep.pool.lend(slot):
                break
        if time.monotonic() - slot.used_at > IDLE_SECONDS_MAX:
            self._refresh(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        slot.is_ready = is_usable = slot.is_ready and not slot.is_lost
        # From here on a slot that is not ready is upkeep's, which may be faster than this thread.
        self.upkeep.pool.take_back(slot)
        if is_usable:
            self._give(slot)
        else:
            self._wake.set()

    def _is_left_to_others(self) -> bool:
        """Whether the answer to a Kafka commit is for the slot's next user, or the collector."""
        return self._settings.kafka_commit == "background" and not self._stopping.is_set()

    def _collect(self) -> None:
        """Take in the answers for which no writer comes."""
        while not self._stopping.is_set():
            self._slots.has_ending.wait()
            self._stopping.wait(COLLECT_SECONDS)
            self._slots.has_ending.clear()
            self._finish_all()

    def _finish_all(self) -> None:
        while unit := self._slots.take_ending():
            self._finish(unit)

    def _finish(self, unit: Unit) -> None:
        try:
            run(self.path.finish(unit))
        finally:
            self.give_back(unit.slot)

    def _refresh(self, slot: Slot) -> None:
        slot.start_over()
        try:
            run(self.upkeep.mode.recover(slot))
        except BaseException as error:  # noqa: BLE001 - raised again, under a better name
            self.give_back(slot)
            raise_named(error)

    def _give(self, slot: Slot) -> None:
        slot.used_at = time.monotonic()
        self._slots.put(slot)

    def _renew(self) -> None:
        while not self._stopping.wait(self._settings.round_seconds):
            try:
                run(self.upkeep.renew())
            except Exception as error:  # noqa: BLE001 - the next renewal comes soon
                self._around.tell(logging.WARNING, "renewal_failed", "", error=error)

    def _keep_up(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._settings.round_seconds)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                run(self.upkeep.round())
            except Exception as error:  # noqa: BLE001 - the next round comes soon
                self._around.tell(logging.WARNING, "round_failed", "", error=error)
