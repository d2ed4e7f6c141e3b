"""How many ids and open two-phase transactions each principal has.

A prepared transaction holds readers back until its owner ends it (KIP-939), so whoever may open many can
stop a cluster. The owner of an id is the principal that made it; its records carry the name, so the
figures survive a restart.
"""

from collections import Counter

from dualwrite.broker.transactions.state import Transaction, TxnState


class Owners:
    """The figures; `moved` is called for every record that is replayed."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self._open: Counter[str] = Counter()

    def ids(self, owner: str) -> int:
        """Transactional ids that `owner` has made."""
        return self._ids[owner]

    def open_two_phase(self, owner: str) -> int:
        """Two-phase transactions that are open under these."""
        return self._open[owner]

    def moved(self, before: Transaction | None, after: Transaction) -> None:
        """An id has gone from one state to the next."""
        is_gone = after.state is TxnState.DEAD
        if before is None or is_gone or before.owner != after.owner:
            if before is not None:
                self._ids[before.owner] -= 1
            if not is_gone:
                self._ids[after.owner] += 1
        if before is not None and _is_open_two_phase(before):
            self._open[before.owner] -= 1
        if _is_open_two_phase(after):
            self._open[after.owner] += 1


def _is_open_two_phase(transaction: Transaction) -> bool:
    return transaction.state is TxnState.ONGOING and transaction.is_two_phase
