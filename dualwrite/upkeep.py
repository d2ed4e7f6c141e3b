"""Leasing, recovering and giving back slots: what a dual writer does beside its writes.

Opening leases the instance's own slots, takes over whatever nobody alive owns, and recovers all of
it before the first write. Afterwards a round every few seconds does the same for what has gone
wrong meanwhile, here or in a peer that died: with two-phase commit there is no timeout, so the
time until recovery is the time for which readers of the partitions stand still.
"""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.failures import UnsupportedByBroker
from dualwrite.flows.transaction import TimeoutRefused
from dualwrite.owner import Owner
from dualwrite.prepared import PreparedTxnState
from dualwrite.resume import Resume
from dualwrite.slot_ids import lease_slots, slot_number, take_over
from dualwrite.slot_pool import Slot, SlotPool
from dualwrite.steps import Steps, call
from dualwrite.store import NOT_CLAIMED_YET, CannotDecideYet, LeasedSlot, Store
from dualwrite.surroundings import Surroundings
from dualwrite.two_phase import TwoPhase, close_producer
from dualwrite.wire.api_keys import ApiKey
from dualwrite.write_path import Mode
from dualwrite.writer_settings import WriterSettings

INIT_PRODUCER_ID_2PC = 6
TRANSACTION_VERSION_2PC = 2
BROKER_SWEEP_ROUNDS = 10
"""The broker is asked for ids without a row at opening, and then every so many rounds."""


class Leaser(Protocol):
    """The two calls of `slot_ids`, which an `AsyncStore` offers itself."""

    def lease_slots(
        self,
        app: str,
        owner: str,
        count: int,
        *,
        is_gone: Callable[[str], bool],
        held: Iterable[str] = (),
    ) -> list[LeasedSlot]: ...

    def take_over(
        self, app: str, owner: str, *, is_gone: Callable[[str], bool], held: Iterable[str] = ()
    ) -> list[LeasedSlot]: ...


