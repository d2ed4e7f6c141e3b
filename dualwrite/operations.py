"""What an operator does about one transactional id: look at it, resolve it, or abort it by force.

The command line and the console are two faces of these functions. Each of them that ends something
claims the slot first, so that no commit of the database can land any more, and only then reads.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dualwrite import recovery
from dualwrite.admin import TransactionAdmin, TransactionDescription
from dualwrite.errors import DualWriteError, Fenced
from dualwrite.explanation import Explanation, explain
from dualwrite.outcome import decide
from dualwrite.owner import Owner
from dualwrite.producer import TwoPhaseProducer
from dualwrite.slot_ids import resumable_id
from dualwrite.store import Heuristic, Store, StoreRow

__all__ = ["Refusal", "look", "look_at_all", "resolve", "slot_of", "terminate"]

Ended = Literal["commit", "abort", "nothing"]


class Refusal(DualWriteError):
    """What was asked for would break a promise, so it was not done; the text says which."""


def look(
    store: Store, admin: TransactionAdmin, transactional_id: str
) -> tuple[Explanation, TransactionDescription | None]:
    """Say what would be done about an id, and why. Changes nothing."""
    described = _describe(admin, transactional_id)
    row = store.row(slot_of(store, transactional_id))
    if row is not None:
        resumed = _describe(admin, resumable_id(row.transactional_id, row.state_fence))
        described = _of_either_mode(described, resumed)
    found = explain(row, described, Owner.of_this_process().is_gone)
    reasons = (*_in_doubt(store, slot_of(store, transactional_id)), *found.reasons)
    found = Explanation(found.advice, reasons)
    return (_if_here(found, row, admin.cluster_id()) if row else found), described


def _in_doubt(store: Store, slot: str) -> list[str]:
    """Decided transactions of resume mode that Kafka lacks or may lack, with their copy put aside."""
    return [
        f"in doubt: {entry.state} of {entry.transactional_id}, whose messages are kept under that id"
        for entry in store.heuristics()
        if entry.transactional_id.rpartition(".")[0] == slot
        and store.kept_messages(entry.transactional_id, entry.state)
    ]


def look_at_all(rows: Sequence[StoreRow], admin: TransactionAdmin) -> dict[str, Explanation]:
    """Say what would be done about each row's id. Changes nothing."""
    resumed = {row: resumable_id(row.transactional_id, row.state_fence) for row in rows}
    ids = [*(row.transactional_id for row in rows), *resumed.values()]
    found = admin.describe_transactions(ids) if ids else {}
    is_gone = Owner.of_this_process().is_gone
    cluster_id = admin.cluster_id() if rows else ""

    def explained(row: StoreRow) -> Explanation:
        described = _of_either_mode(found[row.transactional_id], found[resumed[row]])
        return _if_here(explain(row, described, is_gone), row, cluster_id)

    return {row.transactional_id: explained(row) for row in rows}


def _if_here(explanation: Explanation, row: StoreRow, cluster_id: str) -> Explanation:
    """Overrule any advice about a row that remembers another cluster's transactions (T11)."""
    elsewhere = _bound_elsewhere(row, cluster_id)
    if not elsewhere:
        return explanation
    return Explanation("look", (*explanation.reasons, elsewhere))


def _bound_elsewhere(row: StoreRow | None, cluster_id: str) -> str:
    """What to do about a row of another cluster; nothing to say about one of this cluster."""
    if row is None or row.cluster_id in ("", cluster_id):
        return ""
    return (
        f"{row.transactional_id} is bound to Kafka cluster {row.cluster_id!r}, this one is"
        f" {cluster_id!r}: name the other one with --bootstrap-servers, or this one's own store;"
        " if the cluster was rebuilt, bind it anew by dualwrite recover --adopt"
    )


def _of_either_mode(
    described: TransactionDescription | None, resumed: TransactionDescription | None
) -> TransactionDescription | None:
    """What a row's state is to be compared with; in resume mode that is under an id of its claim."""
    if described is not None and described.state == "Ongoing":
        return described
    return resumed or described


