"""What an operator should know of one transactional id, and what would be done about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dualwrite.admin import TransactionDescription
from dualwrite.outcome import Finding, decide, examine
from dualwrite.owner import Owner
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import is_free
from dualwrite.store import StoreRow

Advice = Literal["commit", "abort", "wait", "nothing", "look"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The advice and its reasons, each a sentence."""

    advice: Advice
    reasons: tuple[str, ...]


def explain(
    row: StoreRow | None,
    described: TransactionDescription | None,
    is_gone: Callable[[str], bool],
) -> Explanation:
    """Join what the store remembers with what the coordinator shows.

    "wait" stands for an owner that is alive and will end it by itself; "look" for an end that is
    finished otherwise than the database says, which nobody can repair from here.
    """
    ongoing = _ongoing(described)
    remembered = row.state if row else PreparedTxnState.NONE
    reasons = [_of_row(row), _of_coordinator(described, ongoing)]
    finding = examine(remembered, ongoing, described.last_finished if described else None)
    if finding in (Finding.HEURISTIC_ABORT, Finding.DATABASE_BEHIND):
        reasons.append(f"the two differ already: {finding.value}")
        return Explanation("look", tuple(reasons))
    decision = decide(remembered, ongoing)
    if decision == "nothing":
        return Explanation("nothing", tuple(reasons))
    if row is not None and row.owner and not is_free(row, is_gone):
        reasons.append("its owner is alive and will end it by itself")
        return Explanation("wait", tuple(reasons))
    equal = "equal" if decision == "commit" else "not equal"
    reasons.append(f"the pairs are {equal}: the database has {_DECIDED[decision]} it")
    return Explanation(decision, tuple(reasons))


_DECIDED = {"commit": "committed", "abort": "not committed"}


def _ongoing(described: TransactionDescription | None) -> PreparedTxnState:
    if described is None or described.state != "Ongoing":
        return PreparedTxnState.NONE
    return described.pair


def _of_row(row: StoreRow | None) -> str:
    if row is None:
        return "the store has no row for it"
    standing = "without an owner"
    if row.owner:
        owner = Owner.parse(row.owner)
        standing = f"owned by {owner.name if owner else row.owner} (lease {row.lease.value})"
    return f"the store remembers {row.state or 'nothing'}, fence {row.fence}, {standing}"


def _of_coordinator(described: TransactionDescription | None, ongoing: PreparedTxnState) -> str:
    if described is None:
        return "the coordinator does not know it"
    if ongoing.has_transaction:
        count = len(described.partitions)
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        return f"the coordinator has {ongoing} open on {partitions}"
    last = described.last_finished
    finished = f"; last finished: {last}" if last else ""
    return f"the coordinator has nothing open ({described.state}){finished}"
