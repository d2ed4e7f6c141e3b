"""The states of a transactional producer, and which call is allowed in which.

Two tables hold everything. `ALLOWED` says from where each call may be made; `TRANSITIONS` says
which state may follow which, and is asserted at every change.

Three rules explain the tables. A *prepared* transaction may only be ended, by nobody but the caller:
no error and no close moves it (KIP-939). A commit or abort without an answer may only be repeated
(`COMMITTING`, `ABORTING`): its outcome is decided, just not known here. And an error inside a transaction
leaves one way out, the abort.
"""

from enum import Enum

from dualwrite.errors import InvalidTxnState


class State(Enum):
    UNINITIALIZED = "not initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "failed for good"
    CLOSED = "closed"

    # Enum would hash the name, by a function, each time that a table is asked.
    __hash__ = object.__hash__


_S = State

TRANSITIONS: dict[State, frozenset[State]] = {
    _S.UNINITIALIZED: frozenset({_S.READY, _S.PREPARED, _S.FATAL_ERROR, _S.CLOSED}),
    _S.READY: frozenset({_S.READY, _S.IN_TRANSACTION, _S.FATAL_ERROR, _S.CLOSED}),
    _S.IN_TRANSACTION: frozenset(
        {
            _S.READY,  # preparing an empty transaction ends it
            _S.PREPARED,
            _S.COMMITTING,
            _S.ABORTING,
            _S.ABORTABLE_ERROR,
            _S.FATAL_ERROR,
            _S.CLOSED,
        }
    ),
    _S.PREPARED: frozenset({_S.COMMITTING, _S.ABORTING, _S.CLOSED}),
    _S.COMMITTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR, _S.CLOSED}),
    _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR, _S.CLOSED}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR, _S.CLOSED}),
    _S.FATAL_ERROR: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}

ALLOWED: dict[str, frozenset[State]] = {
    "init_transactions": frozenset({_S.UNINITIALIZED}),
    "begin_transaction": frozenset({_S.READY}),
    "bump_epoch": frozenset({_S.READY}),
    "produce": frozenset({_S.IN_TRANSACTION}),
    "send_offsets_to_transaction": frozenset({_S.IN_TRANSACTION}),
    "flush_transaction": frozenset({_S.IN_TRANSACTION}),
    "prepare_transaction": frozenset({_S.IN_TRANSACTION}),
    "flush": frozenset(_S) - {_S.PREPARED, _S.CLOSED},
    "poll": frozenset(_S) - {_S.PREPARED, _S.CLOSED},
    # READY is a success without effect: whatever was open has been completed before.
    "complete_transaction": frozenset({_S.READY, _S.PREPARED, _S.COMMITTING, _S.ABORTING}),
    "commit_transaction": frozenset({_S.IN_TRANSACTION, _S.PREPARED, _S.COMMITTING}),
    "abort_transaction": frozenset(
        {_S.IN_TRANSACTION, _S.PREPARED, _S.ABORTING, _S.ABORTABLE_ERROR}
    ),
}


class StateMachine:
    """The state of one producer, with the error that brought it there."""

    __slots__ = ("error", "state")

    def __init__(self) -> None:
        self.state = State.UNINITIALIZED
        self.error: Exception | None = None

    def require(self, call: str) -> None:
        """Raise unless `call` is allowed now: the stored error if there is one."""
        state = self.state
        if state in ALLOWED[call]:
            return
        if self.error is not None and state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            raise self.error.with_traceback(None)
        raise InvalidTxnState(f"{call} is not allowed: the producer is {state.value}")

    def require_open(self, call: str) -> None:
        if self.state is State.CLOSED:
            raise InvalidTxnState(f"{call} is not allowed: the producer is closed")

    def close(self) -> None:
        self.move(State.CLOSED)

    def move(self, target: State) -> None:
        assert target in TRANSITIONS[self.state], f"{self.state} -> {target}"
        self.state = target
        if target in (State.READY, State.IN_TRANSACTION, State.PREPARED):
            self.error = None

    def fail(self, error: Exception, *, fatal: bool) -> None:
        """Remember the first error; a fatal one replaces one that could have been aborted."""
        target = State.FATAL_ERROR if fatal else State.ABORTABLE_ERROR
        if self.state is target or target not in TRANSITIONS[self.state]:
            return
        self.move(target)
        self.error = error