def _describe(admin: TransactionAdmin, transactional_id: str) -> TransactionDescription | None:
    return admin.describe_transactions([transactional_id])[transactional_id]


def resolve(
    config: Mapping[str, Any],
    store: Store,
    explanation: Explanation,
    transactional_id: str,
    *,
    now: bool = False,
) -> Ended:
    """End what the id has open as the store says; `now` even if its owner is alive.

    `explanation` is what the operator was shown; the decision itself is taken from a read behind
    the claim.
    """
    if explanation.advice == "look" or (explanation.advice == "wait" and not now):
        raise Refusal(explanation.reasons[-1])
    if explanation.advice == "nothing":
        return "nothing"
    ended = recovery.resolve(config, slot_of(store, transactional_id), store=store)
    return ended[0].verdict if ended else "nothing"


def terminate(
    config: Mapping[str, Any],
    store: Store,
    admin: TransactionAdmin,
    transactional_id: str,
    *,
    reason: str = "",
    recorded_by: str = "operator",
) -> None:
    """Abort what an id has open. Against the database's word only with a reason, written down first."""
    _require_open(
        admin, transactional_id
    )  # before a claim, which would fence its owner for nothing
    slot = slot_of(store, transactional_id)
    elsewhere = _bound_elsewhere(store.row(slot), admin.cluster_id())
    if elsewhere:
        raise Refusal(elsewhere)
    claim = store.claim(slot, owner=recorded_by)
    # After the claim no commit can land any more, so what is read now stays true.
    try:
        described = _require_open(admin, transactional_id)
    except Refusal:
        store.release(slot, claim.fence)
        raise
    if decide(claim.state, described.pair) == "commit":
        if not reason:
            store.release(slot, claim.fence)
            raise Refusal(
                f"the database has committed {claim.state}: resolve it, which commits it in Kafka"
                " too"
            )
        store.record_heuristic(
            Heuristic(
                transactional_id=transactional_id,
                state=claim.state,
                action="abort",
                reason=reason,
                recorded_by=recorded_by,
            )
        )
    _abort_exactly(config, store, admin, slot, claim.fence, described)
    store.release(slot, claim.fence)


def _abort_exactly(
    config: Mapping[str, Any],
    store: Store,
    admin: TransactionAdmin,
    slot: str,
    fence: int,
    described: TransactionDescription,
) -> None:
    """Abort what was looked at and nothing else, whoever may claim the slot meanwhile.

    An operator has no lease: a peer that takes over ends it, and may have decided the next one. So
    this goes the way of recovery, where a newer claim fences every step.
    """
    name, pair = described.transactional_id, described.pair
    if not described.is_two_phase:
        admin.end_txn(name, pair.producer_id, pair.epoch, False)
        return
    two_phase = {"transactional.id": name, "transaction.two.phase.commit.enable": True}
    producer = _Overruling({**config, **two_phase})
    with producer:
        producer.init_transactions(keep_prepared_txn=True)
        try:
            store.recall(slot, fence)
        except Fenced as error:
            raise Refusal(f"{slot} was claimed by somebody else meanwhile") from error
        if producer.prepared_txn_state != pair:
            raise Refusal(f"{name} has nothing open any more of what was looked at")
        producer.overrule()


class _Overruling(TwoPhaseProducer):
    def overrule(self) -> None:
        """Abort by force, so that the owner does not take it for an end of its own."""
        self._run("overrule", self._flows.overrule(), None)


def _require_open(admin: TransactionAdmin, transactional_id: str) -> TransactionDescription:
    described = _describe(admin, transactional_id)
    if described is None or described.state != "Ongoing":
        raise Refusal(f"{transactional_id} has nothing open")
    return described


def slot_of(store: Store, transactional_id: str) -> str:
    """The row of an id; resume mode's ids carry the fence behind a dot."""
    match = re.fullmatch(r"(.*-[0-9]+)\.[0-9]+", transactional_id)
    if match and store.row(transactional_id) is None:
        return match[1]
    return transactional_id
