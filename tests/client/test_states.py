"""The tables that say which call is allowed when."""

import pytest

from dualwrite.errors import InvalidTxnState
from dualwrite.failures import AbortableError, FatalError
from dualwrite.flows.states import ALLOWED, TRANSITIONS, State, StateMachine


def machine(state, error=None):
    found = StateMachine()
    found.state = state
    found.error = error
    return found


@pytest.mark.parametrize(
    "call",
    sorted(set(ALLOWED) - {"commit_transaction", "abort_transaction", "complete_transaction"}),
)
def test_a_prepared_transaction_can_only_be_ended(call):
    with pytest.raises(InvalidTxnState, match="prepared"):
        machine(State.PREPARED).require(call)


@pytest.mark.parametrize("call", sorted(ALLOWED))
def test_nothing_is_allowed_once_closed(call):
    with pytest.raises(InvalidTxnState, match="closed"):
        machine(State.CLOSED).require(call)


def test_after_an_unanswered_commit_only_the_commit_may_be_repeated():
    allowed = {call for call, states in ALLOWED.items() if State.COMMITTING in states}

    assert allowed == {"commit_transaction", "complete_transaction", "flush", "poll"}


def test_after_an_unanswered_abort_only_the_abort_may_be_repeated():
    allowed = {call for call, states in ALLOWED.items() if State.ABORTING in states}

    assert allowed == {"abort_transaction", "complete_transaction", "flush", "poll"}


@pytest.mark.parametrize(
    "call", ["produce", "commit_transaction", "prepare_transaction", "complete_transaction"]
)
def test_a_failed_transaction_says_why_and_can_only_be_aborted(call):
    failed = machine(State.ABORTABLE_ERROR, AbortableError(45, "record"))

    with pytest.raises(AbortableError, match="record"):
        failed.require(call)
    failed.require("abort_transaction")


def test_a_fatal_error_ends_everything():
    failed = machine(State.IN_TRANSACTION)
    failed.fail(AbortableError(45, "record"), fatal=False)
    failed.fail(FatalError(49, "mapping"), fatal=True)

    for call in set(ALLOWED) - {"flush", "poll"}:
        with pytest.raises(FatalError, match="mapping"):
            failed.require(call)


def test_no_error_moves_a_prepared_transaction():
    prepared = machine(State.PREPARED)

    prepared.fail(AbortableError(45, "late answer"), fatal=False)
    prepared.fail(FatalError(49, "late answer"), fatal=True)

    assert prepared.state is State.PREPARED
    assert prepared.error is None


def test_every_state_can_be_closed_and_has_a_row():
    assert set(TRANSITIONS) == set(State)
    for state in set(State) - {State.CLOSED}:
        assert State.CLOSED in TRANSITIONS[state]
