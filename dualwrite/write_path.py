"""The end of a dual write, in the one order that keeps both sides equal.

    flush the database work -> produce -> remember the pair, fence-checked, as the last statement
    -> wait until Kafka has everything (prepared) -> COMMIT of the database, which decides
    -> Kafka commit

The pair is known before the records are durable, so the database takes the last statement while
Kafka takes the records; COMMIT waits for both. Until COMMIT is sent, every exception undoes both
sides. From then on only the database's definite answer counts. Anything else, KeyboardInterrupt and
cancellation among it, is an unknown COMMIT, after which nobody may abort before a claim has told the
outcome. After the decision nothing is an error any more: what Kafka has not acknowledged is pending,
and recovery of the slot ends it.
"""

import logging
import time
from typing import NoReturn, Protocol

from dualwrite import metrics
from dualwrite.errors import (
    Fenced,
    InvalidTxnState,
    OutcomeUnknown,
    RetryableError,
)
from dualwrite.failures import AbortableError, FatalError, KafkaTimeout
from dualwrite.prepared import PreparedTxnState
from dualwrite.retries import is_serialization_failure
from dualwrite.slot_pool import Slot
from dualwrite.steps import Steps, call
from dualwrite.store import CannotDecideYet, CommitUnknown, StoreUnavailable
from dualwrite.surroundings import Surroundings
from dualwrite.transaction import Outcome, Rollback, Unit
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

RESOLVE_PAUSES = (0.1, 0.5, 1.0)
"""Seconds between claims after an unknown COMMIT; each waits, bounded, for the row's lock too."""


class Mode(Protocol):
    """The Kafka side of a dual write: `TwoPhase`, or `Resume` for brokers without KIP-939."""

    name: str
    id_pattern: str

    def slot_of(self, kafka_id: str) -> str: ...
    def send(self, unit: Unit) -> Steps[PreparedTxnState]: ...
    def remember(self, unit: Unit) -> Steps[None]: ...
    def prepare(self, unit: Unit) -> Steps[None]: ...
    def start_commit(self, slot: Slot) -> Steps[None]: ...
    def commit(self, slot: Slot, state: PreparedTxnState) -> Steps[None]: ...
    def abort(self, slot: Slot) -> Steps[None]: ...
    def recover(self, slot: Slot) -> Steps[None]: ...