class StoreLeaser:
    """`Leaser` over a blocking store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def lease_slots(
        self,
        app: str,
        owner: str,
        count: int,
        *,
        is_gone: Callable[[str], bool],
        held: Iterable[str] = (),
    ) -> list[LeasedSlot]:
        return lease_slots(self._store, app, owner, count, is_gone=is_gone, held=held)

    def take_over(
        self, app: str, owner: str, *, is_gone: Callable[[str], bool], held: Iterable[str] = ()
    ) -> list[LeasedSlot]:
        return take_over(self._store, app, owner, is_gone=is_gone, held=held)


class Upkeep:
    """The slots of one open writer."""

    def __init__(
        self,
        settings: WriterSettings,
        around: Surroundings,
        owner: Owner,
        leaser: Leaser,
        give: Callable[[Slot], None],
    ) -> None:
        """`give` hands a ready slot to whoever waits for one."""
        self.pool = SlotPool()
        self.mode: Mode = TwoPhase(around)
        self._settings = settings
        self._around = around
        self._owner = owner
        self._leaser = leaser
        self._give = give
        self._rounds = 0
        self._has_lease = False
        self._resumed: set[str] = set()
        """Slots that resume mode has left with something open, though this mode is another one."""
        self._has_looked = False
        """Whether `_resumed` was asked for behind the last claim."""

    def open(self) -> Steps[None]:
        """Lease, recover and sweep; afterwards the pool is full and nothing of the dead is open."""
        yield from self._prepare()
        yield from self._lease()
        yield from self._recover_the_dead()

    def recover_only(self) -> Steps[None]:
        """Do what opening does for the dead, without leasing a slot for anybody."""
        yield from self._prepare()
        yield from self._recover_the_dead()

    def resolve(self, transactional_id: str) -> Steps[None]:
        """Claim one slot, whoever owns it, and end what it has open as the store says."""
        yield from self._prepare()
        claim = yield from call(
            self._around.store.claim, transactional_id, owner=self._around.owner_name
        )
        slot = Slot(transactional_id, claim, is_kept=False)
        self._hold(slot)
        yield from self._recover_or_fall_back(slot)
        self._around.raise_heuristic_aborts()

    def _prepare(self) -> Steps[None]:
        """Check what can be checked without claiming anything, then begin the lease."""
        around, store = self._around, self._around.store
        durability = yield from call(store.durability)
        durability.require()
        around.cluster_id = yield from call(around.kafka.cluster_id)
        # A copied database must be refused before the first claim or InitProducerId.
        for row in (yield from call(store.rows, self._settings.app)):
            around.check_cluster(row.transactional_id, row.cluster_id)
        yield from self._choose_mode()
        self._has_lease = True
        yield from call(store.lease, around.owner_name, self._settings.row_lease_seconds)

    def _recover_the_dead(self) -> Steps[None]:
        yield from self._take_over()
        refusals = yield from self._recover_all()
        yield from self._sweep_broker()
        if refusals:
            raise refusals[0]
        self._around.raise_heuristic_aborts()

    def round(self) -> Steps[None]:
        """Recover what is in trouble, replace what was lost, take over from the dead."""
        self._rounds += 1
        rows = yield from call(self._around.store.rows, self._settings.app)
        self.pool.lose_overtaken(rows)
        for slot in self.pool.in_trouble():
            yield from self.try_recover(slot)
        if self.pool.kept < self._settings.slots:
            yield from self._lease()
        released = [row.transactional_id for row in rows if not row.owner]  # and finished already
        yield from self._take_over(passing=released)
        if self._rounds % BROKER_SWEEP_ROUNDS == 0:
            yield from self._sweep_broker()
        for slot in self.pool.in_trouble():
            yield from self.try_recover(slot)
        self._around.heuristic_aborts.clear()  # each was logged as it was found

    def renew(self) -> Steps[None]:
        """Prolong the lease; after it had run out, the fence tells what was taken over."""
        name, seconds = self._around.owner_name, self._settings.row_lease_seconds
        if not (yield from call(self._around.store.renew, name, seconds)):
            self._around.tell(logging.WARNING, "lease_lost", "")
            yield from call(self._around.store.lease, name, seconds)

    def close(self) -> Steps[None]:
        """End what is decided, as far as it goes, and give everything back."""
        for slot in self.pool.in_trouble():
            yield from self.try_recover(slot)
        for slot in self.pool:
            yield from close_producer(slot)
        yield from self._end_lease()

    def close_after_failure(self) -> Steps[None]:
        """Give everything back as it is: opening failed, and the next one recovers again."""
        for slot in self.pool:
            yield from close_producer(slot)
        yield from self._end_lease()

    def _end_lease(self) -> Steps[None]:
        """End the lease, so that peers may take every slot at once."""
        if not self._has_lease:
            return
        try:
            yield from call(self._around.store.end_lease, self._around.owner_name)
        except Exception as error:  # noqa: BLE001 - it runs out by itself
            self._around.tell(logging.WARNING, "lease_not_ended", "", error=error)

    def try_recover(self, slot: Slot) -> Steps[None]:
        """Recover a slot; what fails is logged and tried again in the next round."""
        try:
            yield from self.recover(slot)
        except Exception as error:  # noqa: BLE001 - the next round tries again
            name = slot.transactional_id
            self._around.tell(logging.WARNING, "recovery_failed", name, error=error)

    def recover(self, slot: Slot) -> Steps[None]:
        """Make a slot ready and hand it out; release it if it was only taken over, drop it if lost."""
        if not slot.is_lost:
            try:
                yield from self._leave_resume_mode(slot)
                yield from self._recover_in(self.mode, slot)
            except Fenced:
                if not slot.is_lost:
                    raise  # by Kafka alone: the next attempt inits again
        if slot.is_kept and not slot.is_lost:
            self._give(slot)
            return
        yield from close_producer(slot)
        self.pool.drop(slot)
        if not slot.is_lost:
            yield from call(self._around.store.release, slot.transactional_id, slot.fence)

    def _recover_in(self, mode: Mode, slot: Slot) -> Steps[None]:
        """Recover in a mode, with a timeout that the broker takes if nobody has chosen one."""
        settings, around = self._settings, self._around
        while True:
            try:
                yield from mode.recover(slot)
            except TimeoutRefused:
                if not settings.lower_resume_timeout():
                    raise
                around.resume_timeout = settings.resume_timeout_ms / 1000
                logging.getLogger(__name__).warning(
                    "event=resume_timeout app=%s timeout_ms=%s reason=the broker's"
                    " transaction.max.timeout.ms is below what was tried before",
                    settings.app,
                    settings.resume_timeout_ms,
                )
            else:
                return

    def _hold(self, slot: Slot) -> None:
        """Take a claimed slot into the pool. What was seen before may be older than its claim."""
        self.pool.add(slot)
        self._has_looked = False

    def _look_for_resume_mode(self) -> Steps[None]:
        """See what resume mode has left open; asked behind claims, for peers may still be in it."""
        if self._has_looked:
            return
        resume = Resume(self._around)
        pattern = re.escape(self._settings.app) + resume.id_pattern
        left = yield from call(self._around.kafka.open_ids, pattern)
        self._resumed |= {resume.slot_of(kafka_id) for kafka_id in left}
        self._has_looked = True

    def _leave_resume_mode(self, slot: Slot) -> Steps[None]:
        """Recover in resume mode first what was last used in it: its transactions have other ids.

        Once begun this goes on until it is through, in later rounds too: whatever it has not yet sent
        again or ended, no other mode would look for.
        """
        if self.mode.name == Resume.name:
            return
        if slot.is_claimed and not slot.leaves_resume_mode:
            slot.leaves_resume_mode = yield from self._was_in_resume_mode(slot)
        if slot.leaves_resume_mode:
            yield from self._recover_in(Resume(self._around), slot)
            self._resumed.discard(slot.transactional_id)
            slot.leaves_resume_mode = False

    def _was_in_resume_mode(self, slot: Slot) -> Steps[bool]:
        yield from self._look_for_resume_mode()
        name, state = slot.transactional_id, slot.claim.state
        if name in self._resumed:
            return True
        if not state.has_transaction:
            return False
        return bool((yield from call(self._around.store.kept_messages, name, state)))

    def _choose_mode(self) -> Steps[None]:
        if self._settings.mode == "resume":
            self.mode = Resume(self._around)
            return
        features = yield from call(self._around.kafka.features)
        is_offered = (
            features.offers(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_2PC)
            and features.transaction_version >= TRANSACTION_VERSION_2PC
        )
        if not is_offered:
            self._fall_back("the broker offers no InitProducerId v6 with transaction.version 2")

    def _fall_back(self, reason: str) -> None:
        if self._settings.mode == "2pc":
            raise UnsupportedByBroker(f"two-phase commit is not possible: {reason}")
        logging.getLogger(__name__).warning(
            "event=resume_mode app=%s reason=%s limit=an outage longer than transaction.timeout.ms"
            " makes the broker abort; such messages are sent again from their copy",
            self._settings.app,
            reason,
        )
        self.mode = Resume(self._around)

    def _lease(self) -> Steps[None]:
        leased = yield from call(
            self._leaser.lease_slots,
            self._settings.app,
            self._around.owner_name,
            self._settings.slots - self.pool.kept,
            is_gone=self._owner.is_gone,
            held=self.pool.held,
        )
        for each in leased:
            self._hold(Slot(each.transactional_id, each.claim))

    def _take_over(self, *, passing: Iterable[str] = ()) -> Steps[None]:
        taken = yield from call(
            self._leaser.take_over,
            self._settings.app,
            self._around.owner_name,
            is_gone=self._owner.is_gone,
            held=[*self.pool.held, *passing],
        )
        for each in taken:
            self._around.tell(logging.INFO, "taken_over", each.transactional_id, each.claim.state)
            self._hold(Slot(each.transactional_id, each.claim, is_kept=False))

    def _recover_all(self) -> Steps[list[ConfigurationError]]:
        """Recover every slot, so that a refused one does not keep the others' readers waiting."""
        refusals = []
        for slot in self.pool:
            try:
                yield from self._recover_or_fall_back(slot)
            except Fenced:
                continue  # by Kafka alone; the next round tries again
            except ConfigurationError as refusal:
                refusals.append(refusal)
        return refusals

    def _recover_or_fall_back(self, slot: Slot) -> Steps[None]:
        try:
            yield from self.recover(slot)
        except UnsupportedByBroker as error:
            if self.mode.name == "resume":
                raise
            self._fall_back(str(error))
            yield from self.recover(slot)

    def _sweep_broker(self) -> Steps[None]:
        """End what is open under an id of ours that nobody owns; one without a row gets it first."""
        app = self._settings.app
        pattern = re.escape(app) + self.mode.id_pattern
        for kafka_id in (yield from call(self._around.kafka.open_ids, pattern)):
            name = self.mode.slot_of(kafka_id)
            if slot_number(app, name) is None or name in self.pool.held:
                continue
            row = yield from call(self._around.store.row, name)
            if row is not None and row.owner:
                continue  # its owner ends it, or whoever takes over from its owner
            expect = NOT_CLAIMED_YET if row is None else row.fence
            try:
                claim = yield from call(
                    self._around.store.claim, name, expect, owner=self._around.owner_name
                )
            except (Fenced, CannotDecideYet):
                continue
            self._around.tell(logging.WARNING, "id_without_owner", name, PreparedTxnState.NONE)
            slot = Slot(name, claim, is_kept=False)
            self._hold(slot)
            yield from self.try_recover(slot)
