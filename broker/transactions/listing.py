"""ListTransactions: which transactional ids match."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.transactions.pattern import Pattern, PatternError
from dualwrite.broker.transactions.state import WIRE_NAMES, Transaction
from dualwrite.wire.error_codes import ErrorCode

_STATES_BY_NAME: Final = {name: state for state, name in WIRE_NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The answer to ListTransactions, before ids that the caller may not see are taken out."""

    error: ErrorCode = ErrorCode.NONE
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[Transaction, ...] = ()


def select(
    transactions: Iterable[Transaction],
    states: Iterable[str],
    producer_ids: Iterable[int],
    duration_ms: int,
    pattern: str | None,
    now: Now,
) -> Listing:
    """Those that pass every filter; see `Coordinator.list_transactions`."""
    names = list(states)
    wanted = {_STATES_BY_NAME[name] for name in names if name in _STATES_BY_NAME}
    unknown = tuple(dict.fromkeys(name for name in names if name not in _STATES_BY_NAME))
    ids = set(producer_ids)
    try:
        matcher = Pattern(pattern) if pattern else None
    except PatternError:
        return Listing(error=ErrorCode.INVALID_REGULAR_EXPRESSION, unknown_states=unknown)
    found = tuple(
        transaction
        for transaction in transactions
        if (not names or transaction.state in wanted)
        and (not ids or transaction.producer_id in ids)
        and (duration_ms < 0 or _is_older(transaction, duration_ms, now))
        and (matcher is None or matcher.fullmatch(transaction.transactional_id))
    )
    return Listing(unknown_states=unknown, transactions=found)


def _is_older(transaction: Transaction, duration_ms: int, now: Now) -> bool:
    # In Kafka the start of an id without a transaction is -1 by the wall clock: long ago.
    started_ms = transaction.start_steady_ms
    return started_ms < 0 or now.steady_ms - started_ms > duration_ms