class WritePath:
    """Ends units; `commit` decides, `finish` carries Kafka to the decision."""

    def __init__(self, around: Surroundings, mode: Mode) -> None:
        self._around = around
        self._mode = mode
        # Looking a metric up by its labels costs more than counting.
        self._window = metrics.window.labels(around.app)
        self._committed_count = metrics.transactions.labels(around.app, "committed")

    def commit(self, unit: Unit) -> Steps[Outcome]:
        """Carry the unit to the decision. A `pending` outcome is then to be finished."""
        try:
            outcome = yield from self._commit(unit)
        except BaseException as error:
            unit.trace.end(error)
            raise
        if outcome.kafka != "pending":
            unit.trace.end(outcome=outcome.database)
        return outcome

    def _commit(self, unit: Unit) -> Steps[Outcome]:
        if unit.spoiled_by is not None:
            yield from self.roll_back(unit)
            raise InvalidTxnState("a block that had joined failed") from unit.spoiled_by
        try:
            yield from self._prepare(unit)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, under a better name
            yield from self._undo(unit, error)
            raise_named(error)
        yield from self._decide(unit)
        return unit.require_outcome()

    def roll_back(self, unit: Unit) -> Steps[None]:
        """Undo the database work; nothing has been sent to Kafka yet."""
        yield from call(unit.local.rollback)
        unit.ended("rolled_back", "none")
        unit.trace.end(outcome="rolled_back")

    def start_finish(self, unit: Unit) -> Steps[None]:
        """Ask Kafka for the commit of what is decided; `finish` then takes the answer."""
        unit.asked_at = time.monotonic()
        try:
            yield from self._mode.start_commit(unit.slot)
        except Exception as error:  # `finish` asks again, and tells if it fails
            logger.debug("the Kafka commit could not be asked for", exc_info=error)

    def finish(self, unit: Unit) -> Steps[Outcome]:
        """Commit in Kafka what is decided; an error here only means that it takes longer."""
        if unit.require_outcome().kafka != "pending":
            return unit.require_outcome()
        slot = unit.slot
        try:
            with unit.trace.part("complete", txn=str(unit.state)):
                yield from self._mode.commit(slot, unit.state)
        except Exception as error:  # noqa: BLE001 - it is decided, and recovery will end it
            # Fenced included: another instance has claimed the slot, and reads the same decision.
            name = slot.transactional_id
            self._around.tell(
                logging.WARNING, "kafka_commit_pending", name, unit.state, error=error
            )
            metrics.transactions.labels(self._around.app, "pending").inc()
            unit.trace.end(outcome="pending", slot=name, txn=str(unit.state))
            return unit.require_outcome()
        self._around.at("completed")
        closed_at = unit.asked_at or time.monotonic()
        self._window.observe(closed_at - unit.opened_at)
        self._committed_count.inc()
        unit.trace.end(outcome="committed", slot=slot.transactional_id, txn=str(unit.state))
        return unit.ended("committed", "committed")

    def _prepare(self, unit: Unit) -> Steps[None]:
        around = self._around
        yield from call(unit.local.flush)
        around.at("flushed")
        if not unit.buffer:
            return
        unit.opened_at = time.monotonic()
        with unit.trace.part("prepare", records=len(unit.buffer)):
            unit.state = yield from self._mode.send(unit)
            if unit.state.has_transaction:
                yield from self._remember(unit)
            yield from self._mode.prepare(unit)
        if not unit.state.has_transaction:
            unit.slot.is_ready = True

    def _remember(self, unit: Unit) -> Steps[None]:
        yield from unit.slot.under_fence(self._mode.remember(unit))
        self._around.at("remembered")

    def _decide(self, unit: Unit) -> Steps[None]:
        unit.is_sent = True
        try:
            self._around.at("committing")
            with unit.trace.part("decide"):
                yield from call(unit.local.commit)
        except CommitUnknown as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, Exception):
                yield from self._resolve(unit, error)
            else:
                yield from self._resolve_interrupted(unit, cause)
        except Exception as error:  # noqa: BLE001 - raised again, under a better name
            # The store is sure, or was not asked: not committed.
            if isinstance(error, Fenced):
                unit.slot.is_lost = True
            yield from call(unit.local.rollback)
            yield from self._abort(unit)
            unit.ended("rolled_back", "aborted" if unit.state.has_transaction else "none")
            raise_named(error)
        except GeneratorExit:
            raise
        except BaseException as interruption:  # noqa: BLE001 - raised again once it is settled
            yield from self._resolve_interrupted(unit, interruption)
        else:
            self._committed(unit)
        self._around.at("committed")

    def _resolve_interrupted(self, unit: Unit, interruption: BaseException) -> Steps[None]:
        """Settle an interrupted COMMIT, which may have arrived, and raise the interruption."""
        try:
            yield from self._resolve(unit, interruption)
        except (RetryableError, OutcomeUnknown) as resolution:
            raise interruption from resolution
        yield from self.finish(unit)
        raise interruption

    def _committed(self, unit: Unit) -> None:
        unit.ended("committed", "pending" if unit.state.has_transaction else "none")

    def _resolve(self, unit: Unit, error: BaseException) -> Steps[None]:
        """Learn by a claim whether an unknown COMMIT happened; returns only if it did."""
        slot, name = unit.slot, unit.slot.transactional_id
        self._around.tell(logging.WARNING, "commit_unknown", name, unit.state, error=error)
        yield from call(unit.local.rollback)  # gives up the connection, whatever became of it
        if not unit.state.has_transaction:
            raise OutcomeUnknown("COMMIT was sent, its answer was lost") from error
        try:
            yield from self._claim(slot)
        except Exception as problem:  # noqa: BLE001 - whatever the reason
            # Another instance decides it, or nobody can decide yet: the prepared transaction stays
            # open, and the slot is left to recovery.
            slot.is_lost = isinstance(problem, Fenced)
            raise OutcomeUnknown(
                f"COMMIT of {unit.state} on {name} was sent, its answer was lost: {problem}"
            ) from error
        if slot.claim.state == unit.state:
            self._committed(unit)
            return
        yield from self._abort(unit)
        unit.ended("rolled_back", "aborted")
        raise RetryableError(f"COMMIT of {unit.state} on {name} did not happen") from error

    def _claim(self, slot: Slot) -> Steps[None]:
        for pause in (*RESOLVE_PAUSES, None):
            try:
                slot.claim = yield from call(
                    self._around.store.claim, slot.transactional_id, slot.fence
                )
            except (CannotDecideYet, StoreUnavailable):
                if pause is None:
                    raise
                yield from call(self._around.pause, pause)
            else:
                return

    def _undo(self, unit: Unit, error: BaseException) -> Steps[None]:
        try:
            yield from call(unit.local.rollback)
        finally:
            yield from self._abort(unit)
        unit.ended("rolled_back", "aborted" if unit.buffer else "none")
        metrics.transactions.labels(self._around.app, "rolled_back").inc()
        if isinstance(error, Fenced):
            name = unit.slot.transactional_id
            self._around.tell(logging.WARNING, "fenced", name, unit.state, error=error)

    def _abort(self, unit: Unit) -> Steps[None]:
        """Abort in Kafka what was begun; if that fails, recovery of the slot does it."""
        slot = unit.slot
        if slot.is_ready:
            return
        try:
            yield from self._mode.abort(slot)
        except Exception as error:  # noqa: BLE001 - the first error is the one to raise
            name = slot.transactional_id
            self._around.tell(logging.WARNING, "abort_pending", name, unit.state, error=error)


_HOPELESS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_RECORD,
    }
)
"""Answers that the same messages would get again."""


_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


def as_retryable(error: BaseException) -> BaseException:
    """Name an error before the decision by what the caller can do; both sides are undone."""
    if isinstance(error, RetryableError):
        return error
    if isinstance(error, KafkaTimeout | FatalError | AbortableError):
        if error.code in _HOPELESS:
            return error
        if error.code in _FENCED:
            return Fenced(f"another producer uses the slot's id: {error}")
        return RetryableError(f"Kafka did not take the messages: {error}")
    if is_serialization_failure(error):
        return RetryableError(f"the database asks to run the transaction again: {error}")
    return error


def ends_quietly(error: BaseException) -> bool:
    """Whether a block that was rolled back because of this error ends without one."""
    if isinstance(error, Rollback):
        return True
    named = as_retryable(error)
    if named is not error:
        raise named from error
    return False


def raise_named(error: BaseException) -> NoReturn:
    """Raise the error under the name that tells the caller what to do."""
    named = as_retryable(error)
    if named is error:
        raise error
    raise named from error
